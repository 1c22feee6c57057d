"""Sets of graphs that Genie's loader is asked about: names and tensors, good and bad."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genie_models import HEAD_DIM, HEADS, OPTIONS, VOCABULARY, Port, Ports, graph, language, split

from mnnqnn_tasks.files import sha256_bytes

Part = tuple[str, Ports]


@dataclass(frozen=True)
class Case:
    """Graphs, each in a binary of its own, and what the config says.

    Attributes:
        name: of the case.
        parts: name and tensors of every graph, in the order of ``ctx-bins``.
        context: ``context.size``.
        backend: keys of the QnnHtp backend that differ; None takes one away.
        model: keys of the engine's model that are added.
        quick: asked about in every run of the tests, for the newest and the oldest libGenie.
    """

    name: str
    parts: tuple[Part, ...]
    context: int = 64
    backend: tuple[tuple[str, Any], ...] = ()
    model: tuple[tuple[str, Any], ...] = ()
    quick: bool = True

    def binaries(self) -> dict[str, Part]:
        """File name by content, so that cases share what they have in common."""
        return {f"{sha256_bytes(repr(part).encode())[:16]}.bin": part for part in self.parts}


TOKEN, PROMPT = language(1, 64), language(16, 64)
F16 = "FLOAT_16"


def splits(total: int, pattern: str, ar: int = 1, cl: int = 64) -> tuple[Part, ...]:
    """All splits of a model; ``pattern`` takes k and n."""
    return tuple(
        (pattern.format(k=number, n=total), split(number, total, ar, cl))
        for number in range(1, total + 1)
    )


def _named() -> Iterator[Case]:
    """One graph, complete tensors, many names."""
    yield Case(
        "well named", (("token_ar1_cl64_1_of_1", TOKEN), ("prompt_ar16_cl64_1_of_1", PROMPT))
    )
    yield Case("without ar and cl", (("qwen_token_1_of_1", TOKEN), ("qwen_prompt_1_of_1", PROMPT)))
    yield Case("any name at all", (("graph", TOKEN),))
    yield Case("contradicting names", (("token_ar7_cl99_1_of_1", TOKEN),))
    yield Case("capitals", (("TOKEN_AR1_CL64_1_OF_1", TOKEN), ("PROMPT_AR16_CL64_1_OF_1", PROMPT)))
    yield Case("prompt without token", (("prompt_ar16_cl64_1_of_1", PROMPT),))
    yield Case("token without prompt", (("token_ar1_cl64_1_of_1", TOKEN),))


#: A middle split without any tensor that tells AR or CL.
MUTE = Ports((Port("x", F16, (1, 8)),), (Port("y", F16, (1, 8)),))


_QUICK_NAMES = {
    "with underscores",
    "capitals and underscores",
    "mixed case",
    "no ar",
    "no cl, small numbers",
    "no cl, number at the limit",
    "no cl, number above the limit",
    "huge cl",
    "another ar",
}


def _fallbacks() -> Iterator[Case]:
    """A split whose tensors tell nothing takes AR and CL from its name."""
    for label, name in {
        "ar and cl": "m_ar1_cl64_2_of_3",
        "with underscores": "m_ar_1_cl_64_2_of_3",
        "in capitals": "m_AR1_CL64_2_of_3",
        "capitals and underscores": "m_AR_1_CL_64_2_of_3",
        "mixed case": "m_Ar1_Cl64_2_of_3",
        "two underscores": "m_ar__1_cl64_2_of_3",
        "a hyphen": "m_ar-1_cl64_2_of_3",
        "no ar": "m_cl64_2_of_3",
        "no cl, small numbers": "m_ar1_2_of_3",
        "no cl, number at the limit": "m_ar1_501_2_of_3",
        "no cl, number above the limit": "m_ar1_502_2_of_3",
        "no cl, large number": "m_ar1_4096_2_of_3",
        "no cl, ar above the limit": "m_ar600_2_of_3",
        "neither": "m_2_of_3",
        "ar twice": "m_ar1_ar2_cl64_2_of_3",
        "ar inside a word": "mar1_cl64_2_of_3",
        "capital ar first": "m_AR2_ar1_cl64_2_of_3",
        "another ar": "m_ar16_cl64_2_of_3",
        "another cl": "m_ar1_cl128_2_of_3",
        "a smaller cl": "m_ar1_cl32_2_of_3",
        "huge ar": "m_ar99999999999_cl64_2_of_3",
        "huge cl": "m_ar1_cl99999999999_2_of_3",
        "huge number": "m_ar1_99999999999_2_of_3",
        "leading zeros": "m_ar001_cl0064_2_of_3",
    }.items():
        yield Case(f"name only: {label}", _around(name, MUTE), quick=label in _QUICK_NAMES)
    mask = Port("attention_mask", F16, (1, 1, 1, 64))
    key = Port("past_key_1_in", F16, (HEADS, 1, HEAD_DIM, 63))
    key_out = Port("past_key_1_out", F16, (HEADS, 1, HEAD_DIM, 1))
    value_out = Port("past_value_1_out", F16, (HEADS, 1, 1, HEAD_DIM))
    value = Port("past_value_1_in", F16, (HEADS, 1, 63, HEAD_DIM))
    wrong = "m_ar16_cl128_2_of_3"
    for label, more in {
        "mask": ((mask,), ()),
        "past key in": ((key,), ()),
        "past keys and values": ((key, value), (key_out, value_out)),
        "past outputs": ((), (key_out, value_out)),
        "logits": ((), (Port("logits", F16, (1, 1, VOCABULARY)),)),
        "inputs_embeds": ((Port("inputs_embeds", F16, (1, 1, 8)),), ()),
        "input_ids": ((Port("input_ids", "INT_32", (1, 1)),), ()),
        "position ids": ((Port("position_ids_cos", F16, (1, 1, 1, HEAD_DIM // 2)),), ()),
        "input_ids of 16": ((Port("input_ids", "INT_32", (1, 16)),), ()),
        "mask of 16 and 128": ((Port("attention_mask", F16, (1, 1, 16, 128)),), ()),
    }.items():
        ports = MUTE.having(inputs=more[0], outputs=more[1])
        if label != "past key in":  # whose words are another story
            yield Case(f"one tensor: {label}", _around(wrong, ports), quick=False)
        yield Case(f"one tensor, no name: {label}", _around("m_2_of_3", ports), quick=False)


def _around(name: str, ports: Ports) -> tuple[Part, ...]:
    """A split in the middle of two that are complete, whose names put it there in any order."""
    first, last = split(1, 3, 1, 64), split(3, 3, 1, 64)
    return ("a_1_of_3", first), (name, ports), ("z_3_of_3", last)


def _ordered() -> Iterator[Case]:
    """Numbers of splits, padded and not."""
    for total in (2, 9, 10, 11, 12):
        yield Case(f"{total} splits", splits(total, "token_ar1_cl64_{k}_of_{n}"))
    for total in (10, 11):
        yield Case(f"{total} splits padded", splits(total, "token_ar1_cl64_{k:02}_of_{n}"))
    yield Case("3 splits, other form", splits(3, "token_ar1_cl64_{n}_{k}"))
    yield Case("11 splits, other form", splits(11, "token_ar1_cl64_part{k}"))
    yield Case("binaries in another order", splits(3, "token_ar1_cl64_{k}_of_{n}")[::-1])
    yield Case(
        "token and prompt splits",
        (
            *splits(2, "token_ar1_cl64_{k}_of_{n}"),
            *splits(2, "prompt_ar16_cl64_{k}_of_{n}", 16),
        ),
    )
    one, two = splits(2, "token_ar1_cl64_{k}_of_{n}")
    yield Case("prefixes that sort apart", (("b_ar1_cl64_1_of_2", one[1]), ("a_1_of_2", two[1])))
    yield Case("a split is missing", (one, ("token_ar1_cl64_3_of_3", split(3, 3, 1, 64))))
    for label, (low, high) in {
        "suffix behind the numbers": ("t_2_of_2_x", "t_1_of_2_x"),
        "suffix behind one of them": ("t_1_of_2_x", "t_2_of_2"),
        "no prefix": ("1_of_2", "2_of_2"),
        "capital OF": ("t_10_OF_10", "t_2_OF_10"),
        "totals differ": ("t_2_of_9", "t_3_of_3"),
        "the same number, totals differ": ("t_1_of_9", "t_1_of_3"),
        "the same number, prefixes differ": ("z_1_of_2", "a_1_of_2"),
        "numbers against prefixes": ("z_1_of_2", "a_2_of_2"),
        "padded and not": ("t_02_of_2", "t_1_of_2"),
        "number above the total": ("t_7_of_2", "t_8_of_2"),
        "no number": ("t_x_of_2", "t_1_of_2"),
        "two marks": ("t_9_of_9_1_of_2", "t_1_of_9_2_of_2"),
        "huge number": ("t_99999999999_of_2", "t_1_of_2"),
        "zero": ("t_0_of_2", "t_1_of_2"),
        "plain words": ("first", "second"),
        "plain words, other way": ("second", "first"),
    }.items():
        quick = label in ("padded and not", "zero", "numbers against prefixes")
        yield Case(f"order: {label}", ((low, one[1]), (high, two[1])), quick=quick)
    ten = splits(10, "token_ar1_cl64_{k}_of_{n}")
    patched = tuple((name.replace("_10_", "_T0_"), ports) for name, ports in ten)
    yield Case("10 splits, renumbered T0", patched)


def _tensors() -> Iterator[Case]:
    """Tensors that are missing, renamed or of another shape."""
    name = "token_ar1_cl64_1_of_1"
    for gone in ("input_ids", "logits", "attention_mask", "position_ids_cos"):
        yield Case(f"without {gone}", ((name, TOKEN.without(gone)),))
    yield Case(
        "without past keys",
        (
            (
                name,
                TOKEN.without(
                    *(p.name for p in (*TOKEN.inputs, *TOKEN.outputs) if "past" in p.name)
                ),
            ),
        ),
    )
    yield Case(
        "inputs_embeds",
        (
            (
                name,
                TOKEN.without("input_ids").having(inputs=[Port("inputs_embeds", F16, (1, 1, 8))]),
            ),
        ),
    )
    yield Case("logits of another name", ((name, TOKEN.renamed(logits="scores")),))
    pooled = TOKEN.renamed(logits="pooled_output")
    yield Case("an embedding model's output", ((name, pooled),), quick=False)
    yield Case("mask of another name", ((name, TOKEN.renamed(attention_mask="mask")),))
    yield Case(
        "logits of another vocabulary",
        ((name, TOKEN.having(outputs=[Port("logits", F16, (1, 1, VOCABULARY + 1))])),),
    )
    wide = language(1, 64, layers=())
    yield Case("no layers", ((name, wide),))


def _contexts() -> Iterator[Case]:
    """Context lengths and what the config says of them."""
    short, long = splits(1, "token_ar1_cl64_1_of_1"), splits(1, "token_ar1_cl128_1_of_1", 1, 128)
    yield Case("two context lengths", (*short, *long), 128)
    yield Case("two context lengths, config says the smaller", (*short, *long), 64)
    yield Case("context.size above the largest", short, 128)
    yield Case("context.size below the largest", short, 32)
    yield Case("context.size is one less", short, 63)
    yield Case("pos-id-dim of another size", short, 64, (("pos-id-dim", 8),))
    yield Case("kv-dim of another size", short, 64, (("kv-dim", 8),))
    yield Case("pos-id-dim not said", short, 64, (("pos-id-dim", None),))
    rope = {"type": "rope", "rope-theta": 10000, "rope-scaling": {"rope-type": "default"}}
    gone = (("pos-id-dim", None), ("rope-theta", None))
    for size in (2, 4):
        model = (("positional-encoding", {**rope, "rope-dim": size}),)
        yield Case(f"rope-dim of {size}", short, 64, gone, model, quick=size != 2)
    yield Case("two graphs of one variant", (*short, ("other_ar1_cl64_1_of_1", TOKEN)))


def _past(ports: Ports, layer: int, positions: int) -> Ports:
    """With another number of positions in the KV cache of a layer."""
    sized = {
        f"past_key_{layer}_in": (HEADS, 1, HEAD_DIM, positions),
        f"past_value_{layer}_in": (HEADS, 1, positions, HEAD_DIM),
    }
    changed = [port._replace(dims=sized[port.name]) for port in ports.inputs if port.name in sized]
    return ports.having(inputs=changed)


def _caches() -> Iterator[Case]:
    """The KV cache: where the loader looks for it, and what it makes of what it finds."""
    token, prompt = "token_ar1_cl64_1_of_1", "prompt_ar16_cl64_1_of_1"
    bare, bare_prompt = language(1, 64, layers=()), language(16, 64, layers=())
    one, two = split(1, 2, 1, 64), split(2, 2, 1, 64)
    first_bare = language(1, 64, last=False, layers=()).renamed(hidden_out="h1")
    last_bare = language(1, 64, first=False, layers=()).renamed(hidden="h1")
    both = language(1, 64, layers=(0, 1))
    long, long_bare = language(1, 128), language(1, 128, layers=())
    other = language(16, 64, layers=(1,))
    named: dict[str, tuple[Part, ...]] = {
        "odd in the prompt": ((token, TOKEN), (prompt, _past(PROMPT, 0, 50))),
        "odd in the token": ((token, _past(TOKEN, 0, 50)), (prompt, PROMPT)),
        "odd in the first split": (("t_1_of_2", _past(one, 0, 50)), ("t_2_of_2", two)),
        "odd in the second split": (("t_1_of_2", one), ("t_2_of_2", _past(two, 1, 50))),
        "odd in the second layer": ((token, _past(both, 1, 50)),),
        "whole in the token": ((token, _past(TOKEN, 0, 64)), (prompt, PROMPT)),
        "whole in the prompt": ((token, TOKEN), (prompt, _past(PROMPT, 0, 64))),
        "whole in both": ((token, _past(TOKEN, 0, 64)), (prompt, _past(PROMPT, 0, 64))),
        "none in the prompt": ((token, TOKEN), (prompt, bare_prompt)),
        "none in the token": ((token, bare), (prompt, PROMPT)),
        "none in the long one": ((token, TOKEN), ("u", long_bare)),
        "none in the short one": ((token, bare), ("u", long)),
        "none in the second split": (("t_1_of_2", one), ("t_2_of_2", last_bare)),
        "none in the first split": (("t_1_of_2", first_bare), ("t_2_of_2", two)),
        "no inputs": ((token, TOKEN.without("past_key_0_in", "past_value_0_in")),),
        "no outputs": ((token, TOKEN.without("past_key_0_out", "past_value_0_out")),),
        "no keys": ((token, TOKEN.without("past_key_0_in", "past_key_0_out")),),
        "other layers in the prompt": ((token, TOKEN), (prompt, other)),
        "more layers in the prompt": ((token, TOKEN), (prompt, language(16, 64, layers=(0, 1)))),
    }
    for label, graphs_of in named.items():
        yield Case(f"cache: {label}", graphs_of, quick=False)
    wide = TOKEN.having(inputs=[Port("attention_mask", F16, (1, 1, 1, 128))])
    yield Case("cache: mask of another CL", ((token, wide),), 128, quick=False)
    narrow = PROMPT.having(inputs=[Port("attention_mask", F16, (1, 1, 1, 64))])
    yield Case("cache: mask of another AR", ((prompt, narrow),), quick=False)
    for size in (8, 1024, 2048):
        embeds = Port("inputs_embeds", F16, (1, 1, size))
        ports = TOKEN.without("input_ids").having(inputs=[embeds])
        yield Case(f"cache: embeddings of {size}", ((token, ports),), quick=False)
    yield Case("cache: float32", ((token, language(1, 64, dtype="FLOAT_32")),), quick=False)
    wrong_out = [Port("past_key_0_out", F16, (HEADS, 1, HEAD_DIM, 4))]
    two_layers = language(8, 64, layers=(0, 1))
    no_past = ("past_key_0_in", "past_value_0_in")
    at_once = language(64, 64).without(*no_past)
    last_row = at_once.having(outputs=[Port("logits", F16, (1, 1, VOCABULARY))])
    longer = language(128, 128).without(*no_past)
    value = "past_value_0_in"
    for label, graphs_of, context in (
        ("outputs of 4", ((prompt, PROMPT.having(outputs=wrong_out)),), 64),
        ("outputs of 4, two layers", (("g", two_layers.having(outputs=wrong_out)),), 64),
        ("outputs of 4, with token", ((token, TOKEN), ("g", PROMPT.having(outputs=wrong_out))), 64),
        (
            "outputs of 4 in the token",
            ((token, TOKEN.having(outputs=wrong_out)), ("g", PROMPT)),
            64,
        ),
        (
            "outputs of 4, whole past",
            (("g", _past(PROMPT, 0, 64).having(outputs=wrong_out)),),
            64,
        ),
        ("all at once, every logit", (("g", at_once),), 64),
        ("all at once, last logit", (("g", last_row),), 64),
        ("all at once, no cache", (("g", language(64, 64, layers=())),), 64),
        ("all at once, with token", (("g", at_once), (token, TOKEN)), 64),
        ("all at once, twice", (("g", at_once), ("h", longer)), 128),
        ("all at once, last logit first", (("g", last_row), ("h", longer)), 128),
        ("no past in the prompt", ((prompt, PROMPT.without(*no_past)), (token, TOKEN)), 64),
        ("no key input in the prompt", ((prompt, PROMPT.without(no_past[0])), (token, TOKEN)), 64),
        (
            "no key output in the prompt",
            ((prompt, PROMPT.without("past_key_0_out")), (token, TOKEN)),
            64,
        ),
        ("no value input", ((prompt, PROMPT.without(value)),), 64),
        ("no value input, long", (("g", language(16, 512).without(value)),), 512),
        ("no value input, with token", ((prompt, PROMPT.without(value)), (token, TOKEN)), 64),
    ):
        yield Case(f"cache: {label}", graphs_of, context, quick=False)
    uneven = (("t_1_of_2", one), ("t_2_of_2", two), (prompt, PROMPT))
    yield Case("cache: split counts differ", uneven, quick=False)


def cases() -> list[Case]:
    """All cases; their names are unique."""
    return [
        *_named(),
        *_fallbacks(),
        *_ordered(),
        *_tensors(),
        *_contexts(),
        *_caches(),
    ]


def parts(wanted: Sequence[Case]) -> dict[str, Part]:
    """Every binary that the cases need, by file name."""
    return {file: part for case in wanted for file, part in case.binaries().items()}


def graphs(wanted: Sequence[Case]) -> dict[str, Sequence[Any]]:
    """What `genie_models.build` takes."""
    return {file: [graph(*part)] for file, part in parts(wanted).items()}


TOKENIZER = "tokenizer.json"
EXTENSIONS = "htp_backend_ext_config.json"


def write_files(folder: Path) -> None:
    """A tokenizer that knows the letters, and the extensions file."""
    words = ["<unk>", "<s>", "</s>", *map(chr, range(97, 123)), "x1", "x2", "x3"]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": words[0],
        },
    }
    device = {
        "soc_model": OPTIONS.soc_id,
        "dsp_arch": OPTIONS.dsp_arch,
        "cores": [{"core_id": 0, "perf_profile": "burst"}],
    }
    (folder / TOKENIZER).write_text(json.dumps(tokenizer))
    (folder / EXTENSIONS).write_text(json.dumps({"devices": [device]}))


def write_case(folder: Path, case: Case, mark: str = "") -> Path:
    """The case's config, beside its binaries; ``mark`` goes into the file's name."""
    htp: dict[str, Any] = {
        "version": 1,
        "spill-fill-bufsize": 0,
        "use-mmap": False,
        "mmap-budget": 0,
        "poll": False,
        "cpu-mask": "0x1",
        "kv-dim": HEAD_DIM,
        "pos-id-dim": HEAD_DIM // 2,
        "rope-theta": 10000,
    }
    htp.update(case.backend)
    config = {
        "dialog": {
            "version": 1,
            "type": "basic",
            "context": {
                "version": 1,
                "size": case.context,
                "n-vocab": VOCABULARY,
                "bos-token": 1,
                "eos-token": 2,
            },
            "sampler": {"version": 1, "seed": 42, "temp": 1.0, "top-k": 1, "top-p": 1.0},
            "tokenizer": {"version": 1, "path": TOKENIZER},
            "engine": {
                "version": 1,
                "n-threads": 1,
                "backend": {
                    "version": 1,
                    "type": "QnnHtp",
                    "QnnHtp": {key: value for key, value in htp.items() if value is not None},
                    "extensions": EXTENSIONS,
                },
                "model": {
                    "version": 1,
                    "type": "binary",
                    "binary": {"version": 1, "ctx-bins": list(case.binaries())},
                    **dict(case.model),
                },
            },
        }
    }
    path = folder / f"{case.name.replace(' ', '_')}{mark}.json"
    path.write_text(json.dumps(config))
    return path
