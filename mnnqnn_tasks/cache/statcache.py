"""Remembers the digests of files, so that a large file is read once.

A digest is remembered together with the file's size, modification time, change time and
inode.  While these stay, the file is not read again.  Two cases need care:

* A file that changed just before it was read could change again within the same tick of
  the file system's clock and keep all four numbers (git calls such an entry "racy":
  Documentation/technical/racy-git.adoc).  Such a digest is right but is not remembered.
* A file that changes while it is read has no digest at all.

The memory is a log: a line per digest, appended with a single write, so that several
processes may share it without a lock, and each sees what the others add.  A torn, damaged
or lost line costs one reading of one file and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import DiskError, ModelFileError, StaleInputError
from mnnqnn_tasks.files import write_bytes

#: The coarsest clock of a file system in use (FAT) ticks every 2 s.
_COARSE_NS = 2_000_000_000

#: A time with digits below this comes from a finer clock: the kernel's, which ticks at
#: least every 10 ms (CONFIG_HZ).  The rest is for a file server's clock that is behind.
_FINE_DIGITS_NS = 10_000_000
_FINE_NS = 200_000_000

#: From this size on, waiting until a file is not racy is cheaper than reading it twice.
_WAIT_BYTES = 256 << 20

#: The log is rewritten when it holds this many more lines than files.
_SLACK = 1000

#: Size, modification time, change time (ns) and inode of a file.
Numbers = tuple[int, int, int, int]

_Known = dict[str, tuple[Numbers, str]]


class DigestCache:
    """SHA-256 of files, remembered in the log file ``path``.

    Any number of processes may use one log at the same time.  A log that is missing,
    damaged or not writable is not an error.

    Args:
        path: the log, `log`.
        recorded: ``[size, modification time in ns, sha256]`` by absolute path, of files that
            nobody else writes to: for these, size and time are enough.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        recorded: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        self.log = Path(path)
        self._recorded = recorded or {}
        self._known: _Known | None = None
        self._at = (0, 0)  # inode of the log, and how many bytes of it were read

    def digest(self, path: str | os.PathLike[str]) -> str:
        """Hex SHA-256 of the file at ``path``, read only if it is not known.

        Raises:
            ModelFileError: when the file cannot be read.
            StaleInputError: when it changed while it was read.
        """
        name = os.path.abspath(path)
        try:
            if was := self._recorded.get(name):
                info = os.stat(name)
                if [info.st_size, info.st_mtime_ns] == list(was[:2]):
                    return str(was[2])
            for look in (self._load, self._catch_up):
                known = look().get(name)
                if known is not None and known[0] == numbers_of(os.stat(name)):
                    return known[1]
            with open(name, "rb") as stream:
                return self._read(name, stream)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise ModelFileError("cannot read the file", where=name, why=why) from error

    def remembered(self, path: str | os.PathLike[str]) -> tuple[Numbers, str] | None:
        """Size, modification time, change time (ns) and inode that a file had, and the digest
        that `digest` gives without reading it while it has these; ``None`` if none is known."""
        return self._load().get(os.path.abspath(path))

    def learn(
        self, path: str | os.PathLike[str], numbers: Numbers, start: int, digest: str
    ) -> None:
        """Take over a digest from somebody who read the file.

        Args:
            numbers: the file's, the same before and after it was read.
            start: when reading began, ns since the epoch.
        """
        if start - numbers[2] > _tick(numbers):
            self._remember(os.path.abspath(path), numbers, digest)

    def _read(self, name: str, stream: BufferedReader) -> str:
        numbers = numbers_of(os.fstat(stream.fileno()))
        age, tick = time.time_ns() - numbers[2], _tick(numbers)
        if numbers[0] >= _WAIT_BYTES and 0 <= age <= tick:
            time.sleep((tick - age) / 1e9 + 0.01)
        start = time.time_ns()
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if numbers_of(os.fstat(stream.fileno())) != numbers:
            raise changed_meanwhile(name)
        self.learn(name, numbers, start, digest)
        return digest

    def _remember(self, name: str, numbers: Numbers, digest: str) -> None:
        self._load()[name] = (numbers, digest)
        # A newline in front separates this line from a torn one before it.
        line = b"\n" + _encode(name, numbers, digest)
        with contextlib.suppress(OSError):
            self.log.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(self.log, flags, 0o644)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)

    def _load(self) -> _Known:
        if self._known is not None:
            return self._known
        known: _Known = {}
        self._known = known
        lines = self._take_in(known)
        if lines > 2 * len(known) + _SLACK:
            # A line that another process appends meanwhile is lost; see above.
            text = b"".join(_encode(n, *known[n]) for n in known)
            with contextlib.suppress(DiskError):
                write_bytes(self.log, text, durable=False)
        return known

    def _catch_up(self) -> _Known:
        """What is known, with what other processes found since the log was read."""
        known = self._load()
        self._take_in(known)
        return known

    def _take_in(self, known: _Known) -> int:
        """Read what the log has got since the last time; how many lines that was."""
        lines: list[bytes] = []
        with contextlib.suppress(OSError), open(self.log, "rb") as stream:
            info = os.fstat(stream.fileno())
            inode, at = self._at
            if inode == info.st_ino and at <= info.st_size:  # else it was written anew
                stream.seek(at)
            lines = stream.read().split(b"\n")
            self._at = (info.st_ino, stream.tell())
        for line in lines:
            with contextlib.suppress(ValueError):
                name, numbers, digest = _decode(line)
                known[name] = (numbers, digest)
        return len(lines)


def _tick(numbers: Numbers) -> int:
    """How long (ns) after its change time a file may change again and keep its numbers.

    Only the change time counts: users can set the modification time at will, and every
    change of the content moves both.
    """
    return _FINE_NS if numbers[2] % _FINE_DIGITS_NS else _COARSE_NS


def numbers_of(info: os.stat_result) -> Numbers:
    """What tells whether a file was written to."""
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


def changed_meanwhile(path: str) -> StaleInputError:
    """The error for a file whose numbers moved while it was in use."""
    return StaleInputError(
        "the file changed while it was read",
        where=path,
        todo="run again when nothing writes to it any more",
    )


def _encode(name: str, numbers: Numbers, digest: str) -> bytes:
    # Paths are bytes to the system: the escapes that stand for undecodable ones stay ASCII.
    body = json.dumps([name, *numbers, digest]).encode("ascii")
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _decode(line: bytes) -> tuple[str, Numbers, str]:
    """Raises ValueError for a line that is not whole."""
    checksum, _, body = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        raise ValueError("damaged line")
    name, size, mtime, ctime, inode, digest = json.loads(body)
    return name, (size, mtime, ctime, inode), digest
