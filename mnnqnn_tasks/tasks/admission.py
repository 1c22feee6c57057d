"""Lets a task begin when there is memory for it: one limit for all worker processes of a run.

The limit is a file without a name in which every byte stands for a MiB: a task locks as
many bytes as it will need, whichever are free, and gives them back when it is done.  The
kernel gives them back for a worker that is killed.  (The locks are those of open file
descriptions, fcntl(2), which hold between threads as well as between processes.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import sys
from collections.abc import Iterator

_MIB = 1 << 20

#: ``struct flock`` on 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi4x")

#: The byte that says whose turn it is to ask, far behind those that stand for memory.
_TURN = 1 << 40

#: Milliseconds after which a waiting task looks whether another one was killed.
_LOOK = 500

_Range = tuple[int, int]


class Memory:
    """The memory that the tasks of a run may use together; made before the workers fork.

    A task that alone needs more than there is runs alone.  Tasks get their memory in the
    order in which they ask, so a large one does not wait for ever behind small ones.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._units = max(1, limit // _MIB)
        self._file = os.memfd_create("mnnqnn-memory", os.MFD_CLOEXEC)
        self._freed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @contextlib.contextmanager
    def admitted(self, task: str, need: int) -> Iterator[None]:
        """Wait until ``task`` may use ``need`` bytes; they are its own in the block."""
        units = min(self._units, max(1, -(-need // _MIB)))
        fd = os.open(f"/proc/self/fd/{self._file}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _flock(fcntl.F_WRLCK, _TURN, 1))
            if need > self.limit:
                self._warn_once(task, need)
            self._take(fd, units)
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, _TURN, 1))
            yield
        finally:
            os.close(fd)  # which gives back what it held
            os.eventfd_write(self._freed, 1)

    def _take(self, fd: int, units: int) -> None:
        """Lock ``units`` free bytes; only whose turn it is may do that."""
        poll = select.poll()
        poll.register(self._freed, select.POLLIN)
        while True:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._freed)  # what was freed before this look
            free = list(_free(fd, 0, self._units))
            if sum(length for _, length in free) >= units:
                break
            poll.poll(_LOOK)
        for start, length in free:
            length = min(length, units)
            if length:
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, start, length))
            units -= length

    def _warn_once(self, task: str, need: int) -> None:
        """Say that a task runs alone, once in a run: the file's first byte remembers it."""
        if not os.pread(self._file, 1, 0):
            os.pwrite(self._file, b"\1", 0)
            sys.stderr.write(
                f"WARNING: {task} may need {need / 1e9:.2f} GB, more than the limit of "
                f"{self.limit / 1e9:.2f} GB; it runs alone, and so do others like it\n"
            )


def _flock(kind: int, start: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)


def _free(fd: int, start: int, end: int) -> Iterator[_Range]:
    """The parts of the range that nobody else has locked, as start and length."""
    if start >= end:
        return
    asked = _flock(fcntl.F_WRLCK, start, end - start)
    kind, _, first, length, _ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    if kind == fcntl.F_UNLCK:
        yield start, end - start
        return
    # The kernel names any one of the locks in the way.
    yield from _free(fd, start, min(first, end))
    yield from _free(fd, max(first + length, start), end)


def available() -> int:
    """Bytes that the machine, or the control group that this process is in, has to give."""
    found = [_cgroup_free(path) for path in _cgroups()]
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", "rb") as stream:
        for line in stream:
            if line.startswith(b"MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    known = [number for number in found if number is not None]
    return max(0, min(known)) if known else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")


def _cgroups() -> Iterator[str]:
    """The folders of this process's memory control groups, own first (cgroups(7))."""
    lines: list[str] = []
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8") as stream:
        lines = stream.read().splitlines()
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            top = "/sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            top = "/sys/fs/cgroup/memory"
        else:
            continue
        while True:
            yield top + group.rstrip("/")
            if group in ("/", ""):
                break
            group = os.path.dirname(group)


#: Files of version 2 and 1: the limit, the use, and the part of it that is only cache.
_CGROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def _cgroup_free(folder: str) -> int | None:
    """What a control group has left, ``None`` if it sets no limit."""
    for limit, use, cache in _CGROUP_FILES:
        with contextlib.suppress(OSError, ValueError):
            most = int(_read(folder, limit))  # "max" is no number
            stat = dict(line.split() for line in _read(folder, "memory.stat").splitlines())
            return most - int(_read(folder, use)) + int(stat.get(cache, 0))
    return None


def _read(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as stream:
        return stream.read()
