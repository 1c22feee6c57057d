"""Whole entries from one store to the other, as the user commands; trouble is an error here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mnnqnn_tasks.cache import upkeep
from mnnqnn_tasks.cache.entry import Damaged, Entry, File
from mnnqnn_tasks.cache.local import LocalStore, Missing
from mnnqnn_tasks.cache.place import digest_of
from mnnqnn_tasks.cache.pool import at_once
from mnnqnn_tasks.cache.remote import RemoteStore, RemoteTrouble
from mnnqnn_tasks.errors import CacheError


@dataclass(frozen=True)
class Transfer:
    """What was moved.

    Attributes:
        entries: how many were added.
        bytes: of contents that were sent or received.
        known: entries that were there already.
        left_out: entries that were damaged or incomplete, or for which there was no room;
            a line each.
    """

    entries: int
    bytes: int
    known: int
    left_out: tuple[str, ...]


def push(local: LocalStore, remote: RemoteStore, keys: Iterable[str] | None = None) -> Transfer:
    """Add entries of the local store to the remote one.

    Args:
        keys: those of the entries; all that there are without.

    Raises:
        CacheError: the remote does not work, or is read-only.
    """
    if remote.read_only:
        raise CacheError(
            "nothing can be pushed",
            where=remote.name,
            why="the remote cache is read-only",
            todo="take read_only and MNNQNN_CACHE_READ_ONLY away; http(s) is always read-only",
        )
    wanted = upkeep.keys(local) if keys is None else [k for k in keys if local.has(k)]
    added = sent = 0
    left_out: list[str] = []
    with _trouble(remote):
        there = remote.has_many(wanted)
        for key in wanted:
            if key in there:
                continue
            try:
                entry = local.read(key)
                if entry is None:
                    continue
                sources = {digest: _sound(local, digest) for digest in entry.contents()}
            except (Damaged, OSError) as error:
                left_out.append(f"{key}: {error}")
                continue
            sent += remote.write(entry, sources)
            added += 1
    return Transfer(added, sent, len(there), tuple(left_out))


def _sound(local: LocalStore, digest: str) -> Path:
    path = local.object_path(digest)
    with open(path, "rb") as stream:
        if digest_of(stream) != digest:
            raise Damaged(f"content {digest} has another digest")
    return path


def pull(local: LocalStore, remote: RemoteStore, keys: Iterable[str] | None = None) -> Transfer:
    """Add entries of the remote store to the local one, as long as there is room.

    Args:
        keys: those of the entries; all that there are without.

    Raises:
        CacheError: the remote does not work, or cannot list what it has.
        DiskError: the local store cannot be written.
    """
    added = received = 0
    left_out: list[str] = []
    room = local.max_bytes - upkeep.stats(local).bytes
    with _trouble(remote):
        wanted = sorted(remote.keys()) if keys is None else list(dict.fromkeys(keys))
        missing = [key for key in wanted if not local.has(key)]
        for key in missing:
            try:
                entry = remote.read(key)
                if entry is None:
                    continue
                if entry.size > room:
                    left_out.append(f"{key}: there is no room for it")
                    continue
                got = _receive(local, remote, entry)
            except (Damaged, Missing) as error:
                left_out.append(f"{key}: {error}")
                continue
            room -= got
            received += got
            added += 1
    return Transfer(added, received, len(wanted) - len(missing), tuple(left_out))


def _receive(local: LocalStore, remote: RemoteStore, entry: Entry) -> int:
    def bring(file: File) -> int:
        with local.incoming(file) as (stream, path):
            remote.fetch(file, path)
            local.accept(stream, path, file)
        return file.size

    lacking = {f.sha256: f for f in entry.files if not local.holds(f.sha256, f.size)}
    got = sum(at_once(bring, lacking.values()))
    local.write(entry)
    return got


@contextlib.contextmanager
def _trouble(remote: RemoteStore) -> Iterator[None]:
    try:
        yield
    except RemoteTrouble as error:
        raise CacheError(
            "the remote cache does not work",
            where=remote.name,
            why=str(error),
            todo="correct its URL or the access to it, then run again; what was moved is kept",
        ) from error
