"""The task database: a journal that survives a kill.

doit's own backends write everything when the run ends, so a killed run forgets all that
it did, and a kill while they write leaves a file that ends the next run in a traceback.
Here every finished task is appended as one line of JSON the moment it is done: a torn
last line is a task that was not done, and nothing else is lost.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import DiskError
from mnnqnn_tasks.files import disk_errors, write_text

Record = dict[str, Any]

#: How every line of the journal begins.
_BEGIN = b'["'

#: A line about a task of a model, whose name needs no escapes.
_OF_A_MODEL = re.compile(rb'\["[a-z_]+:([A-Za-z0-9._+-]+)[":]')

#: Dead lines are dropped once there are this many more of them than live ones.
_SLACK = 64


def open_own(path: Path, flags: int) -> int:
    """Open or create a file that only this program has a reason to write.

    Raises:
        DiskError: when it cannot be written, or a link, a pipe or a device lies in its
            place: what is not ours is not written.
    """
    flags |= os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    if os.path.lexists(path) and not _is_own(path) and (path.is_symlink() or not path.is_dir()):
        raise DiskError(
            "cannot write",
            where=str(path),
            why="a link or a device lies where the file belongs",
            todo="delete it, then run again",
        )
    with disk_errors(path):
        return os.open(path, flags, 0o644)


def _is_own(path: Path) -> bool:
    """Whether it is a file and no link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


class Journal:
    """Task records in a file of JSON lines, ``["task", {...}]`` or ``["task", null]``.

    Reading happens on first use, so that a run first takes the lock and then reads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: dict[str, Record] | None = None
        self._lines = 0
        self._torn_at: int | None = None  # where a line begins that a kill cut short
        self._gap = b""  # what separates the next line from an end that is not ours

    @property
    def records(self) -> dict[str, Record]:
        """The records by task name."""
        if self._records is None:
            self._records = self._load()
        return self._records

    def digests(self) -> dict[str, str]:
        """By model, hex SHA-256 of all lines about its tasks as the file has them now.

        Parses nothing.  Lines that do not plainly say whose they are count for every model.
        """
        try:
            *lines, last = self.path.read_bytes().split(b"\n") if _is_own(self.path) else [b""]
        except OSError:
            return {}  # whoever reads the records says so
        rest = hashlib.sha256(last)
        models: dict[bytes, Any] = {}
        for line in lines:
            found = _OF_A_MODEL.match(line)
            if found is None:
                rest.update(line)
                continue
            model = models.get(found[1])
            if model is None:
                model = models[found[1]] = hashlib.sha256()
            model.update(line)
        for model in models.values():
            model.update(rest.digest())
        return {name.decode(): model.hexdigest() for name, model in models.items()}

    def _load(self) -> dict[str, Record]:
        if not _is_own(self.path):
            return {}  # whoever writes to it finds out
        try:
            data = self.path.read_bytes()
        except OSError as error:
            _warn(self.path, error.strerror or str(error))
            return {}
        records: dict[str, Record] = {}
        lines = data.split(b"\n")
        if lines[-1] and _BEGIN.startswith(lines[-1][:2]):
            self._torn_at = len(data) - len(lines[-1])
        elif lines[-1]:
            self._gap = b"\n"
        damaged = 0
        for line in lines[:-1]:
            try:
                name, record = json.loads(line)
                if record is None:
                    records.pop(name, None)
                elif isinstance(name, str) and isinstance(record, dict):
                    records[name] = record
                else:
                    damaged += 1
            except (ValueError, TypeError, RecursionError):
                damaged += 1
        self._lines = len(lines)
        if damaged:
            _warn(self.path, f"{damaged} damaged lines")
        return records

    def save(self, name: str) -> None:
        """Append the record of the task ``name`` as it is now.

        Raises:
            DiskError: when the file cannot be written.
        """
        line = json.dumps([name, self.records.get(name)], ensure_ascii=False) + "\n"
        self._lines += 1
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = open_own(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                if self._torn_at is not None:
                    os.ftruncate(fd, self._torn_at)
                    self._torn_at = None
                # One write: a kill leaves the whole line or a torn last one.
                data = self._gap + line.encode("utf-8", "surrogateescape")
                start = os.fstat(fd).st_size
                if os.write(fd, data) != len(data):
                    os.ftruncate(fd, start)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._gap = b""
            finally:
                os.close(fd)

    def compact(self) -> None:
        """Rewrite the file without dead lines when there are many of them."""
        if self._records is None or self._lines <= 2 * len(self._records) + _SLACK:
            return
        lines = [json.dumps([n, r], ensure_ascii=False) for n, r in self._records.items()]
        write_text(self.path, "".join(line + "\n" for line in lines))
        self._lines = len(lines)


def _warn(path: Path, why: str) -> None:
    sys.stderr.write(f"WARNING: {path}: {why}; the tasks it described run again\n")


class PathNames:
    """Names for paths that do not change when a folder is moved or spelled differently.

    ``folders`` maps a name such as ``@build`` to a folder as this run spells it; a
    folder's files are then called ``@build/...`` in the journal.
    """

    def __init__(self, folders: dict[str, str]) -> None:
        # The longest folder first: a build folder may lie inside a model folder.
        pairs = sorted(folders.items(), key=lambda item: -len(item[1]))
        self._out = [(folder + os.sep, name + "/") for name, folder in pairs]
        self._back = [(name, folder) for folder, name in self._out]

    def shorten(self, path: str) -> str:
        """The name to store for ``path``."""
        for folder, name in self._out:
            if path.startswith(folder):
                return name + path[len(folder) :]
        return path

    def expand(self, name: str) -> str:
        """The path that `shorten` made ``name`` from, as this run spells it."""
        for prefix, folder in self._back:
            if name.startswith(prefix):
                return folder + name[len(prefix) :]
        return name
