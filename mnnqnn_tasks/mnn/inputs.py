"""Inputs for one forward pass of an LLM: real embeddings, a causal mask, positions.

Names, order, shapes and types are those of MNN's ``generateLlmIO``.  The values are not:
they are the embeddings of a text, so that activations are what the model was trained
and calibrated on.  They depend on the model's files and the shape alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn import reader, samples
from mnnqnn_tasks.mnn.embedding import Embedding, open_embedding
from mnnqnn_tasks.mnn.folder import ModelFolder, open_folder
from mnnqnn_tasks.mnn.samples import Sample
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.mnn.tokenizer import Tokenizer, open_tokenizer

#: Where the kind of a model is described.
CONFIG_FILE = "llm_config.json"

#: What the sample says: every letter, in the register that calibration texts have.
TEXT = "the quick brown fox jumps over the lazy dog"

#: The order in which MNN's tools pass inputs; others follow in the model's order.
ORDER = ("input_ids", "attention_mask", "position_ids", "logits_index")

#: Where the one token of a decode pass stands.  On a device it follows a history; at
#: position 0 every rotary angle is 0, and half of the rotary arithmetic would be idle.
DECODE_POSITION = 5

#: Scales the sum of four uniform 16-bit numbers, deviation 65536 / sqrt(3), to 0.05.
_UNIT = np.float32(0.05 * 3**0.5 / 65536)
_LOWEST = np.finfo(np.float32).min


@dataclass(frozen=True)
class _Request:
    """What one input is made from: its Input op and the pass it is for."""

    name: str
    dims: tuple[int, ...]
    dtype: str
    seq: int
    config: Mapping[str, Any]
    rows: Callable[[int], npt.NDArray[np.float32]]

    def unknown(self, why: str) -> ModelFileError:
        return ModelFileError(
            f"cannot make the model's input {self.name}",
            why=why,
            todo="export the model as a plain text LLM",
        )


def splitmix64(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """``count`` pseudo-random 64-bit numbers, the same on every platform (SplitMix64)."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed.astype("<u8")


def opening(config: Mapping[str, Any], tokenizer: Tokenizer) -> list[int]:
    """The token that every prompt of the model begins with, if it has one.

    It is the first special token of the chat template.  Without it the first position
    would be what the model never saw in training nor in calibration.

    Args:
        config: ``llm_config.json``.
    """
    if tokenizer.prefix:
        return list(tokenizer.prefix)
    spec = config.get("jinja")
    template = spec.get("chat_template") if isinstance(spec, Mapping) else None
    text = template if isinstance(template, str) else tokenizer.chat_template
    found = [(text.find(special), token) for special, token in tokenizer.special.items()]
    return [token for place, token in sorted(found) if place >= 0][:1]


def sample_tokens(folder: ModelFolder, embedding: Embedding, count: int) -> list[int]:
    """``count`` token ids: the `opening`, then `TEXT` again and again.

    Pseudo-random ones if the model has no tokenizer.
    """
    tokenizer = open_tokenizer(folder)
    text: list[int] = []
    if tokenizer is not None:
        text = opening(folder.llm_config, tokenizer)
        text += tokenizer.encode(" " + TEXT, prefix=False) * count
    if len(text) >= count and max(text) < embedding.count:
        return text[:count]
    return [int(value % np.uint64(embedding.count)) for value in splitmix64(count, count)]


def _pseudo_embeddings(hidden: int, count: int) -> npt.NDArray[np.float32]:
    """Rows without an embedding file: sums of uniform numbers, mean 0, deviation 0.05.

    Exact in integers until one last scaling, so that no platform differs.
    """
    bits = splitmix64(hidden, count * hidden)
    parts = bits.view(np.uint8).reshape(-1, 4, 2).astype(np.int64) @ np.array([1, 256])
    centred = parts.sum(axis=1) - 2 * 0xFFFF
    scaled: npt.NDArray[np.float32] = centred.astype(np.float32) * _UNIT
    return scaled.reshape(count, hidden)


def _embeddings(item: _Request) -> Sample:
    hidden = int(item.config["hidden_size"])
    if item.dtype != "DT_FLOAT" or len(item.dims) != 3 or item.dims[-1] != hidden:
        raise item.unknown(f"it is {item.dtype} {list(item.dims)}, not embeddings of {hidden}")
    return Sample(item.rows(item.seq).reshape(item.seq, 1, hidden))


def _causal(seq: int, window: int | None = None) -> npt.NDArray[np.bool_]:
    """Where a query (row) may look at a key (column)."""
    query, key = np.arange(seq)[:, None], np.arange(seq)[None, :]
    allowed = key <= query
    return allowed if window is None else allowed & (key > query - window)


#: What MNN's runtime makes of each kind of mask; a model with another input crashes it.
_MASK_TYPES = {"float": "DT_FLOAT", "int": "DT_INT32", "glm2": "DT_INT32"}


def _check_mask(item: _Request, kind: object) -> None:
    made = _MASK_TYPES.get(str(kind), item.dtype)
    if made != item.dtype:
        fitting = [f'"{name}"' for name, dtype in _MASK_TYPES.items() if dtype == item.dtype]
        said = (
            f"it is {kind!r}" if "attention_mask" in item.config else f"without it {kind!r} holds"
        )
        raise ModelFileError(
            "attention_mask contradicts the model",
            where=f"{CONFIG_FILE}: attention_mask",
            why=f"{said}, for which MNN's runtime makes a mask of {made}; "
            f"the model's input attention_mask is {item.dtype}",
            todo=f'set "attention_mask": {" or ".join(fitting)} in {CONFIG_FILE}'
            if fitting
            else "export the model again",
        )


def _mask(item: _Request) -> Sample:
    kind = item.config.get("attention_mask", "int")
    _check_mask(item, kind)
    seq = item.seq
    if kind == "float":
        if len(item.dims) == 5 or item.config.get("attention_type") == "mix":
            allowed = np.stack([_causal(seq), _causal(seq, item.config.get("sliding_window", 0))])
            allowed = allowed.reshape(2, 1, 1, seq, seq)
        else:
            allowed = _causal(seq).reshape(1, 1, seq, seq)
        return Sample(np.where(allowed, np.float32(0), _LOWEST))
    if kind == "int":
        return Sample(_causal(seq).astype(np.int32).reshape(1, 1, seq, seq))
    if kind == "glm2":
        return Sample((~_causal(seq)).astype(np.int32).reshape(1, 1, seq, seq))
    raise item.unknown(f"attention_mask of llm_config.json is {kind!r}")


def _positions(item: _Request) -> Sample:
    if item.dtype != "DT_INT32" or len(item.dims) != 2:
        raise item.unknown(f"it is {item.dtype} {list(item.dims)}, not int32 [axes, positions]")
    axes = int(item.config.get("mrope_axes", 3)) if item.config.get("is_mrope") else 1
    rows = item.dims[0] if item.dims[0] > 0 else axes
    start = DECODE_POSITION if item.seq == 1 else 0
    # Text has the same position on every axis of a multi-axis rotary embedding.
    return Sample(np.tile(np.arange(start, start + item.seq, dtype=np.int32), (rows, 1)))


def _logits_index(item: _Request) -> Sample:
    """-1 asks for the last position only, 0 for all."""
    return Sample(np.array([-1 if item.seq == 1 else 0], np.int32), "NHWC")


def _deepstack(item: _Request) -> Sample:
    """What images add to the first layers; a text adds nothing."""
    if item.dtype != "DT_FLOAT" or len(item.dims) != 3 or item.dims[0] < 1:
        raise item.unknown(f"it is {item.dtype} {list(item.dims)}")
    hidden = int(item.config["hidden_size"])
    return Sample(np.zeros((item.dims[0], item.seq, hidden), np.float32))


_MAKERS: dict[str, Callable[[_Request], Sample]] = {
    "input_ids": _embeddings,
    "attention_mask": _mask,
    "position_ids": _positions,
    "logits_index": _logits_index,
    "deepstack_embeds": _deepstack,
}


def input_ops(net: Table) -> list[Table]:
    """The model's Input ops in the order of MNN's tools."""
    ops = [op for op in net.oplists or () if op.type == "Input"]
    known = {name: place for place, name in enumerate(ORDER)}
    return sorted(ops, key=lambda op: known.get(op.name, len(ORDER)))


def make_samples(
    config: Mapping[str, Any],
    net: Table,
    seq: int,
    rows: Callable[[int], npt.NDArray[np.float32]] | None = None,
) -> dict[str, Sample]:
    """The inputs of one pass over ``seq`` tokens, by name, in MNN's order.

    Args:
        config: ``llm_config.json``, or both configs merged.
        net: the model; its Input ops say which inputs there are.
        rows: gives the embeddings, float32 [count, hidden], of a number of tokens;
            pseudo-random ones if ``None``.

    Raises:
        ModelFileError: when the model has no inputs or one that is not known here.
    """
    hidden = int(config["hidden_size"])
    made: dict[str, Sample] = {}
    for op in input_ops(net):
        main = op.main if isinstance(op.main, Table) else Table("Input")
        dims = tuple(int(d) for d in main.dims) if main.dims is not None else ()
        give = rows or (lambda count: _pseudo_embeddings(hidden, count))
        item = _Request(op.name or "", dims, str(main.dtype), seq, config, give)
        maker = _MAKERS.get(item.name)
        if maker is None:
            raise item.unknown("text LLMs of MNN's exporter have no input of this name")
        made[item.name] = maker(item)
    if not made:
        raise ModelFileError("the model has no inputs", todo="export the model again")
    return made


def make_inputs(
    llm_config: Mapping[str, Any],
    net: Table,
    shape: int,
    rows: Callable[[int], npt.NDArray[np.float32]] | None = None,
) -> Table:
    """``input.mnn`` for one pass over ``shape`` tokens, as a tree; see `make_samples`."""
    return samples.to_table(make_samples(llm_config, net, shape, rows))


def folder_samples(
    folder: ModelFolder,
    net: Table,
    seq: int,
    rows: Callable[[int], npt.NDArray[np.float32]] | None = None,
) -> dict[str, Sample]:
    """`make_samples` for the model in ``folder``, whose errors name the file at fault."""
    longest = folder.settings.get("max_position_embeddings")
    if longest and seq > longest:
        raise ModelFileError(
            f"the model cannot read {seq} tokens at once",
            where=str(folder.path / CONFIG_FILE),
            why=f"its max_position_embeddings is {longest}",
            todo=f"choose chunk_sizes up to {longest} in the pipeline",
        )
    try:
        return make_samples(folder.settings, net, seq, rows)
    except ModelFileError as error:
        if error.where is None:
            error.where = str(folder.path / folder.model)
        elif error.where.startswith(CONFIG_FILE):
            error.where = str(folder.path / error.where)
        raise


def token_samples(folder: ModelFolder, net: Table, tokens: Sequence[int]) -> dict[str, Sample]:
    """The inputs of one pass over ``tokens``.

    Raises:
        ModelFileError: when the model has no embeddings, or see `make_samples`.
        IndexError: when a token is not in the vocabulary.
    """
    embedding = open_embedding(folder)
    if embedding is None:
        raise ModelFileError("the model has no embeddings", where=str(folder.path))
    made = folder_samples(folder, net, len(tokens), lambda _: embedding.rows(tokens))
    if "logits_index" in made:
        made["logits_index"] = Sample(np.array([0], np.int32), "NHWC")
    return made


def write_inputs(
    model_dir: str | os.PathLike[str], shape: int, path: str | os.PathLike[str]
) -> None:
    """Write ``input.mnn`` for the model in ``model_dir`` and ``shape`` tokens to ``path``.

    Raises:
        ModelFileError: see `make_samples`.
        DiskError: when the file system refuses.
    """
    folder = open_folder(model_dir)
    net = reader.read(folder.path / folder.model)
    embedding = open_embedding(folder)
    rows = None
    if embedding is not None:

        def rows(count: int) -> npt.NDArray[np.float32]:
            return embedding.rows(sample_tokens(folder, embedding, count))

    samples.write(path, folder_samples(folder, net, shape, rows))
