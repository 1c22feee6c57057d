"""Looks an action up in the cache before it is done, and keeps what it made.

The key of an action covers what its result depends on and nothing else: the stage's key
(versions, options, libraries) and the content of every file that it reads, under names
that are the same in every build folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnnqnn_tasks.cache.entry import Entry
from mnnqnn_tasks.cache.keys import action_key
from mnnqnn_tasks.cache.store import Cache
from mnnqnn_tasks.files import disk_errors, link_or_copy, sha256_file
from mnnqnn_tasks.tasks.session import GenieJob, Job
from mnnqnn_tasks.toolchain import native

#: Where the blobs of a graph are in its entry; names of raw files that are links to them.
_BLOBS, _LINKS = "blobs/", "links"

#: What a stage gives: the files that it made, and values to remember.
Outcome = tuple[list[str], dict[str, Any]]

#: What is recorded of a file: size, time, digest.
Record = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Action:
    """What a task does, as the cache knows it.

    Attributes:
        stage: the stage's name and version, for people.
        key: JSON values that the result depends on beside files.
        reads: the files that it reads, by the same name in every build folder.
        base: folder that the names of the files that it makes count from.
        tidy: the toolchain's function that puts the rest of the folder in order when the
            files come from the cache, given ``base`` and their paths.
    """

    stage: str
    key: Mapping[str, Any]
    reads: Mapping[str, str]
    base: str
    tidy: str = ""

    def digest(self) -> str:
        """The action's key, hex SHA-256.

        Raises:
            OSError: a file that it reads cannot be read.
        """
        inputs = {name: sha256_file(path) for name, path in self.reads.items()}
        return action_key(self.stage, {"key": dict(self.key), "reads": inputs})


def take(cache: Cache, job: Job | GenieJob, action: Action, key: str) -> Outcome | None:
    """The result of an action from the cache, put in place; ``None`` if it must be done.

    Raises:
        DiskError: a file cannot be put in place.
    """
    entry = cache.lookup(key)
    if entry is None:
        return None

    def place(name: str) -> Path:
        if name.startswith(_BLOBS):
            return Path(job.layout.blobs, name.removeprefix(_BLOBS))
        return Path(action.base, name)

    if not cache.restore(entry, place):
        return None
    made = [str(place(file.name)) for file in entry.files if not file.name.startswith(_BLOBS)]
    made += _link(job, action.base, entry)
    if action.tidy:
        getattr(native, action.tidy)(action.base, made)
    values = {name: value for name, value in entry.values.items() if name != _LINKS}
    blobs = [f.name.removeprefix(_BLOBS) for f in entry.files if f.name.startswith(_BLOBS)]
    if blobs:
        from mnnqnn_tasks.translate import blobstore

        values["blobs"] = {d: blobstore.stamp(Path(job.layout.blobs), d) for d in blobs}
    return made, values


def _link(job: Job | GenieJob, base: str, entry: Entry) -> list[str]:
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
        link_or_copy(os.path.join(job.layout.blobs, digest), path)
        made.append(path)
    return made


def keep(
    cache: Cache,
    job: Job | GenieJob,
    action: Action,
    key: str,
    record: Record,
    values: Mapping[str, Any],
    seconds: float,
) -> None:
    """Add what an action made to the cache.

    Args:
        record: of every file that it made, by path.
        values: what it returned; of its blobs their digests are of use elsewhere as well.
    """
    blobs = values.get("blobs", {})
    names = {path: os.path.relpath(path, action.base) for path in record}
    links = {names[p]: was[2] for p, was in record.items() if was[2] in blobs}
    files = {name: Path(path) for path, name in names.items() if name not in links}
    files |= {_BLOBS + digest: Path(job.layout.blobs, digest) for digest in blobs}
    digests = {names[path]: str(was[2]) for path, was in record.items()}
    digests |= {_BLOBS + digest: digest for digest in blobs}
    said = {name: value for name, value in values.items() if name != "blobs"}
    if links:
        said[_LINKS] = links
    cache.save(key, action.stage, files, said, seconds, digests)


def through(
    cache: Cache | None,
    job: Job | GenieJob,
    action: Action | None,
    work: Callable[[], Outcome],
) -> tuple[Outcome, dict[str, Any]]:
    """The result of an action, from the cache or by ``work``; what became of it.

    The second value is what a task's record has as ``cache``: ``outcome`` (``hit``,
    ``miss`` or ``off``) and ``key``.
    """
    if cache is None or action is None:
        return work(), {"outcome": "off", "key": None}
    try:
        key = action.digest()
    except OSError:  # the stage meets the same trouble and knows what to say
        return work(), {"outcome": "off", "key": None}
    taken = take(cache, job, action, key)
    if taken is not None:
        return taken, {"outcome": "hit", "key": key}
    return work(), {"outcome": "miss", "key": key}
