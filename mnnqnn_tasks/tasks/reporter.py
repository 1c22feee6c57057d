"""Says what a run does: a line per task that ran, a summary, errors last."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from doit.exceptions import BaseFail, InvalidTask, TaskFailed, UnmetDependency
from doit.task import Task

from mnnqnn_tasks.errors import MnnqnnError
from mnnqnn_tasks.tasks import leftovers, report, run, seal, session
from mnnqnn_tasks.tasks.fresh import explain
from mnnqnn_tasks.tasks.outcome import TaskOutcome, TaskResult, counts, exports, table, wanted
from mnnqnn_tasks.tasks.report import RunResult


class Reporter:
    """doit's reporter interface (see doit's ``ConsoleReporter``)."""

    desc = "a line per executed task with its time, a summary, errors last"

    def __init__(self, outstream: TextIO, options: Any = None) -> None:
        self._out = outstream
        self._started: dict[str, float] = {}
        self._tasks: dict[str, Task] = {}
        self._selected: list[str] = []
        self._results: dict[str, TaskResult] = {}
        self._fresh: list[str] = []
        self._failures: list[tuple[str, str]] = []
        self._waiting: list[str] = []
        self._only_failures = True
        self._errors: list[str] = []
        self._begin = time.monotonic()
        self._why = run.wants_reasons()

    def initialize(self, tasks: dict[str, Task], selected: list[str]) -> None:
        """The run begins."""
        self._tasks = tasks
        self._selected = selected

    def get_status(self, task: Task) -> None:
        """doit is about to ask whether the task is fresh."""

    def execute_task(self, task: Task) -> None:
        """The task starts."""
        self._started[task.name] = time.monotonic()

    def add_success(self, task: Task) -> None:
        """The task ended well."""
        started = self._started.pop(task.name, None)
        if session.current().is_group(task.name) or started is None:
            return
        hit = task.values.get("cache", {}).get("outcome") == "hit"
        seconds = task.values.get("used", {}).get("seconds", time.monotonic() - started)
        reason = explain(task)
        outcome: TaskOutcome = "restored" if hit else "run"
        self._results[task.name] = TaskResult(outcome, seconds, reason, task.values)
        line = f"{task.name}  {time.monotonic() - started:.1f} s"
        if hit:
            line += "  from the cache"
        if self._why:
            line += f"  because {reason}"
        self._write(line)

    def add_failure(self, task: Task, fail: BaseFail) -> None:
        """The task failed, or waits for one that did."""
        begin = self._started.pop(task.name, None)
        session.current().failed.add(task.name)
        if isinstance(fail, UnmetDependency):
            if not session.current().is_group(task.name):
                self._waiting.append(task.name)
                reason = f"waits for {' '.join(sorted(set(fail.message.split())))}"
                self._results[task.name] = TaskResult("not run", 0, reason, {})
            return
        self._only_failures &= isinstance(fail, TaskFailed)
        self._failures.append((task.name, fail.message))
        seconds = time.monotonic() - begin if begin else 0
        self._results[task.name] = TaskResult("failed", seconds, fail.message, {})
        self._write(f"{task.name}  failed")

    def skip_uptodate(self, task: Task) -> None:
        """Nothing to do for the task."""
        if not session.current().is_group(task.name):
            self._fresh.append(task.name)

    def skip_ignore(self, task: Task) -> None:
        """The user told doit to ignore the task."""
        self._write(f"{task.name}  ignored")

    def cleanup_error(self, exception: BaseFail) -> None:
        """A teardown failed."""
        self._errors.append(exception.get_msg())

    def runtime_error(self, msg: str) -> None:
        """doit itself gives up."""
        running = [name for name in self._started if not session.current().is_group(name)]
        where = f"{', '.join(running)}: " if running else ""
        self._errors.append(where + msg)
        for name in running:
            self._failures.append((name, ""))
            self._results[name] = TaskResult("failed", 0, msg, {})

    def teardown_task(self, task: Task) -> None:
        """A teardown starts."""

    def complete_run(self) -> None:
        """The run is over; doit has closed its database.

        Raises:
            InvalidTask: when a model changed while the run was using it.
        """
        changed: MnnqnnError | None = None
        if self._ran() and not run.interrupted():
            changed = run.changed_models()
        results = self._all_results()
        rows = exports(results)
        for message, names in self._by_message().items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            self._write(f"\n{names[0]}{more} failed\n{message}")
        for message in self._errors:
            self._write(f"\n{message}")
        if len(rows) > 1 and any(row.outcome != "up to date" for row in rows):
            for line in ("", *table(rows), f"exports: {counts(rows)}"):
                self._write(line)
        self._write(self._summary())
        failed = bool(self._failures or self._waiting or self._errors)
        if not (failed or run.interrupted()):
            self._tidy()
        if not (self._errors or changed or run.interrupted()):
            seal.keep(self._tasks, [*self._fresh, *self._ran()])
        ended = "interrupted" if run.interrupted() else "failed" if failed or changed else "ok"
        whole = RunResult(ended, time.monotonic() - self._begin, self._selected)
        for trouble in report.write(whole, results, rows):
            self._write(f"WARNING: {trouble}")
        session.current().only_failures = self._only_failures and not self._errors
        run.finish(clean=not run.interrupted() and not self._errors)
        if changed is not None:
            raise InvalidTask(str(changed))

    def _tidy(self) -> None:
        """After a run that ended well: drop what no graph reads, name what no target makes."""
        for job in session.current().jobs.values():
            if any(name.startswith(f"translate:{job.name}:") for name in self._ran()):
                leftovers.prune_blobs(job)
        old = leftovers.bundles() if self._ran() else []
        if old:
            self._write(f"left by earlier pipelines: {', '.join(old)}; doit clean --old deletes it")

    def _ran(self, *outcomes: TaskOutcome) -> list[str]:
        """Names of the tasks with one of ``outcomes``; of those that ran or were restored."""
        among = outcomes or ("run", "restored")
        return [name for name, result in self._results.items() if result.outcome in among]

    def _all_results(self) -> dict[str, TaskResult]:
        """What became of every task that was asked for, sorted by name."""
        known = dict(self._results)
        for name in self._fresh:
            known[name] = TaskResult("fresh", 0, None, self._tasks[name].values)
        why = "the run was interrupted" if run.interrupted() else "its inputs were not made"
        lost = TaskResult("not run", 0, why, {})
        found = {name: known.get(name, lost) for name in wanted(self._tasks, self._selected)}
        for tasks in session.current().sealed.values():
            for name, task in tasks.items():
                found[name] = TaskResult("fresh", 0, None, {}, (task.files, task.bytes))
        return dict(sorted(found.items()))

    def _up_to_date(self) -> int:
        return len(self._fresh) + sum(map(len, session.current().sealed.values()))

    def _by_message(self) -> dict[str, list[str]]:
        """Tasks by what they say: a missing library is one trouble, not sixty."""
        found: dict[str, list[str]] = {}
        for name, message in self._failures:
            if message:
                found.setdefault(message, []).append(name)
        return found

    def _summary(self) -> str:
        parts = [f"{len(self._ran('run'))} run", f"{self._up_to_date()} up to date"]
        if self._ran("restored"):
            parts.insert(1, f"{len(self._ran('restored'))} restored")
        if self._failures:
            parts.append(f"{len(self._failures)} failed")
        if self._waiting:
            parts.append(f"{len(self._waiting)} not run because of that")
        if run.interrupted():
            parts.append("interrupted")
        return f"{', '.join(parts)}; {time.monotonic() - self._begin:.1f} s"

    def _write(self, line: str) -> None:
        with unread_output():
            self._out.write(line + "\n")
            self._out.flush()


@contextlib.contextmanager
def unread_output() -> Iterator[None]:
    """Go on in silence when the reader of our output is gone, as in ``doit why | head``."""
    try:
        yield
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # also for what Python still holds back
        os.close(nowhere)
