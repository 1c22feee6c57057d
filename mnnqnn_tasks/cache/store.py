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
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from mnnqnn_tasks.cache.config import CacheSettings
from mnnqnn_tasks.cache.entry import Damaged, Entry, File, to_bytes
from mnnqnn_tasks.cache.local import LocalStore, Missing, measure
from mnnqnn_tasks.cache.pool import at_once, on_threads
from mnnqnn_tasks.cache.remote import RemoteStore, RemoteTrouble
from mnnqnn_tasks.cache.reports import Reports, words
from mnnqnn_tasks.errors import DiskError, StaleInputError
from mnnqnn_tasks.files import TEMP_PREFIX, disk_errors

if TYPE_CHECKING:
    from mnnqnn_tasks.cache import upkeep

#: A process looks after the store's size when it has added this part of it.
_SLACK = 1 / 20

#: Where an entry is.
Where = Literal["local", "remote"]

_R = TypeVar("_R")


class Cache:
    """A cache on the given stores.

    Processes forked from this one share its warnings, and the knowledge that a store is
    not to be used any more: both count once per run.

    Args:
        local: the store on this machine, if any.
        remote: the store that is shared with others, if any.
        warn: told one line of text for the user.
        read_only: nothing is added to the local store, nor deleted.
    """

    def __init__(
        self,
        local: LocalStore | None,
        remote: RemoteStore | None = None,
        *,
        warn: Callable[[str], None],
        read_only: bool = False,
    ) -> None:
        self.local = local
        self.remote = remote
        self._reports = Reports(warn)
        self._read_only = read_only
        self._grown = 0

    # Looking

    def contains(self, key: str) -> Where | None:
        """Where there is an entry for ``key``; neither it nor its files are read."""
        return self.contains_many([key]).get(key)

    def contains_many(self, keys: Iterable[str]) -> dict[str, Where]:
        """Where each key has an entry; keys without one are left out."""
        wanted = set(keys)
        found: dict[str, Where] = {}
        if self.local is not None:
            found = {key: "local" for key in wanted if self.local.has(key)}
        wanted -= found.keys()
        if wanted:
            nothing: set[str] = set()
            there = self._ask(lambda remote: remote.has_many(wanted), nothing)
            found |= dict.fromkeys(there, "remote")
        return found

    def lookup(self, key: str) -> Entry | None:
        """The entry of ``key``; its files are not read yet, and `restore` may still fail."""
        entry = None
        if self.local is not None:
            try:
                entry = self.local.read(key)
            except Damaged as error:
                self._drop(key, f"the entry {key[:12]}: {error}")
            except OSError as error:
                self._reports.cannot_read(str(self.local.root), error)
        if entry is not None:
            return entry
        try:
            return self._ask(lambda remote: remote.read(key), None)
        except Damaged as error:
            self._drop_remote(key, f"the entry {key[:12]}: {error}")
            return None

    # Taking out

    def restore(
        self, entry: Entry, place: Callable[[str], Path], *, exclusive: bool = False
    ) -> bool:
        """Put the files of an entry in place, all or none, each whole and of its digest.

        What comes from the remote store is added to the local one.

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
            self._stage(entry, file, temps[file.name], link=not exclusive)

        try:
            self._bring(entry.files, entry)
            on_threads(stage, entry.files, entry.size)
            for name, goal in goals.items():
                with disk_errors(goal):
                    os.replace(temps[name], goal)
        except (Missing, Damaged):
            if self.local is not None and not self._read_only:
                self.local.drop_entry(entry.key)
            return False
        finally:
            # Also after a rename: it does nothing if both are links to one file already.
            for temp in temps.values():
                with contextlib.suppress(OSError):
                    os.unlink(temp)
        if self.local is not None and not self._read_only:
            self._keep(entry)
        return True

    def _stage(self, entry: Entry, file: File, temp: Path, *, link: bool) -> None:
        """Put one verified file at ``temp``.

        Raises:
            Missing, Damaged: no store has it; what there is to say is said.
            DiskError: ``temp`` cannot be written.
        """
        with disk_errors(temp):
            temp.parent.mkdir(parents=True, exist_ok=True)
        if self._from_local(file, temp, link):
            return
        if self._bring([file], entry) and self._from_local(file, temp, link):
            return  # it was damaged, and is mended
        if not self._ask(lambda remote: self._download(remote, entry, file, temp), False):
            raise Missing(file.sha256)

    def _from_local(self, file: File, temp: Path, link: bool) -> bool:
        if self.local is None:
            return False
        try:
            self.local.fetch(file, temp, link=link)
            return True
        except Missing:
            return False
        except Damaged as error:
            self._drop_object(file, error)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temp)
            return False

    def _bring(self, files: Iterable[File], entry: Entry) -> bool:
        """Download into the local store what it lacks, several contents at a time.

        Returns:
            Whether it has got anything.

        Raises:
            Damaged: what came is not what it should be.
        """
        local = self.local
        if local is None or self.remote is None or not self._may_write():
            return False
        missing: dict[str, File] = {}
        for file in files:
            try:
                local.check(file)
            except Missing:
                missing[file.sha256] = file
            except Damaged as error:
                self._drop_object(file, error)
                missing[file.sha256] = file

        def bring(file: File) -> bool:
            try:
                with local.incoming(file) as (stream, path):
                    got = self._ask(lambda r: self._download(r, entry, file, path), False)
                    if got:
                        local.accept(stream, path, file)
                    return got
            except DiskError as error:
                self._full(error)
                return False

        if missing:
            self._ask(RemoteStore.open, None)
        return any(at_once(bring, missing.values()))

    def _download(self, remote: RemoteStore, entry: Entry, file: File, target: Path) -> bool:
        try:
            remote.fetch(file, target)
        except Missing:
            return False
        except Damaged as error:
            remote.drop_object(file.sha256)
            self._drop_remote(entry.key, f"{file.name}: {error}")
            raise
        return True

    def _keep(self, entry: Entry) -> None:
        """Remember that an entry was used, and keep one that came from the remote."""
        assert self.local is not None
        if self.local.has(entry.key):
            self.local.used(entry.key)
        elif self._may_write() and all(
            self.local.holds(digest, size) for digest, size in entry.contents().items()
        ):
            try:
                self.local.write(entry)
            except DiskError as error:
                self._full(error)
            self._grow(entry)

    # Putting in

    def save(
        self,
        key: str,
        action: str,
        files: Mapping[str, Path],
        values: Mapping[str, Any],
        cost_seconds: float,
        digests: Mapping[str, str] | None = None,
    ) -> Entry | None:
        """Add what an action made.

        Args:
            files: by the name in the entry, see `entry.check_name`.
            values: JSON values.
            digests: hex SHA-256 of files, by name, where the caller has just computed it.

        Returns:
            The entry, ``None`` when no store took it; the user is told once a run.

        Raises:
            ValueError, TypeError: a name or a value is none.
        """
        blank = tuple(File(name, "0" * 64, 0) for name in sorted(files))
        entry = Entry(key, action, blank, values, cost_seconds)
        to_bytes(entry)
        if not self._may_write() and not self._sends():
            return None
        try:
            total = sum(os.stat(path).st_size for path in files.values())
            known = digests or {}
            whole = on_threads(
                lambda f: measure(f.name, files[f.name], known.get(f.name)), blank, total
            )
            entry = replace(entry, files=tuple(whole))
            kept = self._save_locally(entry, files)
        except OSError as error:
            self._reports.say(f"cache: {error.filename} cannot be read: {words(error)}")
            return None
        except StaleInputError as error:
            self._reports.say(f"cache: {error}")
            return None
        sent = self._sends() and self._send(entry, files, kept)
        return entry if kept or sent else None

    def _save_locally(self, entry: Entry, files: Mapping[str, Path]) -> bool:
        local = self.local
        if local is None or not self._may_write():
            return False
        try:
            doubt = self._reports.damage.claimed  # where there is damage, there may be more
            on_threads(
                lambda file: local.add(files[file.name], file, mistrust=doubt),
                entry.files,
                entry.size,
            )
            local.write(entry)
        except DiskError as error:
            self._full(error)
            return False
        self._grow(entry)
        return True

    def _send(self, entry: Entry, files: Mapping[str, Path], kept: bool) -> bool:
        sources = {f.sha256: files[f.name] for f in entry.files}
        if self.local is not None and kept:  # which nobody writes to
            sources = {digest: self.local.object_path(digest) for digest in sources}
        return self._ask(lambda remote: remote.write(entry, sources) >= 0, False)

    # Sharing what is no result

    @property
    def shared(self) -> RemoteStore | None:
        """The remote store, if it works and takes something in."""
        return self.remote if self._sends() else None

    def leave_out(self, error: RemoteTrouble) -> None:
        """The remote store does not work: it is not asked any more in this run."""
        assert self.remote is not None
        self._reports.left_out(self.remote.name, error)

    # Upkeep

    def stats(self) -> upkeep.Stats | None:
        """What the local store holds; ``None`` without one."""
        from mnnqnn_tasks.cache import upkeep

        return None if self.local is None else upkeep.stats(self.local)

    def gc(self, max_bytes: int | None = None) -> upkeep.Collected | None:
        """Delete what the local store need not keep, see `upkeep.gc`; ``None`` without one."""
        self._grown = 0
        if self.local is None or self._read_only:
            return None
        from mnnqnn_tasks.cache import upkeep

        return upkeep.gc(self.local, max_bytes)

    def verify(self) -> upkeep.Verified | None:
        """Read the local store, see `upkeep.verify`; ``None`` without one."""
        from mnnqnn_tasks.cache import upkeep

        return None if self.local is None else upkeep.verify(self.local)

    def _grow(self, entry: Entry) -> None:
        """Keep the store within its size also during a long run."""
        assert self.local is not None
        self._grown += entry.size
        if self._grown > self.local.max_bytes * _SLACK:
            self.gc(int(self.local.max_bytes * (1 - _SLACK)))

    # What goes wrong

    def _may_write(self) -> bool:
        return self.local is not None and not self._read_only and not self._reports.full.claimed

    def _sends(self) -> bool:
        return (
            self.remote is not None and not self.remote.read_only and not self._reports.off.claimed
        )

    def _full(self, error: DiskError) -> None:
        assert self.local is not None
        self._reports.cannot_write(str(self.local.root), error)

    def _ask(self, work: Callable[[RemoteStore], _R], otherwise: _R) -> _R:
        """What the remote says; ``otherwise`` when there is none or it does not work."""
        if self.remote is None or self._reports.off.claimed:
            return otherwise
        try:
            return work(self.remote)
        except RemoteTrouble as error:
            self._reports.left_out(self.remote.name, error)
            return otherwise

    def _drop(self, key: str, what: str) -> None:
        """Delete a damaged entry of the local store and tell."""
        assert self.local is not None
        self._dropped(key, what, self.local.drop_entry, self.local.action_path)

    def _drop_object(self, file: File, error: Damaged) -> None:
        assert self.local is not None
        drop, path = self.local.drop_object, self.local.object_path
        self._dropped(file.sha256, f"{file.name}: {error}", drop, path)

    def _dropped(
        self, digest: str, what: str, drop: Callable[[str], bool], path: Callable[[str], Path]
    ) -> None:
        assert self.local is not None
        self._reports.damage.claim()
        deleted = not self._read_only and drop(digest)
        stays = not deleted and os.path.lexists(path(digest))
        store = f"cache {self.local.root}"
        self._reports.damaged(store, digest, what, deleted=deleted, stays=stays)

    def _drop_remote(self, key: str, what: str) -> None:
        assert self.remote is not None
        store, deleted = f"remote cache {self.remote.name}", self.remote.drop_entry(key)
        self._reports.damaged(store, key, what, deleted=deleted, stays=not deleted)


def open_cache(settings: CacheSettings, *, warn: Callable[[str], None]) -> Cache | None:
    """The cache that the settings ask for, ``None`` for none.  Opening touches no disk.

    Raises:
        ToolMissing: a package that the remote needs is not installed.
    """
    if not settings.enabled or (settings.dir is None and settings.remote is None):
        return None
    local = None if settings.dir is None else LocalStore(settings.dir, settings.max_bytes)
    remote = RemoteStore.of(settings)
    return Cache(local, remote, warn=warn, read_only=settings.read_only and remote is None)


def _temp_beside(goal: Path) -> Path:
    return Path(tempfile.mktemp(prefix=TEMP_PREFIX, dir=goal.parent))
