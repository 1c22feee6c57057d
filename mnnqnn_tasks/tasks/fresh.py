"""Whether a task's result is still what its inputs and options make.

Two halves: doit asks `ContentChecker` about every file that a task reads, and `Fresh`
about everything else: the options, the versions of code and libraries, and the files
that the task made.  Wherever one of them decides that a task must run, it says why.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from doit.dependency import FileChangedChecker
from doit.task import Task

from mnnqnn_tasks.tasks import session
from mnnqnn_tasks.tasks.journal import PathNames

#: Where a task's values keep what `Fresh` compares.
_KEY, _MADE = "key", "made"

#: Size and time of a file; a task's record adds the digest of what it made.
Stamp = list[int]
Check = Callable[[Mapping[str, Any]], str | None]


def stamp(path: str) -> Stamp | None:
    """Size and modification time of a file, ``None`` if there is none.

    Enough for files of our own: nothing else may write to them, so the aim is to notice
    an accident or an edit, not a forgery.  No inode and no change time, because a blob
    gets more links while other graphs are translated.
    """
    try:
        info = os.stat(path)
    except OSError:
        return None
    return [info.st_size, info.st_mtime_ns]


def difference(path: str, was: Any) -> str | None:
    """How a file of ours differs from what was recorded, ``None`` if it does not.

    Args:
        path: the file.
        was: ``[size, time, sha256]``.  Equal stamps settle the matter; a copy of the
            folder has other times, and then the content decides.
    """
    now = stamp(path)
    if now is None:
        return "is missing"
    if not isinstance(was, list):
        return "was altered"  # it was gone before it was recorded
    if now == was[:2]:
        return None
    same = now[0] == was[0] and len(was) > 2
    return None if same and session.current().readable_digest(path) == was[2] else "was altered"


class ContentChecker(FileChangedChecker):  # type: ignore[misc]
    """doit's checker of file dependencies: content counts, time stamps do not.

    A state is ``[size, mtime, sha256]``.  Equal stamps settle the matter for files that
    only we write; for the rest there is a memory of digests that all tasks share.
    """

    def exists(self, file_path: str) -> bool:
        """Whether a target is there: `Fresh` has just seen that most of them are."""
        return file_path in session.current().seen or bool(super().exists(file_path))

    def check_modified(self, file_path: str, file_stat: os.stat_result, state: Any) -> bool:
        """Whether the file's content differs from what ``state`` recorded."""
        if not isinstance(state, list) or len(state) != 3:
            return True
        if _is_ours(file_path) and state[:2] == [file_stat.st_size, file_stat.st_mtime_ns]:
            return False
        if state[0] != file_stat.st_size:
            return True
        digest = session.current().readable_digest(file_path)
        return digest is None or digest != state[2]

    def get_state(self, dep: str, current_state: Any) -> Any:
        """The state to record after a task ran."""
        before = stamp(dep)
        if before is None:
            raise FileNotFoundError(2, os.strerror(2), dep)
        if _is_ours(dep) and current_state and current_state[:2] == before:
            return None
        made = session.current().made.get(dep)
        if made and made[:2] == before:
            return made  # by a task of this run, which knows its digest
        return [*before, session.current().readable_digest(dep)]


def _is_ours(path: str) -> bool:
    return session.current().is_output(path)


class Fresh:
    """An ``uptodate`` entry: options unchanged and everything that was made still there.

    Args:
        key: JSON values that the result depends on beside files; flat, so that a reason
            can name the entry that changed.
        names: the path names of the model.
        checks: further conditions, given what the task returned; each gives a reason to
            run or ``None``.
    """

    #: doit asks for the signature of every entry of every task, and inspecting is slow.
    __signature__ = inspect.Signature(
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("task", "values")]
    )

    def __init__(
        self, key: Mapping[str, Any], names: PathNames, checks: tuple[Check, ...] = ()
    ) -> None:
        self.key = dict(key)
        self._names = names
        self.checks = checks
        self._reason = ""

    def configure_task(self, task: Task) -> None:
        """Called by doit when the task is made."""
        task.value_savers.append(lambda: {_KEY: self.key})

    def __call__(self, task: Task, values: Mapping[str, Any]) -> bool:
        """Called by doit to know whether the task may be skipped."""
        reason = self.why(values)
        if reason:
            self._reason = session.current().reasons[task.name] = reason
        return reason is None

    def why(self, values: Mapping[str, Any]) -> str | None:
        """The reason to run again of a task that returned ``values``, ``None`` for none."""
        seen = session.current().seen
        seen.clear()
        if _KEY not in values:
            return "it never finished before"
        old = values[_KEY]
        if old != self.key:
            names = sorted(n for n in {*old, *self.key} if old.get(n) != self.key.get(n))
            if names:
                return ", ".join(
                    f"{n} changed{_from_to(old.get(n), self.key.get(n))}" for n in names
                )
        for short, was in values.get(_MADE, {}).items():
            path = self._names.expand(short)
            differs = difference(path, was)
            if differs:
                return f"{short} {differs}"
            seen.add(path)
        return next((r for check in self.checks if (r := check(values))), None)

    def __repr__(self) -> str:
        return self._reason or "options, versions and results"


def _from_to(old: object, new: object) -> str:
    text = f" from {old!r} to {new!r}"
    return text if len(text) < 60 else ""


def explain(task: Task) -> str:
    """Why doit decided to run ``task``: what `Fresh` said, else what its files say."""
    said = session.current().reasons.get(task.name)
    if said:
        return said
    changed = [os.path.basename(path) for path in task.dep_changed or ()]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return f"{min(changed)}{more} changed"
    if not task.actions:
        return "it is not known before the model is cut"
    missing = [t for t in task.targets if not os.path.exists(t)]
    if missing:
        return f"{os.path.basename(missing[0])} is missing"
    return "its list of inputs changed"
