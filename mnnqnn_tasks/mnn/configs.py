"""The JSON configs of a model folder, read so that no surprise is left for later.

MNN's JSON reader is silent where Python's is and where it is not: of a key that stands
twice the first counts, a value of the wrong type counts as 0 or an empty text, and after
a syntax error there are no values at all.  All of that is refused here.  Keys and types
are those of ``llmconfig.hpp`` in MNN's LLM engine.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import ModelFileError

EXPORT_AGAIN = "copy the whole model folder, or export the model again with MNN's exporter"

#: Configs nest three or four levels; writing one that nests without end would fail.
_MAX_DEPTH = 100
#: Python and MNN agree on numbers of this size; larger ones lose digits in MNN.
_MAX_WHOLE = 1 << 63


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_WHOLE = "a whole number"
_TESTS: dict[str, Callable[[object], bool]] = {
    "text": lambda value: isinstance(value, str),
    "true or false": lambda value: isinstance(value, bool),
    _WHOLE: _is_whole,
    "a number": lambda value: _is_whole(value) or isinstance(value, float),
    "a list of whole numbers": lambda v: isinstance(v, list) and all(map(_is_whole, v)),
    "an object or a list": lambda value: isinstance(value, dict | list),
}

#: What MNN takes the keys for that a text LLM is loaded and run with.
_KEYS = {
    "text": (
        *("attention_mask", "attention_type", "backend_type", "precision", "memory", "power"),
        *("sampler_type", "penalty_sampler", "tmp_path", "system_prompt", "prompt_template"),
        *("chat_template", "bos", "prefix_cache_path"),
    ),
    "true or false": (
        *("is_mrope", "is_visual", "is_audio", "is_single", "has_talker", "has_deepstack"),
        *("use_template", "use_mmap", "use_cached_mmap", "kvcache_mmap", "reuse_kv"),
        *("prompt_cache", "all_logits", "attention_fused"),
    ),
    _WHOLE: (
        *("sliding_window", "mrope_axes", "thread_num"),
        *("max_position_embeddings", "max_all_tokens", "max_new_tokens", "top_k", "topK"),
        *("penalty_window", "n_gram", "dynamic_option", "mmap_size", "timeout_ms"),
    ),
    "a number": (
        *("temperature", "top_p", "topP", "min_p", "minP", "tfs_z", "tfsZ", "typical"),
        *("repetition_penalty", "penalty", "presence_penalty", "frequency_penalty"),
        *("ngram_factor", "attn_scale"),
    ),
    "a list of whole numbers": ("key_value_shape", "banned_tokens", "chunk_limits"),
    "an object or a list": ("tie_embeddings",),
}
_TYPES = {key: kind for kind, keys in _KEYS.items() for key in keys}

#: Smallest and largest value of keys that sizes are made from.
_LIMITS = {"sliding_window": (0, (1 << 31) - 1), "mrope_axes": (0, 255)}


class _Twice(Exception):
    """Internal: an object has a key twice."""


def trouble(path: str | os.PathLike[str]) -> str | None:
    """Why there is no regular file at ``path``, or ``None`` if there is one."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if os.path.islink(path):
            return f"it is a link to {os.readlink(path)}, which does not exist"
        return "it does not exist"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    if stat.S_ISDIR(mode):
        return "it is a folder"
    return None if stat.S_ISREG(mode) else "it is neither a file nor a folder"


def load_config(path: Path) -> dict[str, Any]:
    """The object in the JSON file at ``path``: finite numbers, text that UTF-8 can hold.

    Raises:
        ModelFileError: when it cannot be read, is no JSON object, has a key twice or a
            value that MNN would not take; with file and key.
    """
    why = trouble(path)
    if why is not None:
        raise ModelFileError(
            "cannot read the model's configuration", where=str(path), why=why, todo=EXPORT_AGAIN
        )
    try:
        value = json.loads(path.read_bytes().decode("utf-8"), object_pairs_hook=_object)
    except OSError as error:
        raise ModelFileError(
            "cannot read the model's configuration",
            where=str(path),
            why=error.strerror,
            todo=EXPORT_AGAIN,
        ) from error
    except _Twice as error:
        raise _wrong(path, str(error), "the key stands twice", "remove one of the two") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            "the model's configuration is not valid JSON",
            where=str(path),
            why=str(error),
            todo=EXPORT_AGAIN,
        ) from error
    if not isinstance(value, dict):
        raise ModelFileError(
            "the model's configuration is not a JSON object",
            where=str(path),
            why=f"it is {_show(value)}",
            todo=EXPORT_AGAIN,
        )
    _check_values(path, value)
    _check_types(path, value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise _Twice(key)
        made[key] = value
    return made


def _check_values(path: Path, config: dict[str, Any]) -> None:
    """Refuse what no JSON file may hold: Python's reader lets it through."""
    waiting: list[tuple[str, Any, int]] = [("", config, 0)]
    while waiting:
        place, value, depth = waiting.pop()
        if depth > _MAX_DEPTH:
            raise _wrong(path, place[:60], f"it nests more than {_MAX_DEPTH} levels")
        if isinstance(value, dict):
            for key, item in value.items():
                _check_text(path, f"{place}.{key}" if place else key, key)
                waiting.append((f"{place}.{key}" if place else key, item, depth + 1))
        elif isinstance(value, list):
            waiting.extend((f"{place}[{i}]", item, depth + 1) for i, item in enumerate(value))
        elif isinstance(value, str):
            _check_text(path, place, value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise _wrong(path, place, f"{value} is no number that JSON knows")
        elif _is_whole(value) and abs(value) >= _MAX_WHOLE:
            raise _wrong(path, place, f"the number {_show(value)} is too large")


def _check_text(path: Path, place: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _wrong(path, place, f"{_show(text)} has half of a surrogate pair") from error


def _check_types(path: Path, config: dict[str, Any]) -> None:
    for key, value in config.items():
        kind = _TYPES.get(key)
        if kind is not None and not _TESTS[kind](value):
            raise _wrong(path, key, f"it is {_show(value)}, not {kind}")
        if key in _LIMITS:
            low, high = _LIMITS[key]
            if not low <= value <= high:
                raise _wrong(path, key, f"it is {value}, not from {low} to {high}")


def is_tied(settings: Mapping[str, Any]) -> bool:
    """Whether ``tie_embeddings`` describes the embeddings: MNN ignores an empty list."""
    return bool(settings.get("tie_embeddings", []) != [])


def embeddings_in_weight(settings: Mapping[str, Any]) -> bool:
    """Whether token embeddings are read from the weight file rather than a file of their own.

    Args:
        settings: both configs merged.
    """
    tied = settings.get("tie_embeddings")
    if isinstance(tied, Mapping):
        return bool(tied.get("weight_offset", 0))
    return is_tied(settings) and isinstance(tied, list) and bool(tied[0])


def _show(value: object) -> str:
    """A value for a message, short and without what a terminal cannot show."""
    try:
        text = json.dumps(value)
    except RecursionError:
        text = type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."


def _wrong(
    path: Path, key: str, why: str, todo: str = "correct it, or export the model again"
) -> ModelFileError:
    shown = key.encode("utf-8", "backslashreplace").decode("utf-8")
    return ModelFileError(
        "the model's configuration has a wrong value",
        where=f"{path}: {shown}",
        why=why,
        todo=todo,
    )
