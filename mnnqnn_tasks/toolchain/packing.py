"""The form in which the result of a stage is in a store, and back.

The raw files of a graph are links to its blobs: an entry has the blobs, each once, and which
file is a link to which.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnnqnn_tasks.cache.entry import Entry
from mnnqnn_tasks.files import disk_errors, link_or_copy, sha256_file

#: Where the blobs of a graph are in its entry; names of raw files that are links to them.
_BLOBS, _LINKS = "blobs/", "links"

#: What is recorded of a file: size, time, digest.
Record = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Packed:
    """The result of a stage, as a store takes it.

    Attributes:
        files: paths by name in the entry.
        digests: hex SHA-256 by name in the entry.
        values: JSON values.
    """

    files: dict[str, Path]
    digests: dict[str, str]
    values: dict[str, Any]


def record(
    made: Iterable[str], digests: Mapping[str, str], store: str, blobs: Iterable[str]
) -> dict[str, list[Any]]:
    """Size, time and digest of the files that a stage made, by path.

    ``digests`` are those that the stage knows.  Most bytes of a graph are links to blobs,
    whose name is their digest.  Neither is read again.

    Args:
        store: the folder of the blobs.

    Raises:
        DiskError: a file is not there.
    """
    known = {}
    for digest in blobs:
        blob = os.path.join(store, digest)
        with disk_errors(blob):
            info = os.stat(blob)
        known[info.st_dev, info.st_ino] = digest
    found = {}
    for path in sorted(made):
        with disk_errors(path):
            info = os.stat(path)
            told = digests.get(path) or known.get((info.st_dev, info.st_ino))
            digest = told or sha256_file(path)
        found[path] = [info.st_size, info.st_mtime_ns, digest]
    return found


def pack(base: str, store: str, record: Record, values: Mapping[str, Any]) -> Packed:
    """The result of a stage for a store.

    Args:
        base: folder that the names of the files count from.
        store: the folder of the blobs.
        record: of every file that it made, by path.
        values: what it returned; of its blobs their digests are of use elsewhere as well.
    """
    blobs = values.get("blobs", {})
    names = {path: os.path.relpath(path, base) for path in record}
    links = {names[p]: was[2] for p, was in record.items() if was[2] in blobs}
    files = {name: Path(path) for path, name in names.items() if name not in links}
    files |= {_BLOBS + digest: Path(store, digest) for digest in blobs}
    digests = {names[path]: str(was[2]) for path, was in record.items()}
    digests |= {_BLOBS + digest: digest for digest in blobs}
    said = {name: value for name, value in values.items() if name != "blobs"}
    if links:
        said[_LINKS] = links
    return Packed(files, digests, said)


def is_blob(name: str) -> bool:
    """Whether the file of that name in an entry is a blob."""
    return name.startswith(_BLOBS)


def place(base: str, store: str, name: str) -> Path:
    """Where the file of a name in an entry belongs."""
    if is_blob(name):
        return Path(store, name.removeprefix(_BLOBS))
    return Path(base, name)


def unpack(base: str, store: str, entry: Entry) -> tuple[list[str], dict[str, Any]]:
    """What the stage gave; the files of its entry are in their `place` already.

    Raises:
        DiskError: a link cannot be made.
    """
    own = [file.name for file in entry.files if not is_blob(file.name)]
    made = [str(place(base, store, name)) for name in own]
    made += _link(base, store, entry)
    values = {name: value for name, value in entry.values.items() if name != _LINKS}
    blobs = [f.name.removeprefix(_BLOBS) for f in entry.files if is_blob(f.name)]
    if blobs:
        from mnnqnn_tasks.translate import blobstore

        values["blobs"] = blobstore.stamps(Path(store), blobs)
    return made, values


def _link(base: str, store: str, entry: Entry) -> list[str]:
    """Make the raw files of a graph links to its blobs again."""
    links = entry.values.get(_LINKS, {})
    if links:
        for old in Path(base).glob("*.raw"):
            if old.name not in links:
                with disk_errors(old):
                    old.unlink(missing_ok=True)
    made = []
    for name, digest in links.items():
        path = os.path.join(base, name)
        link_or_copy(os.path.join(store, digest), path)
        made.append(path)
    return made
