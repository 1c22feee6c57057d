"""Puts the content of one file at another path, sharing its bytes where that is safe.

Three ways, the first that works:

1. A reflink (FICLONE): the file system shares the blocks until one of the two is written.
   Always safe; Btrfs, XFS and others can.
2. A hard link, if the caller allows it and **this process could not write to the file**.
   A store's files are read-only (0444), so an ordinary user's programs cannot alter them
   through the link; they replace it, as everything of ours does.  For root, permission
   bits protect nothing, so root gets a copy.
3. A copy.

A user may still make a linked file writable and edit it.  The store notices that by the
digest, which is compared at every use, and every build folder with a link to it by size
and time.

The digest is always that of the bytes that arrived: those of the clone, of the linked
file under its new name, or those that were written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from mnnqnn_tasks.files import clone_file, disk_errors

_CHUNK = 1 << 20


def share(source: Path, target: Path, *, link: bool) -> str:
    """Make ``target``, which must not exist, a file with the content of ``source``.

    Its mode is 0644, or that of ``source`` if it is a link.

    Args:
        link: a hard link will do; else the two stay independent.

    Returns:
        Hex SHA-256 of ``target``.

    Raises:
        OSError: when ``source`` cannot be read.
        DiskError: when ``target`` cannot be written.
    """
    with open(source, "rb") as src:
        with _new(target) as dst:
            if clone_file(src.fileno(), dst.fileno()):
                return digest_of(dst)
            if not (link and read_only(source)):
                return copy(src, dst)
        with disk_errors(target):
            os.unlink(target)
        with contextlib.suppress(OSError):  # another file system, no links, too many links
            os.link(source, target)
            with open(target, "rb") as linked:
                return digest_of(linked)
        with _new(target) as dst:
            return copy(src, dst)


def _new(path: Path) -> BinaryIO:
    with disk_errors(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.fchmod(fd, 0o644)
        return os.fdopen(fd, "w+b")


def read_only(path: Path) -> bool:
    """Whether this process cannot write to the file as it is."""
    return not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def digest_of(stream: BinaryIO) -> str:
    """Hex SHA-256 of the rest of ``stream``."""
    return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


def copy(source: BinaryIO, target: BinaryIO) -> str:
    """Copy the rest of ``source``.

    Returns:
        Hex SHA-256 of what was written.

    Raises:
        OSError: when ``source`` cannot be read.
        DiskError: when ``target`` cannot be written.
    """
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        with disk_errors(str(target.name)):
            target.write(chunk)
    with disk_errors(str(target.name)):
        target.flush()
    return digest.hexdigest()
