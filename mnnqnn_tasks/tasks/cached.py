"""Looks an action up in the cache before it is done, and keeps what it made.

The key of an action covers what its result depends on and nothing else: the stage's key
(versions, options, libraries) and the content of every file that it reads, under names
that are the same in every build folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mnnqnn_tasks.cache.entry import Entry
from mnnqnn_tasks.cache.keys import action_key
from mnnqnn_tasks.cache.store import Cache
from mnnqnn_tasks.files import sha256_file
from mnnqnn_tasks.tasks.session import GenieJob, Job
from mnnqnn_tasks.toolchain import packing
from mnnqnn_tasks.toolchain.work import function

#: What a stage gives: the files that it made, and values to remember.
Outcome = tuple[list[str], dict[str, Any]]


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


@dataclass(frozen=True)
class Goal:
    """Where the result of an action belongs: under ``key`` in a cache."""

    cache: Cache
    action: Action
    key: str


def take(cache: Cache, job: Job | GenieJob, action: Action, key: str) -> Outcome | None:
    """The result of an action from the cache, put in place; ``None`` if it must be done.

    Raises:
        DiskError: a file cannot be put in place.
    """
    entry = cache.lookup(key)
    return None if entry is None else put(cache, job, action, entry)


def put(cache: Cache, job: Job | GenieJob, action: Action, entry: Entry) -> Outcome | None:
    """Put the result of an action in place; ``None`` if the cache does not have all of it.

    Raises:
        DiskError: a file cannot be put in place.
    """
    store = job.layout.blobs
    if not cache.restore(entry, lambda name: packing.place(action.base, store, name)):
        return None
    made, values = packing.unpack(action.base, store, entry)
    if action.tidy:
        function(action.tidy)(action.base, made)
    return made, values


def keep(
    cache: Cache,
    job: Job | GenieJob,
    action: Action,
    key: str,
    record: packing.Record,
    values: Mapping[str, Any],
    seconds: float,
) -> None:
    """Add what an action made to the cache.

    Args:
        record: of every file that it made, by path.
        values: what it returned; of its blobs their digests are of use elsewhere as well.
    """
    packed = packing.pack(action.base, job.layout.blobs, record, values)
    cache.save(key, action.stage, packed.files, packed.values, seconds, packed.digests)


def through(
    cache: Cache | None,
    job: Job | GenieJob,
    action: Action | None,
    work: Callable[[Goal | None], Outcome],
) -> tuple[Outcome, dict[str, Any]]:
    """The result of an action, from the cache or by ``work``; what became of it.

    ``work`` is told where its result belongs, if it belongs into the cache.

    The second value is what a task's record has as ``cache``: ``outcome`` (``hit``,
    ``miss`` or ``off``) and ``key``.
    """
    if cache is None or action is None:
        return work(None), {"outcome": "off", "key": None}
    try:
        key = action.digest()
    except OSError:  # the stage meets the same trouble and knows what to say
        return work(None), {"outcome": "off", "key": None}
    taken = take(cache, job, action, key)
    if taken is not None:
        return taken, {"outcome": "hit", "key": key}
    return work(Goal(cache, action, key)), {"outcome": "miss", "key": key}
