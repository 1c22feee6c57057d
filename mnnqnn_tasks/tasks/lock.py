"""One run at a time in a build folder, and a broom for what a killed run left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path

from mnnqnn_tasks.errors import BusyError
from mnnqnn_tasks.files import TEMP_PREFIX, disk_errors
from mnnqnn_tasks.tasks.journal import open_own

#: How long the workers of a killed run may take to follow it, in seconds.
_GRACE = 5.0


class FolderLock:
    """An exclusive lock on a folder, held until the process ends or `release`.

    The lock file holds the process id of a run in progress and is empty after one that
    ended by itself, so the next run knows whether there is anything to sweep.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """Whether this process has the lock."""
        return self._fd is not None

    def acquire(self) -> bool:
        """Take the lock.

        Returns:
            Whether the run before this one was killed.

        Raises:
            BusyError: when another run holds it, with its process id.
            DiskError: when the lock file cannot be written.
        """
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = open_own(self.path, os.O_RDWR)
        deadline = time.monotonic() + _GRACE
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                owner = _read_pid(fd)
                if owner is not None and not _alive(owner) and time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                os.close(fd)
                raise BusyError(
                    "another run is using this build folder",
                    where=str(self.path.parent.parent),
                    why="it is process " + (str(owner) if owner else "of unknown id"),
                    todo="wait until it ends, or give this pipeline another build_dir",
                ) from None
        killed = _read_pid(fd) is not None
        with disk_errors(self.path):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd
        return killed

    def release(self, *, clean: bool) -> None:
        """Give the lock back; ``clean`` says that there is nothing to sweep."""
        if self._fd is None:
            return
        if clean:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
        os.close(self._fd)
        self._fd = None


def _read_pid(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).split(b"\n")[0]
    return int(text) if text.isdigit() else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def sweep(folder: Path) -> int:
    """Delete the temporary files and folders that a killed run left under ``folder``.

    Returns:
        How many there were.
    """
    count = 0
    for parent, folders, names in os.walk(folder):
        for name in [f for f in folders if f.startswith(TEMP_PREFIX)]:
            folders.remove(name)
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
            count += 1
        for name in names:
            if name.startswith(TEMP_PREFIX):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(parent, name))
                    count += 1
    return count
