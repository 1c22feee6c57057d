"""What a local store holds, what it may forget, and whether it is sound.

Other processes use the store meanwhile.  What they need may be deleted under them; they
see a miss.  What must not happen is that a content is deleted for nobody's benefit while
its entry is being written: contents without an entry stay for a while.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mnnqnn_tasks.cache.entry import Damaged, Entry, is_digest
from mnnqnn_tasks.cache.local import LocalStore
from mnnqnn_tasks.cache.place import digest_of
from mnnqnn_tasks.cache.pool import on_threads
from mnnqnn_tasks.cache.tempfiles import sweep
from mnnqnn_tasks.files import TEMP_PREFIX

#: Nanoseconds that a content may be there without an entry.
_GRACE_NS = 600 * 10**9


@dataclass(frozen=True)
class Kind:
    """The entries of one action: how many, bytes of their files, seconds they took."""

    entries: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Stats:
    """What a store holds.

    Attributes:
        entries: how many.
        contents: how many different files.
        bytes: on the disk; a content counts once.
        kinds: by action.
        oldest: seconds since the least recently used entry was of use.
    """

    entries: int
    contents: int
    bytes: int
    kinds: dict[str, Kind]
    oldest: float


@dataclass(frozen=True)
class Collected:
    """What `gc` did: how many entries and contents went, bytes freed and left."""

    entries: int
    contents: int
    freed: int
    left: int


@dataclass(frozen=True)
class Verified:
    """What `verify` found.

    Attributes:
        entries, contents, bytes: what is sound.
        damaged: what was not, and is gone: one line each.
        incomplete: how many entries had lost a content, and are gone.
    """

    entries: int
    contents: int
    bytes: int
    damaged: tuple[str, ...]
    incomplete: int


@dataclass
class _Seen:
    """A store at one moment; entries before contents, as these are written first."""

    entries: list[tuple[int, int, Entry]] = field(default_factory=list)  # last use, size
    damaged: list[tuple[str, str]] = field(default_factory=list)  # key, why
    contents: dict[str, int] = field(default_factory=dict)  # size

    @property
    def bytes(self) -> int:
        return sum(size for _, size, _ in self.entries) + sum(self.contents.values())

    def whole(self, entry: Entry) -> bool:
        return all(self.contents.get(digest) == size for digest, size in entry.contents().items())


def keys(store: LocalStore) -> list[str]:
    """The keys of all entries, the most recently used first."""
    found = [(info.st_mtime_ns, key) for key, info in _digests(store.actions)]
    return [key for _, key in sorted(found, reverse=True)]


def stats(store: LocalStore) -> Stats:
    """What the store holds; contents are not read."""
    seen = _look(store)
    kinds: dict[str, Kind] = {}
    for _, _, entry in seen.entries:
        was = kinds.get(entry.action, Kind(0, 0, 0.0))
        kinds[entry.action] = Kind(
            was.entries + 1, was.bytes + entry.size, was.seconds + entry.cost_seconds
        )
    oldest = min((used for used, _, _ in seen.entries), default=time.time_ns())
    return Stats(
        len(seen.entries),
        len(seen.contents),
        seen.bytes,
        dict(sorted(kinds.items())),
        max(0.0, (time.time_ns() - oldest) / 1e9),
    )


def gc(store: LocalStore, max_bytes: int | None = None) -> Collected:
    """Make the store as small as it should be: least recently used entries go first.

    So do damaged and incomplete entries, contents that no entry has (after a while) and
    temporary files of processes that are no more.

    Args:
        max_bytes: what to leave at most; the store's own limit without.
    """
    for folder in (store.actions, store.objects):
        for item in _files(folder):
            if item.name.startswith(TEMP_PREFIX):
                sweep(item.path)
    limit = store.max_bytes if max_bytes is None else max_bytes
    seen = _look(store)
    total = seen.bytes
    users = Counter(digest for _, _, entry in seen.entries for digest in entry.contents())
    gone_entries = gone_contents = 0
    for key, _ in seen.damaged:
        gone_entries += store.drop_entry(key)
    for digest in seen.contents.keys() - users.keys():
        if _settled(store, digest) and store.drop_object(digest):
            gone_contents += 1
            total -= seen.contents[digest]
    whole = {entry.key for _, _, entry in seen.entries if seen.whole(entry)}
    for _, size, entry in sorted(seen.entries, key=lambda e: (e[2].key in whole, e[0], e[2].key)):
        if total <= limit and entry.key in whole:
            break
        if not store.drop_entry(entry.key):
            continue  # somebody else did, and takes its contents away
        gone_entries += 1
        total -= size
        for digest in entry.contents():
            users[digest] -= 1
            content = seen.contents.get(digest)
            if not users[digest] and content is not None and store.drop_object(digest):
                gone_contents += 1
                total -= content
    return Collected(gone_entries, gone_contents, seen.bytes - total, total)


def verify(store: LocalStore) -> Verified:
    """Read everything; what is damaged or incomplete is deleted."""
    seen = _look(store)
    damaged = [f"entry {key}: {why}" for key, why in seen.damaged]
    for key, _ in seen.damaged:
        store.drop_entry(key)

    def sound(digest: str) -> bool | None:
        try:
            with open(store.object_path(digest), "rb") as stream:
                return digest_of(stream) == digest
        except FileNotFoundError:
            return None
        except OSError:
            return False

    digests = sorted(seen.contents)
    for digest, verdict in zip(digests, on_threads(sound, digests, seen.bytes), strict=True):
        if not verdict:
            if verdict is False:
                damaged.append(f"content {digest}: it has another digest")
                store.drop_object(digest)
            del seen.contents[digest]
    lost = [entry for _, _, entry in seen.entries if not seen.whole(entry)]
    for entry in lost:
        store.drop_entry(entry.key)
    seen.entries = [item for item in seen.entries if seen.whole(item[2])]
    return Verified(len(seen.entries), len(seen.contents), seen.bytes, tuple(damaged), len(lost))


def _look(store: LocalStore) -> _Seen:
    seen = _Seen()
    for key, info in _digests(store.actions):
        try:
            entry = store.read(key)
        except Damaged as error:
            seen.damaged.append((key, str(error)))
        except OSError as error:
            seen.damaged.append((key, error.strerror or str(error)))
        else:
            if entry is not None:
                seen.entries.append((info.st_mtime_ns, info.st_size, entry))
    for digest, info in _digests(store.objects):
        seen.contents[digest] = info.st_size
    return seen


def _digests(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The files whose names are digests; others are not ours."""
    for item in _files(folder):
        if is_digest(item.name):
            with contextlib.suppress(OSError):
                yield item.name, item.stat(follow_symlinks=False)


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The files in the folders of ``folder``; what others delete meanwhile is left out."""
    with contextlib.suppress(OSError):
        for group in os.scandir(folder):
            with contextlib.suppress(OSError):
                for item in os.scandir(group.path):
                    if item.is_file(follow_symlinks=False):
                        yield item


def _settled(store: LocalStore, digest: str) -> bool:
    """Whether a content without an entry waits for none any more; looks again."""
    try:
        changed = os.lstat(store.object_path(digest)).st_ctime_ns
    except OSError:
        return False
    return time.time_ns() - changed > _GRACE_NS
