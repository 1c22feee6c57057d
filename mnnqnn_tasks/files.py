"""The disk: whole files or none, and content digests.

A target appears by rename from a temporary file in the same folder, so that a build
that is killed leaves either the old file or the new one (design rule 2).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from mnnqnn_tasks.errors import DiskError

T = TypeVar("T")

#: Temporary files carry this prefix; a rerun may delete any that it finds.
TEMP_PREFIX = ".tmp-"

_CHUNK = 1 << 20

_FICLONE = 0x40049409  # linux/fs.h

_DISK_ERRNO = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "no permission to write there",
    errno.EPERM: "no permission to write there",
    errno.EFBIG: "the file would be larger than the file system or limit allows",
    errno.EIO: "the disk reported an input/output error",
}


_MAKE_ROOM = "free space or correct the folder, then run again; what was built is kept"


def _cause(path: Path, error: OSError) -> tuple[str, str]:
    """Why ``path`` could not be written, and what to do about it."""
    if error.errno == errno.EISDIR and os.path.isdir(path):
        return "a folder lies where the file belongs", "delete or move that folder, then run again"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        for parent in path.parents:
            if os.path.lexists(parent) and not os.path.isdir(parent):
                todo = "delete or move it, then run again"
                return f"{parent}, which is no folder, lies where a folder belongs", todo
    return _DISK_ERRNO.get(error.errno or 0, str(error)), _MAKE_ROOM


@contextlib.contextmanager
def disk_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an ``OSError`` of a write to ``path`` into a `DiskError`.

    Raises:
        DiskError: naming the path and the cause.
    """
    try:
        yield
    except OSError as error:
        why, todo = _cause(Path(path), error)
        raise DiskError("cannot write", where=str(path), why=why, todo=todo) from error


def _in_folder(folder: Path, make: Callable[[], T]) -> T:
    """What ``make`` makes in ``folder``, which is made where there is none.

    Asking first would cost more than most files.
    """
    try:
        return make()
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        return make()


@contextlib.contextmanager
def atomic_writer(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file that becomes ``path`` when the block ends without an error.

    Args:
        path: the file to create or replace; its folder is made if needed.
        durable: fsync before the rename, so that a power cut cannot leave an empty
            file that the task database believes done.

    Raises:
        DiskError: when the file system refuses.
    """
    target = Path(path)
    with disk_errors(target):
        fd, temp = _in_folder(
            target.parent, lambda: tempfile.mkstemp(prefix=TEMP_PREFIX, dir=target.parent)
        )
        try:
            with os.fdopen(fd, "wb") as stream:
                yield stream
                stream.flush()
                os.fchmod(stream.fileno(), 0o644)
                if durable:
                    os.fsync(stream.fileno())
            os.replace(temp, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temp)
            raise


def write_bytes(path: str | os.PathLike[str], data: bytes, *, durable: bool = True) -> None:
    """Write ``data`` to ``path``, whole or not at all."""
    with atomic_writer(path, durable=durable) as stream:
        stream.write(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 ``text`` to ``path``, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


@functools.cache
def _encoder(indent: int | None) -> json.JSONEncoder:
    # json.dumps makes a new encoder per call, which for many small values costs more than
    # encoding them.
    return json.JSONEncoder(
        sort_keys=True,
        ensure_ascii=False,
        allow_nan=False,
        indent=indent,
        separators=(",", ":") if indent is None else (",", ": "),
    )


def canonical_json(value: object, *, indent: int | None = None) -> str:
    """JSON text that depends on the value alone: sorted keys, UTF-8, no locale."""
    return _encoder(indent).encode(value)


def write_json(path: str | os.PathLike[str], value: object, *, durable: bool = True) -> None:
    """Write ``value`` as indented canonical JSON, whole or not at all."""
    write_bytes(path, (canonical_json(value, indent=1) + "\n").encode("utf-8"), durable=durable)


def sha256_bytes(data: bytes | memoryview) -> str:
    """Hex SHA-256 of ``data``."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Hex SHA-256 of a file, read in pieces of 1 MiB."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Make ``target`` the same file as ``source`` by a hard link, else by a copy.

    Replaces ``target`` atomically.

    Raises:
        DiskError: when neither works.
    """
    goal = Path(target)
    with disk_errors(goal):
        with contextlib.suppress(OSError):
            if os.path.samefile(source, goal):
                return  # rename(2) of two names of one file does nothing and leaves both
        temp = tempfile.mktemp(prefix=TEMP_PREFIX, dir=goal.parent)
        try:
            _in_folder(goal.parent, lambda: os.link(source, temp))
        except OSError:
            with open(source, "rb") as src, atomic_writer(goal) as dst:
                while chunk := src.read(_CHUNK):
                    dst.write(chunk)
            return
        try:
            os.replace(temp, goal)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temp)
            raise


def clone_file(source: int, target: int) -> bool:
    """Let the open file ``target`` share the blocks of ``source`` until one is written.

    Returns:
        False where the file system cannot; then ``target`` is as it was.
    """
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True
