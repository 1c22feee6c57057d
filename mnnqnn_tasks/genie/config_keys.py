"""The keys of ``genie_config.json``: which there are, which are needed, of what type.

libGenie refuses unknown keys, missing ones and wrong types before it looks at a graph.  The
table is what libGenie 1.18 to 1.21 (QAIRT 2.47 to 2.51) say when they are asked about one key
at a time; 2.42 is taken for 2.47.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mnnqnn_tasks.genie.versions import Version


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_share(value: object) -> bool:
    return _is_number(value) and 0 <= value <= 1  # type: ignore[operator]


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_token(value: object) -> bool:
    return _is_int(value) or (isinstance(value, list) and bool(value) and all(map(_is_int, value)))


_TYPES: Mapping[str, Callable[[object], bool]] = {
    "1": lambda value: _is_int(value) and value == 1,
    "a whole number": _is_int,
    "a whole number from 0": _is_count,
    "a number of tokens": _is_count,  # the same, and no release takes less
    "a whole number below 2147483648": lambda value: _is_int(value) and value < 1 << 31,  # type: ignore[operator]
    "a number": _is_number,
    "a number from 0": lambda value: _is_number(value) and value >= 0,  # type: ignore[operator]
    "a number from 0 to 1": _is_share,
    "a text": lambda value: isinstance(value, str),
    "true or false": lambda value: isinstance(value, bool),
    "an object": lambda value: isinstance(value, dict),
    "a list of texts": _is_texts,
    "a token id or a list of them": _is_token,
    "a text or a list of texts": lambda value: isinstance(value, str) or _is_texts(value),
    "an object or a list of them": lambda value: isinstance(value, dict | list),
    "anything": lambda value: True,
}


#: Types with a range, by the type alone; releases before this one take any number.
_RANGES = {
    "a whole number from 0": "a whole number",
    "a whole number below 2147483648": "a whole number",
    "a number from 0": "a number",
    "a number from 0 to 1": "a number",
}
BOUNDED = Version(2, 51)

#: First release that takes more than one backend extensions file.
LISTED = Version(2, 49)


@dataclass(frozen=True)
class Key:
    """A key of a block.

    Attributes:
        kind: key of the table of types.
        needed: libGenie refuses a config without it.
        choices: the texts that it may be; empty for any.
        since: first release that knows it, None for all known ones.
    """

    kind: str
    needed: bool = False
    choices: tuple[str, ...] = ()
    since: Version | None = None

    def fits(self, value: object) -> bool:
        """Whether a value is of the type."""
        return _TYPES[self.kind](value)

    def refused_since(self, value: object) -> Version | None:
        """First release that refuses a value that does not fit, None for all known ones."""
        loose = _RANGES.get(self.kind)
        return BOUNDED if loose is not None and _TYPES[loose](value) else None


Block = Mapping[str, Key]


def _keys(
    kind: str, *names: str, needed: bool = False, since: Version | None = None
) -> dict[str, Key]:
    return {name: Key(kind, needed, since=since) for name in names}


_2_48, _2_49, _2_50, _2_51 = (Version(2, minor) for minor in (48, 49, 50, 51))
_VERSION = {"version": Key("1", needed=True)}

#: Keys by the block's place; ``engine`` may be a list of such blocks.
BLOCKS: Mapping[str, Block] = {
    "": {"dialog": Key("an object", needed=True)},
    "dialog": {
        **_VERSION,
        "type": Key(
            "a text",
            needed=True,
            choices=("basic", "ssd-q1", "lade", "spd", "multistream", "eaglet", "kv-share"),
        ),
        **_keys("an object", "context", "tokenizer", needed=True),
        "engine": Key("an object or a list of them", needed=True),
        "sampler": Key("an object"),
        **_keys("a list of texts", "stop-sequence"),
        **_keys("a number of tokens", "max-num-tokens"),
        **_keys("an object", "embedding", "perlayer-embedding", "debug"),
        **_keys("an object", "harmony", since=_2_48),
        **_keys("an object", "ssd-q1", "lade", "spd", "multistream", "eaglet", "kv-share"),
        **_keys("an object or a list of them", "nested-generator", "nested-policy", since=_2_48),
        **_keys("anything", "accumulator-size"),
        **_keys("anything", "callback-type", since=_2_48),
    },
    "dialog.context": {
        **_VERSION,
        **_keys("a whole number from 0", "size", "n-vocab", needed=True),
        "bos-token": Key("a whole number", needed=True),
        "eos-token": Key("a token id or a list of them", needed=True),
        **_keys("a whole number", "eot-token", "img-token", "pad-token"),
        **_keys("a whole number", "embedding-length", since=_2_51),
        **_keys("a whole number from 0", "draft-n-vocab", "n-embd"),
    },
    "dialog.sampler": {
        **_VERSION,
        "type": Key("a text", choices=("basic", "custom")),
        "seed": Key("a whole number below 2147483648"),
        "temp": Key("a number from 0"),
        "top-p": Key("a number from 0 to 1"),
        "top-k": Key("a whole number from 0"),
        "greedy": Key("true or false"),
        "callback-name": Key("a text"),
        "token-penalty": Key("an object"),
    },
    "dialog.sampler.token-penalty": {
        **_VERSION,
        "penalize-last-n": Key("a whole number from 0"),
        **_keys("a number", "repetition-penalty", "presence-penalty", "frequency-penalty"),
    },
    "dialog.tokenizer": {**_VERSION, "path": Key("a text", needed=True)},
    "dialog.engine": {
        **_VERSION,
        "n-threads": Key("a whole number from 0", needed=True),
        **_keys("an object", "backend", "model", needed=True),
        **_keys("a text", "type", "role"),
        **_keys("an object", "longcontext", "training-config", "optimizer-config"),
        **_keys("an object", "batching", since=_2_49),
        "cache-groups": Key("an object or a list of them"),
    },
    "dialog.engine.backend": {
        **_VERSION,
        "type": Key(
            "a text",
            needed=True,
            choices=("QnnHtp", "QnnGenAiTransformer", "GTE", "QnnGpu", "libtorch"),
        ),
        "extensions": Key("a text or a list of texts"),
        "device": Key("a text"),
        **_keys("an object", "QnnHtp", "QnnGenAiTransformer", "GTE", "QnnGpu"),
    },
    "dialog.engine.backend.QnnHtp": {
        **_VERSION,
        **_keys("a whole number from 0", "spill-fill-bufsize", "mmap-budget", needed=True),
        **_keys("true or false", "use-mmap", "poll", needed=True),
        "cpu-mask": Key("a text", needed=True),
        # Not asked for by the schema; without it the loader stops at a JSON type error.
        "kv-dim": Key("a whole number", needed=True),
        "pos-id-dim": Key("a whole number"),
        "rope-theta": Key("a number"),
        **_keys("a whole number from 0", "batch-size", "data-alignment-size"),
        **_keys("a whole number from 0", "batch-multiplier", since=_2_49),
        **_keys(
            "true or false",
            "shared-engine",
            "allow-async-init",
            "enable-graph-switching",
            "weight-shared-lora",
            "skip-lora-validation",
        ),
        **_keys("true or false", "allow-async-enqueue", "multi-nsp-prefill", since=_2_49),
        **_keys("true or false", "direct-io", since=_2_50),
        "graph-switching-lora-policy": Key("a text", choices=("lazy", "eager")),
        "kv-update-method": Key("a text"),
        **_keys("a list of texts", "graph-retention-order"),
        **_keys("a list of texts", "execute-select-graphs", since=_2_51),
    },
    "dialog.engine.model": {
        **_VERSION,
        "type": Key(
            "a text", needed=True, choices=("binary", "library", "scopgpt-gguf", "checkpoint")
        ),
        **_keys("an object", "binary", "library", "scopgpt-gguf", "checkpoint"),
        "positional-encoding": Key("an object"),
        **_keys("a text", "mask-type", "draft-token-map"),
        **_keys("true or false", "cross-attention", "linear-attention"),
    },
    "dialog.engine.model.binary": {
        **_VERSION,
        **_keys("a list of texts", "ctx-bins", "fcb"),
        "lora": Key("an object"),
    },
}
