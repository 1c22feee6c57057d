"""An action's result: which files with which content, and the values that go with them.

An entry is one small file, a checksum and canonical JSON::

    <sha256 of the second line> LF
    {"action":...,"cost_seconds":...,"files":[[name,sha256,size],...],"format":1,"key":...,
     "values":{...}} LF

The parser accepts what the writer writes and nothing else: whatever differs is damaged.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mnnqnn_tasks.files import canonical_json, sha256_bytes

#: Version of the form above; entries of another one are not understood.
FORMAT = 1

#: No real entry comes near; a larger file is not read.
MAX_BYTES = 64 << 20

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_FIELDS = {"action", "cost_seconds", "files", "format", "key", "values"}

#: What file systems allow in one name and in a whole path, in bytes.
_MAX_NAME, _MAX_PATH = 255, 4000


class Damaged(ValueError):
    """Bytes that are no entry, or not the entry that they should be."""


def is_digest(text: object) -> bool:
    """Whether ``text`` is a hex SHA-256, as keys and contents are named."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def check_name(name: object) -> str:
    """A file's name: a relative path with ``/`` that stays in its folder everywhere.

    Raises:
        ValueError: it is absolute, leaves its folder, has an empty part, a control
            character or a backslash, or no file system could hold it.
    """
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is no file name")
    parts = name.split("/")
    try:
        sizes = [len(part.encode("utf-8")) for part in parts]
    except UnicodeEncodeError:
        raise ValueError(f"{name!r} is no UTF-8") from None
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{name!r} is no path inside a folder")
    if any(c == "\\" or not c.isprintable() for c in name):
        raise ValueError(f"{name!r} has a character that no file name should have")
    if max(sizes) > _MAX_NAME or sum(sizes) + len(parts) > _MAX_PATH:
        raise ValueError(f"{name[:40]!r}... is too long")
    return name


@dataclass(frozen=True)
class File:
    """A file of an entry.

    Attributes:
        name: relative path with ``/``; see `check_name`.
        sha256: hex digest of the content.
        size: in bytes.

    Raises:
        ValueError: one of them is none.
    """

    name: str
    sha256: str
    size: int

    def __post_init__(self) -> None:
        check_name(self.name)
        if not is_digest(self.sha256):
            raise ValueError(f"{self.sha256!r} is no SHA-256")
        if type(self.size) is not int or self.size < 0:
            raise ValueError(f"{self.size!r} is no size")


@dataclass(frozen=True)
class Entry:
    """What an action made.

    Attributes:
        key: the action's key, hex SHA-256; see `keys.action_key`.
        action: what was done, with its version (``link/1``); for people and statistics.
        files: in the order of their names, each name once.
        values: JSON values that the action returned.
        cost_seconds: how long the action took where it ran.

    Raises:
        ValueError: the parts are no entry.
    """

    key: str
    action: str
    files: tuple[File, ...]
    values: Mapping[str, Any] = field(hash=False)
    cost_seconds: float

    def __post_init__(self) -> None:
        if not is_digest(self.key):
            raise ValueError(f"{self.key!r} is no key")
        if not isinstance(self.action, str) or not self.action:
            raise ValueError(f"{self.action!r} is no action")
        if not isinstance(self.values, Mapping):
            raise ValueError("the values are no mapping")
        cost = self.cost_seconds
        if type(cost) not in (int, float) or not math.isfinite(cost) or cost < 0:
            raise ValueError(f"{cost!r} is no time")
        _check_tree([file.name for file in self.files])

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def contents(self) -> dict[str, int]:
        """Size by digest; two files may have the same content.

        Raises:
            ValueError: the entry gives one content two sizes.
        """
        found: dict[str, int] = {}
        for file in self.files:
            if found.setdefault(file.sha256, file.size) != file.size:
                raise ValueError(f"{file.name!r} has another size than its content")
        return found


def _check_tree(names: list[str]) -> None:
    if names != sorted(set(names)):
        raise ValueError("the files are not in the order of their names, each once")
    folders = {name[:i] for name in names for i, c in enumerate(name) if c == "/"}
    both = folders & set(names)
    if both:
        raise ValueError(f"{min(both)!r} is a file and a folder")


def to_bytes(entry: Entry) -> bytes:
    """The entry's file.

    Raises:
        ValueError, TypeError: a value is no JSON value.
    """
    body = canonical_json(
        {
            "action": entry.action,
            "cost_seconds": entry.cost_seconds,
            "files": [[f.name, f.sha256, f.size] for f in entry.files],
            "format": FORMAT,
            "key": entry.key,
            "values": dict(entry.values),
        }
    ).encode("utf-8")
    return sha256_bytes(body).encode("ascii") + b"\n" + body + b"\n"


def from_bytes(data: bytes, key: str) -> Entry:
    """The entry in ``data``, which must be that of ``key``.

    Raises:
        Damaged: it is not.
    """
    checksum, _, rest = data.partition(b"\n")
    body = rest[:-1]
    if rest[-1:] != b"\n" or checksum != sha256_bytes(body).encode("ascii"):
        raise Damaged("its checksum is wrong")
    try:
        raw = json.loads(body)
        if not isinstance(raw, dict) or raw.keys() != _FIELDS or raw["format"] != FORMAT:
            raise Damaged("it has another form")
        files = tuple(File(name, digest, size) for name, digest, size in raw["files"])
        entry = Entry(raw["key"], raw["action"], files, raw["values"], raw["cost_seconds"])
        entry.contents()
    except Damaged:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise Damaged(str(error)) from None
    if entry.key != key:
        raise Damaged("it belongs to another key")
    return entry
