"""Settings of the cache: what a pipeline says, and the environment, which wins.

Continuous integration differs from a developer's machine by its environment, not by
another pipeline file.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import CacheError

DEFAULT_MAX_BYTES = 20 * 10**9
DEFAULT_TIMEOUT_S = 10.0

#: Seconds; what lies outside is a slip of the keyboard.
_LEAST_TIMEOUT_S, _MOST_TIMEOUT_S = 0.1, 3600.0

#: Environment variables, by the field that they set.
VARIABLES = {
    "enabled": "MNNQNN_CACHE",
    "dir": "MNNQNN_CACHE_DIR",
    "max_bytes": "MNNQNN_CACHE_MAX_SIZE",
    "remote": "MNNQNN_CACHE_REMOTE",
    "read_only": "MNNQNN_CACHE_READ_ONLY",
    "timeout_s": "MNNQNN_CACHE_TIMEOUT_S",
}

_WORDS = {"1": True, "true": True, "yes": True, "on": True}
_WORDS |= {"0": False, "false": False, "no": False, "off": False}

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([kKMGT]?)(i?)B?", re.ASCII)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://.*", re.ASCII)


@dataclass(frozen=True)
class CacheSettings:
    """How the cache is to be used.

    Attributes:
        dir: folder of the local store, absolute; ``None`` for none.
        max_bytes: what the local store holds at most.
        remote: URL of the remote store; ``None`` for none.
        read_only: nothing is added to the remote store, or without one to the local.
        enabled: False for no cache at all.
        timeout_s: seconds without an answer after which the remote store is given up.
    """

    dir: Path | None
    max_bytes: int = DEFAULT_MAX_BYTES
    remote: str | None = None
    read_only: bool = False
    enabled: bool = True
    timeout_s: float = DEFAULT_TIMEOUT_S


def cache_settings(
    said: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> CacheSettings:
    """The settings in force.

    Args:
        said: the pipeline's ``cache:`` mapping; a relative ``dir`` counts from the current
            folder (the pipeline's loader makes it absolute).
        environ: an empty variable counts as unset; ``off`` means no local or remote store.

    Raises:
        CacheError: one of them cannot be understood.
    """
    names = {field: name for name, (field, _) in _FIELDS.items()}
    given = [(f"cache.{name}", name, value) for name, value in said.items()]
    given += [(v, names[f], environ[v]) for f, v in VARIABLES.items() if environ.get(v)]
    values: dict[str, Any] = {"dir": default_dir(environ)}
    for where, name, value in given:
        field, parse = _FIELDS[name]
        try:
            values[field] = parse(value)
        except ValueError as error:
            raise CacheError(f"{value!r} is no setting", where=where, todo=str(error)) from None
    return CacheSettings(**values)


def default_dir(environ: Mapping[str, str]) -> Path | None:
    """``$XDG_CACHE_HOME/mnnqnn`` or ``~/.cache/mnnqnn``; ``None`` for users without a home.

    See the XDG Base Directory Specification: a relative XDG_CACHE_HOME is ignored.
    """
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(base, "mnnqnn") if os.path.isabs(base) else None


def _dir(value: str) -> Path | None:
    if value.lower() == "off":
        return None
    return Path(os.path.abspath(os.path.expanduser(value)))


def _size(value: str) -> int:
    match = _SIZE.fullmatch(value.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError("a number above 0 and a unit: 500 MB, 20 GB, 1.5 TiB")
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(unit.upper() or " "))


def _remote(value: str) -> str | None:
    if value.lower() == "off":
        return None
    if not _URL.fullmatch(value):
        raise ValueError("a URL: s3://BUCKET/FOLDER, gs://..., https://..., file:///FOLDER; or off")
    return value


def _flag(value: str | bool) -> bool:
    word = str(value).strip().lower()
    if word not in _WORDS:
        raise ValueError("one of on, off, true, false, yes, no, 1, 0")
    return _WORDS[word]


def _seconds(value: str | float) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not _LEAST_TIMEOUT_S <= seconds <= _MOST_TIMEOUT_S:
        limits = f"{_LEAST_TIMEOUT_S:g} to {_MOST_TIMEOUT_S:g}"
        raise ValueError(f"a number of seconds, {limits}")
    return seconds


_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "enabled": ("enabled", _flag),
    "dir": ("dir", _dir),
    "max_size": ("max_bytes", _size),
    "remote": ("remote", _remote),
    "read_only": ("read_only", _flag),
    "timeout_s": ("timeout_s", _seconds),
}
