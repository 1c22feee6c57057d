"""A folder that appears whole or not at all, and replaces its predecessor at once.

The new folder is filled beside the old one and takes its place by a rename.  Linux can
exchange two folders in one step (renameat2); where the file system cannot, two renames do
it, and the old folder lies beside under a name of its own between them, from where the
next run brings it back.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from mnnqnn_tasks.files import TEMP_PREFIX, clone_file, disk_errors

_CHUNK = 1 << 20
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

#: What a file system or kernel says that cannot exchange.
_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def copy_file(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> tuple[str, int]:
    """Copy a file's bytes, sharing blocks where the file system can (copy on write).

    Never a hard link: whatever is done to one of the two later leaves the other alone.
    The bytes are on disk when this returns.

    Returns:
        Hex SHA-256 and size of what was written.

    Raises:
        OSError: when ``source`` cannot be read.
        DiskError: when ``target`` cannot be written.
    """
    digest = hashlib.sha256()
    size = 0
    with open(source, "rb") as src, disk_errors(target):
        goal = Path(target)
        goal.parent.mkdir(parents=True, exist_ok=True)
        with open(goal, "w+b") as dst:
            shared = clone_file(src.fileno(), dst.fileno())
            reader = dst if shared else src
            while chunk := reader.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                if not shared:
                    dst.write(chunk)
            dst.flush()
            os.fsync(dst.fileno())
    return digest.hexdigest(), size


def keep_file(old: Path, target: Path, sha256: str, digest: Callable[[Path], str]) -> bool:
    """Make ``target`` the file ``old``, a hard link, if that has these bytes.

    For a folder that is about to be replaced: ``old`` goes away with it, so the link is
    soon the only name of the file.  Nothing is written, so nothing has to reach the disk.

    Args:
        digest: tells the SHA-256 of a file.

    Returns:
        False when ``old`` is no such file, or the file system has no hard links.
    """
    try:
        if old.is_symlink() or digest(old) != sha256:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(old, target)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def whole_folder(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[Path]:
    """Give a new empty folder that becomes ``path`` when the block ends without an error.

    Args:
        durable: everything in it is on disk before that happens.

    A folder that was at ``path`` is gone
    afterwards, and untouched if the block fails.  One process at a time.

    Raises:
        DiskError: when the file system refuses.
    """
    goal = Path(path)
    new = goal.parent / f"{TEMP_PREFIX}{goal.name}"
    old = goal.parent / f".old-{goal.name}"
    with disk_errors(goal):
        goal.parent.mkdir(parents=True, exist_ok=True)
        _remove(new)
        if os.path.lexists(goal):
            _remove(old)
        elif old.exists():
            os.rename(old, goal)
        new.mkdir()
    try:
        yield new
        with disk_errors(goal):
            if durable:
                _sync_tree(new)
            _replace(new, goal, old)
            _sync(goal.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            _remove(new)
        raise
    # The exchange leaves the old folder under the name of the new one.
    with contextlib.suppress(OSError):
        _remove(new)
        _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def _replace(new: Path, goal: Path, old: Path) -> None:
    if not os.path.lexists(goal):
        os.rename(new, goal)
    elif not _exchange(new, goal):
        os.rename(goal, old)
        try:
            os.rename(new, goal)
        except OSError:
            os.rename(old, goal)
            raise


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    function: Callable[..., int] | None = getattr(
        ctypes.CDLL(None, use_errno=True), "renameat2", None
    )
    return function


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False where that cannot be done."""
    renameat2 = _renameat2()
    if renameat2 is None:
        return False
    paths = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
    if renameat2(*paths, ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT:
        return False
    raise OSError(code, os.strerror(code), str(other))


def _sync_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            _sync(Path(parent, name))
        _sync(Path(parent))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
