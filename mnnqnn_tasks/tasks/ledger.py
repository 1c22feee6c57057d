"""doit's database interface over the journals of the build folders.

State lies beside what it describes: each build folder has its journal, with paths that
do not change when the folder moves.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from doit.exceptions import InvalidTask

from mnnqnn_tasks.errors import DiskError
from mnnqnn_tasks.files import sha256_bytes
from mnnqnn_tasks.tasks import session, signals
from mnnqnn_tasks.tasks.journal import Journal, PathNames

#: doit's key for the list of file dependencies; it stores this one last.
_DEPS = "deps:"

#: doit's key for what a task returned.
_VALUES = "_values_:"

#: doit's key for the same again, to compare with in ``result_dep``.
_RESULT = "result:"


class Ledger:
    """The backend that ``DOIT_CONFIG`` names; see doit's ``JsonDB`` for the interface.

    Args:
        name: doit's ``dep_file``: where tasks of the user's own are kept.
    """

    desc = "one line per finished task, written when it finishes"

    def __init__(self, name: str, codec: object = None, *, module_name: str | None = None) -> None:
        self.name = name
        self._own = (Journal(Path(name)), PathNames({}))
        self._dirty: set[str] = set()
        self._touched: set[Journal] = set()
        self._homes: dict[str, tuple[Journal, PathNames]] = {}

    def _at(self, task_id: str) -> tuple[Journal, PathNames]:
        found = self._homes.get(task_id)
        if found is None:
            job = session.current().job_of(task_id)
            found = self._own if job is None else (job.place.journal, job.path_names)
            self._homes[task_id] = found
        return found

    def get(self, task_id: str, dependency: str) -> Any:
        """A stored value, or ``None``."""
        if session.current().is_group(task_id):
            return None
        journal, names = self._at(task_id)
        record = journal.records.get(task_id)
        if record is None:
            return None
        if dependency == _DEPS:
            return [names.expand(dep) for dep in record.get(_DEPS, ())]
        return record.get(names.shorten(dependency))

    def set(self, task_id: str, dependency: str, value: Any) -> None:
        """Store a value; the record reaches the disk when doit stores the last one."""
        if session.current().is_group(task_id):
            return  # a group is never asked whether it is fresh
        journal, names = self._at(task_id)
        record = journal.records.setdefault(task_id, {})
        if dependency == _VALUES and isinstance(value, dict):
            for short, was in value.get("made", {}).items():
                session.current().made[names.expand(short)] = was
        if dependency == _RESULT and isinstance(value, dict):
            # The values say it all once; whoever wants the result asks if it is another one.
            value = sha256_bytes(json.dumps(value, sort_keys=True).encode("utf-8"))
        if dependency != _DEPS:
            record[names.shorten(dependency)] = value
            self._dirty.add(task_id)
            return
        wanted = [names.shorten(dep) for dep in value]
        for stale in set(record.get(_DEPS, ())) - set(wanted):
            record.pop(stale, None)
        record[_DEPS] = sorted(wanted)
        self._write(task_id)

    def _write(self, task_id: str) -> None:
        journal, _ = self._at(task_id)
        self._touched.add(journal)
        self._dirty.discard(task_id)  # also if it fails: once is enough to say so
        try:
            journal.save(task_id)
        except DiskError as error:
            if session.current().running:
                signals.workers_end()
            raise InvalidTask(str(error)) from None  # doit ends the run with the message

    def in_(self, task_id: str) -> bool:
        """Whether the task has a record."""
        return task_id in self._at(task_id)[0].records

    def remove(self, task_id: str) -> None:
        """Forget a task, if it is the user who says so.

        doit also calls this for a failed task and for all that depend on it.  What they
        recorded stays true: a record names the content of every input and target, so
        once the trouble is gone, nothing that is still right is made again.
        """
        journal, _ = self._at(task_id)
        if session.current().running:
            return
        if journal.records.pop(task_id, None) is not None:
            self._write(task_id)

    def remove_all(self) -> None:
        """Forget every task of this run's build folders."""
        for journal in {self._own[0], *session.current().journals()}:
            for task_id in list(journal.records):
                del journal.records[task_id]
                journal.save(task_id)
            self._touched.add(journal)

    def dump(self) -> None:
        """Write what is left and tidy up; doit calls it when a command ends."""
        for task_id in sorted(self._dirty):
            self._write(task_id)
        for journal in self._touched:
            with contextlib.suppress(OSError, DiskError):
                journal.compact()
