"""Runs a stage as a doit action, and turns what goes wrong into doit's words."""

from __future__ import annotations

import os
import shutil
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from doit.exceptions import TaskError, TaskFailed

from mnnqnn_tasks.errors import DiskError, MnnqnnError
from mnnqnn_tasks.tasks import cached, garbage, preload, session
from mnnqnn_tasks.tasks.cached import Action
from mnnqnn_tasks.tasks.session import GenieJob, Job
from mnnqnn_tasks.toolchain import packing

if TYPE_CHECKING:
    from mnnqnn_tasks.toolchain.work import Work

#: Set this variable to see Python's traceback of an unexpected error.
DEBUG_VAR = "MNNQNN_DEBUG"


def run_stage(
    task_name: str,
    stage: str,
    arguments: Mapping[str, Any],
    recall: Sequence[str] = (),
    action: Action | None = None,
) -> Any:
    """Call the function ``stage`` of the toolchain, unless the cache has its result.

    It returns the files that it made, and values to remember.  With ``recall`` it is told
    what was recorded of the files that these tasks made, as ``recorded``.

    Returns:
        doit's failure object, or the values for doit to store: those that the function
        returned, and

        * ``made``: by name in the journal, size, time and digest of every file made;
        * ``used``: ``seconds`` of work, and ``peak`` memory in bytes of the largest
          process that did it;
        * ``cache``: ``outcome`` ``hit`` (the result was restored), ``miss`` or ``off``
          (nobody looked), and the action's ``key`` or ``None``.
    """
    with preload.busy():
        return _run_stage(task_name, stage, arguments, recall, action)


def _run_stage(
    task_name: str,
    stage: str,
    arguments: Mapping[str, Any],
    recall: Sequence[str],
    action: Action | None,
) -> Any:
    garbage.at_work()
    here = session.current()
    job = here.job_of(task_name)
    executor = here.executor
    assert job is not None and executor is not None
    try:
        if recall:
            arguments = {**arguments, "recorded": _recorded(job, recall)}
        cache = here.cache_of(job)
        begin = time.monotonic()
        done: Work | None = None

        def work(goal: cached.Goal | None) -> cached.Outcome:
            nonlocal done
            done = executor.perform(task_name, job, stage, arguments, goal)
            return done.made, done.values

        (made, values), how = cached.through(cache, job, action, work)
        digests, blobs = values.pop("digests", {}), values.get("blobs", {})
        record = packing.record(made, digests, job.layout.blobs, blobs)
        seconds = round(time.monotonic() - begin, 3) if done is None else done.seconds
        if cache is not None and action is not None and how["outcome"] == "miss":
            if done is None or not done.kept:
                cached.keep(cache, job, action, how["key"], record, values, seconds)
        elif cache is not None and stage in ("bundle", "genie.bundle"):
            from mnnqnn_tasks.tasks import exports

            exports.keep(cache, job, arguments, record, seconds)
        return {
            "made": {job.path_names.shorten(path): was for path, was in record.items()},
            "used": {"seconds": seconds, "peak": 0 if done is None else done.peak},
            "cache": how,
            **values,
        }
    except MnnqnnError as error:
        return TaskFailed(str(error))
    except MemoryError:
        return TaskFailed(
            f"{task_name}: not enough memory\n  to do: run with fewer processes, -n 1"
        )
    except Exception as error:
        return TaskError(internal_error(error))


def _recorded(job: Job | GenieJob, tasks: Iterable[str]) -> dict[str, Any]:
    """What the journal has of the files that ``tasks`` made, by path."""
    found: dict[str, Any] = {}
    for task in tasks:
        values = job.place.journal.records.get(task, {}).get("_values_:")
        made = values.get("made") if isinstance(values, dict) else None
        for short, was in (made if isinstance(made, dict) else {}).items():
            if isinstance(was, list) and len(was) == 3:
                found[job.path_names.expand(short)] = was
    return found


def internal_error(error: BaseException) -> str:
    """The message for an error that nobody foresaw."""
    text = (
        f"internal error, please report it: {type(error).__name__}: {error}\n"
        f"  to do: run again with {DEBUG_VAR}=1 to see where it comes from"
    )
    if os.environ.get(DEBUG_VAR):
        text += "\n" + "".join(traceback.format_exception(error))
    return text


def remove(paths: list[str], dryrun: bool) -> None:
    """A clean action: delete files and whole folders that a task made.

    What cannot be deleted goes to the session's problems: doit looks at no result of a
    clean action.
    """
    here = session.current()
    for path in paths:
        if not os.path.lexists(path):
            continue
        print(f"removing '{path}'")
        here.removed += 1
        if dryrun:
            continue
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.remove(path)
                _remove_empty(os.path.dirname(path))
        except OSError as error:
            why = error.strerror or str(error)
            todo = "make it writable, then clean again"
            told = DiskError("cannot delete", where=error.filename or path, why=why, todo=todo)
            here.problems.setdefault(why, str(told))


def _remove_empty(folder: str) -> None:
    try:
        os.rmdir(folder)
    except OSError:
        return
