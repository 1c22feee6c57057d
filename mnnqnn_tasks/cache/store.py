"""The cache that tasks use: a local store, a remote one, or both.

Whatever is wrong with a store costs time and never the build: reading gives a miss, writing
does nothing, and the user is told once.  Only trouble with the caller's own files is an
error.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from mnnqnn_tasks.cache.config import CacheSettings
from mnnqnn_tasks.cache.entry import Damaged, Entry, File
from mnnqnn_tasks.cache.local import LocalStore, Missing
from mnnqnn_tasks.cache.once import Once
from mnnqnn_tasks.errors import DiskError
from mnnqnn_tasks.files import TEMP_PREFIX, disk_errors

#: Where an entry is.
Where = Literal["local", "remote"]

#: Below this many bytes threads cost more than they save.
_SMALL = 4 << 20

_THREADS = 4

_T = TypeVar("_T")
_R = TypeVar("_R")


class Cache:
    """A cache on the given stores.

    Processes forked from this one share its warnings: each is given once per run.

    Args:
        local: the store on this machine, if any.
        warn: told one line of text for the user.
        read_only: nothing is added to the local store.
    """

    def __init__(
        self,
        local: LocalStore | None,
        *,
        warn: Callable[[str], None],
        read_only: bool = False,
    ) -> None:
        self.local = local
        self._warn = warn
        self._read_only = read_only
        self._unreadable = Once()
        self._unwritable = Once()

    # Looking

    def contains(self, key: str) -> Where | None:
        """Where there is an entry for ``key``; neither it nor its files are read."""
        return self.contains_many([key]).get(key)

    def contains_many(self, keys: Iterable[str]) -> dict[str, Where]:
        """Where each key has an entry; keys without one are left out."""
        found: dict[str, Where] = {}
        if self.local is not None:
            found = {key: "local" for key in keys if self.local.has(key)}
        return found

    def lookup(self, key: str) -> Entry | None:
        """The entry of ``key``; its files are not read yet, and `restore` may still fail."""
        if self.local is None:
            return None
        try:
            return self.local.read(key)
        except Damaged as error:
            self._drop(key, f"the entry {key[:12]} is damaged: {error}")
        except OSError as error:
            if self._unreadable.claim():
                self._warn(f"the cache {self.local.root} cannot be read: {_reason(error)}")
        return None

    # Taking out

    def restore(
        self, entry: Entry, place: Callable[[str], Path], *, exclusive: bool = False
    ) -> bool:
        """Put the files of an entry in place, all or none, each whole and of its digest.

        Args:
            place: where the file of a name belongs.
            exclusive: the files get bytes of their own, because somebody may edit them;
                else they may be read-only hard links (see `place`).

        Returns:
            False when the cache does not have them any more or they are damaged; the
            entry is gone then.

        Raises:
            DiskError: when a file cannot be put in place.
        """
        goals = {file.name: place(file.name) for file in entry.files}
        temps = {name: _temp_beside(goal) for name, goal in goals.items()}

        def stage(file: File) -> None:
            self._stage(file, temps[file.name], link=not exclusive)

        try:
            _each(stage, entry.files, entry.size)
            for name, goal in goals.items():
                with disk_errors(goal):
                    os.replace(temps[name], goal)
        except Missing:
            if self.local is not None and not self._read_only:
                self.local.drop_entry(entry.key)
            return False
        except Damaged as error:
            self._drop(entry.key, f"an entry for {entry.action} is damaged: {error}")
            return False
        finally:
            # Also after a rename: it does nothing if both are links to one file already.
            for temp in temps.values():
                with contextlib.suppress(OSError):
                    os.unlink(temp)
        if self.local is not None:
            self.local.used(entry.key)
        return True

    def _stage(self, file: File, temp: Path, *, link: bool) -> None:
        with disk_errors(temp):
            temp.parent.mkdir(parents=True, exist_ok=True)
        if self.local is None:
            raise Missing(file.sha256)
        try:
            self.local.fetch(file, temp, link=link)
            if not link:
                os.chmod(temp, 0o644)
        except Damaged as error:
            if not self._read_only:
                self.local.drop_object(file.sha256)
            raise Damaged(f"{file.name}: {error}") from None

    def _drop(self, key: str, why: str) -> None:
        """Tell about a damaged entry and delete it; the first to delete it tells."""
        if self.local is None:
            return
        if self._read_only or self.local.drop_entry(key):
            self._warn(f"cache: {why}; it is made anew")

    # Putting in

    def save(
        self,
        key: str,
        action: str,
        files: Mapping[str, Path],
        values: Mapping[str, Any],
        cost_seconds: float,
    ) -> Entry | None:
        """Add what an action made.

        Args:
            files: by the name in the entry, see `entry.check_name`.
            values: JSON values.

        Returns:
            The entry, ``None`` when it could not be stored; the user is told once a run.

        Raises:
            ValueError, TypeError: a name or a value is none.
        """
        if self.local is None or self._read_only or self._unwritable.claimed:
            return None
        local = self.local
        empty = "0" * 64
        entry = Entry(
            key, action, tuple(File(n, empty, 0) for n in sorted(files)), values, cost_seconds
        )

        def take(file: File) -> File:
            digest, size = local.add(files[file.name])
            return replace(file, sha256=digest, size=size)

        try:
            total = sum(os.stat(path).st_size for path in files.values())
            entry = replace(entry, files=tuple(_each(take, entry.files, total)))
            local.write(entry)
        except (OSError, DiskError) as error:
            if self._unwritable.claim():
                self._warn(f"the cache {local.root} takes nothing more in: {_reason(error)}")
            return None
        return entry


def open_cache(settings: CacheSettings, *, warn: Callable[[str], None]) -> Cache | None:
    """The cache that the settings ask for; ``None`` for none. Opening touches no disk."""
    if not settings.enabled or settings.dir is None:
        return None
    local = LocalStore(settings.dir, settings.max_bytes)
    return Cache(local, warn=warn, read_only=settings.read_only)


def _temp_beside(goal: Path) -> Path:
    return Path(tempfile.mktemp(prefix=TEMP_PREFIX, dir=goal.parent))


def _each(function: Callable[[_T], _R], items: Iterable[_T], total: int) -> list[_R]:
    """``function`` of every item, on threads if there are many bytes to work on."""
    work = list(items)
    if total < _SMALL or len(work) < 2:
        return [function(item) for item in work]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_THREADS, len(work))) as pool:
        return list(pool.map(function, work))


def _reason(error: OSError | DiskError) -> str:
    if isinstance(error, DiskError):
        return error.why or error.what
    return error.strerror or str(error)
