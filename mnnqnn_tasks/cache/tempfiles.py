"""Temporary files of a store that several processes share, and the broom for those of the dead.

Whoever writes a temporary file holds a lock (flock) on it, which dies with the process
however that ends.  So a file without a lock is nobody's, at once and without a guess about
ages.  Where the file system has no such locks, age decides.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mnnqnn_tasks.files import TEMP_PREFIX, disk_errors

#: Age in seconds from which on a file is nobody's where locks do not tell.
_OLD = 3600.0

#: Errors of flock on a file system without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@contextlib.contextmanager
def owned_temp(folder: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A new temporary file in ``folder``, open for reading and writing.

    The block renames it to where it belongs; if it does not, the file is deleted.

    Raises:
        DiskError: when the file system refuses.
    """
    with disk_errors(folder / TEMP_PREFIX):
        stream, path = _create(folder)
    with stream:
        try:
            yield stream, path
        finally:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.lstat(path), os.fstat(stream.fileno())):
                    os.unlink(path)


def _create(folder: Path) -> tuple[BinaryIO, Path]:
    while True:
        try:
            fd, name = tempfile.mkstemp(prefix=TEMP_PREFIX, dir=folder)
        except FileNotFoundError:
            folder.mkdir(parents=True, exist_ok=True)
            continue
        stream = os.fdopen(fd, "w+b")
        _lock(fd, wait=True)
        # A broom may have come between the two calls, and waited for is what it deleted.
        if os.fstat(fd).st_nlink:
            return stream, Path(name)
        stream.close()


def _lock(fd: int, *, wait: bool) -> bool | None:
    """Whether the lock was taken; ``None`` where there are no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


@contextlib.contextmanager
def turn(path: Path) -> Iterator[BinaryIO]:
    """Wait until no other process or thread is in a block for the same ``path``.

    Gives the file, open for reading and appending; it stays.  Where the file system has no
    locks, nobody waits.

    Raises:
        DiskError: when the file system refuses.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = open(path, "a+b")  # noqa: SIM115  # closed below, which gives the lock back
    with stream:
        with disk_errors(path):
            _lock(stream.fileno(), wait=True)
        yield stream


def sweep(path: str) -> bool:
    """Delete a temporary file that no living process owns.

    Returns:
        Whether it was one.
    """
    with contextlib.suppress(OSError):
        return _sweep(path)
    return False


def _sweep(path: str) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        free = _lock(fd, wait=False)
        if free is None:
            free = time.time() - os.fstat(fd).st_mtime > _OLD
        # The name may stand for a newer file by now.
        if free and os.path.samestat(os.lstat(path), os.fstat(fd)):
            os.unlink(path)
            return True
        return False
    finally:
        os.close(fd)
