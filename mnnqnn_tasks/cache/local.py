"""The store in a folder: contents by their digest, entries by their key.

::

    objects/ab/<sha256>   a content; read-only, never changed, the same for all entries
    actions/ab/<key>      an entry; its modification time is that of its last use

Any number of processes use one store at the same time and may be killed at any moment.
Files appear by rename, so they are whole; nothing is ever locked that another waits for
(temporary files carry a lock that tells a living writer, see `tempfiles`).  Nothing is
trusted: an entry has a checksum and names its key, a content has its digest, and both are
compared whenever they are read.  So there is no fsync either: what a power cut takes is
found out like any other damage.

The modification time of a content is never touched: build folders may hold links to it,
and tell by the time whether their files were altered.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mnnqnn_tasks.cache import place
from mnnqnn_tasks.cache.entry import MAX_BYTES, Damaged, Entry, File, from_bytes, to_bytes
from mnnqnn_tasks.cache.tempfiles import owned_temp
from mnnqnn_tasks.errors import StaleInputError
from mnnqnn_tasks.files import clone_file, disk_errors, sha256_file


class Missing(LookupError):
    """The store has no such content."""


class LocalStore:
    """The store in the folder ``root``.

    Args:
        root: need not exist.
        max_bytes: what `upkeep.gc` leaves at most.
    """

    def __init__(self, root: str | os.PathLike[str], max_bytes: int) -> None:
        self.root = Path(os.path.abspath(root))
        self.max_bytes = max_bytes
        self.objects = self.root / "objects"
        self.actions = self.root / "actions"

    def object_path(self, sha256: str) -> Path:
        """Where the content with this digest lies or would lie."""
        return self.objects / sha256[:2] / sha256

    def action_path(self, key: str) -> Path:
        """Where the entry of this key lies or would lie."""
        return self.actions / key[:2] / key

    def has(self, key: str) -> bool:
        """Whether there is an entry; it is not read."""
        return os.path.exists(self.action_path(key))

    def holds(self, sha256: str, size: int) -> bool:
        """Whether there is a content of this digest and size; it is not read."""
        try:
            info = os.lstat(self.object_path(sha256))
        except OSError:
            return False
        return stat.S_ISREG(info.st_mode) and info.st_size == size

    def read(self, key: str) -> Entry | None:
        """The entry of ``key``, ``None`` if there is none.

        Raises:
            Damaged: it is not what was written.
            OSError: it cannot be read.
        """
        try:
            with open(self.action_path(key), "rb") as stream:
                return from_bytes(stream.read(MAX_BYTES + 1), key)
        except FileNotFoundError:
            return None

    def write(self, entry: Entry) -> None:
        """Add or replace an entry, whose contents should be there already.

        Raises:
            DiskError: it cannot be written.
        """
        goal = self.action_path(entry.key)
        with owned_temp(goal.parent) as (stream, path), disk_errors(goal):
            stream.write(to_bytes(entry))
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)
            os.replace(path, goal)

    def used(self, key: str) -> None:
        """Remember that the entry was of use now."""
        with contextlib.suppress(OSError):
            os.utime(self.action_path(key))

    def drop_entry(self, key: str) -> bool:
        """Delete an entry; False if somebody else did, or nobody can."""
        return _unlink(self.action_path(key))

    def drop_object(self, sha256: str) -> bool:
        """Delete a content; False if somebody else did, or nobody can."""
        return _unlink(self.object_path(sha256))

    def add(self, source: Path, file: File, *, mistrust: bool = False) -> None:
        """Take the content of ``source`` in, which is that of ``file``.

        One that is there already stays: build folders may hold links to it.

        Args:
            mistrust: read what is there, and replace it if it is another content.

        Raises:
            OSError: ``source`` cannot be read.
            StaleInputError: it has another content by now.
            DiskError: the store cannot be written.
        """
        there = self.object_path(file.sha256)
        if self.holds(file.sha256, file.size) and not (
            mistrust and sha256_file(there) != file.sha256
        ):
            self._protect(there)
            return
        with self.incoming(file) as (stream, path):
            with open(source, "rb") as src:
                if clone_file(src.fileno(), stream.fileno()):
                    digest = place.digest_of(stream)
                else:
                    digest = place.copy(src, stream)
            if digest != file.sha256:
                raise StaleInputError("the file changed while it was read", where=str(source))
            self.accept(stream, path, file)

    @contextlib.contextmanager
    def incoming(self, file: File) -> Iterator[tuple[BinaryIO, Path]]:
        """A temporary file for a content, for `accept`.

        It lies where the content will: file systems spread their folders over the disk, and
        slow down where all files begin in the same one.

        Raises:
            DiskError: the store cannot be written.
        """
        with owned_temp(self.object_path(file.sha256).parent) as pair:
            yield pair

    def accept(self, stream: BinaryIO, path: Path, file: File) -> None:
        """Make a temporary file, which has the content of ``file``, a content of the store.

        Raises:
            DiskError: the store cannot be written.
        """
        goal = self.object_path(file.sha256)
        with disk_errors(goal):
            os.fchmod(stream.fileno(), 0o444)
            os.replace(path, goal)

    def _protect(self, path: Path) -> None:
        """Move the change time, by which a concurrent gc sees that a content is new."""
        with contextlib.suppress(OSError):
            info = os.lstat(path)
            os.utime(path, ns=(time.time_ns(), info.st_mtime_ns))

    def check(self, file: File) -> None:
        """See that the content of ``file`` is there, without reading it.

        Raises:
            Missing: the store does not have it.
            Damaged: what it has is of another size, or no file.
        """
        try:  # one look: it may come and go
            info = os.lstat(self.object_path(file.sha256))
        except OSError:
            raise Missing(file.sha256) from None
        if not stat.S_ISREG(info.st_mode) or info.st_size != file.size:
            raise Damaged("it has another size")

    def fetch(self, file: File, target: Path, *, link: bool) -> None:
        """Make ``target``, which must not exist, a file with the content that ``file`` says.

        Args:
            link: a hard link will do; see `place`.

        Raises:
            Missing: the store does not have it; nothing is at ``target``.
            Damaged: what it has is another content, and that may be at ``target``.
            DiskError: ``target`` cannot be written.
        """
        self.check(file)
        source = self.object_path(file.sha256)
        try:
            digest = place.share(source, target, link=link)
        except FileNotFoundError:
            raise Missing(file.sha256) from None
        except OSError as error:
            raise Damaged(error.strerror or str(error)) from None
        if digest != file.sha256:
            raise Damaged("its digest is wrong")


def measure(name: str, path: Path, sha256: str | None = None) -> File:
    """The `File` called ``name`` with the content of ``path``.

    Args:
        sha256: its digest, if that is known.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        return File(name, sha256 or place.digest_of(stream), size)


def _unlink(path: Path) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
