"""Says what a run does: a line per task that ran, a summary, errors last."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from doit.exceptions import BaseFail, InvalidTask, UnmetDependency
from doit.task import Task

from mnnqnn_tasks.errors import MnnqnnError
from mnnqnn_tasks.tasks import leftovers, run, session
from mnnqnn_tasks.tasks.fresh import explain


class Reporter:
    """doit's reporter interface (see doit's ``ConsoleReporter``)."""

    desc = "a line per executed task with its time, a summary, errors last"

    def __init__(self, outstream: TextIO, options: Any = None) -> None:
        self._out = outstream
        self._started: dict[str, float] = {}
        self._ran = 0
        self._done: list[str] = []
        self._fresh = 0
        self._failures: list[tuple[str, str]] = []
        self._waiting: list[str] = []
        self._errors: list[str] = []
        self._begin = time.monotonic()
        self._why = run.wants_reasons()

    def initialize(self, tasks: dict[str, Task], selected: list[str]) -> None:
        """The run begins."""

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
        self._ran += 1
        self._done.append(task.name)
        line = f"{task.name}  {time.monotonic() - started:.1f} s"
        if self._why:
            line += f"  because {explain(task)}"
        self._write(line)

    def add_failure(self, task: Task, fail: BaseFail) -> None:
        """The task failed, or waits for one that did."""
        self._started.pop(task.name, None)
        session.current().failed.add(task.name)
        if isinstance(fail, UnmetDependency):
            if not session.current().is_group(task.name):
                self._waiting.append(task.name)
        else:
            self._failures.append((task.name, fail.message))
            self._write(f"{task.name}  failed")

    def skip_uptodate(self, task: Task) -> None:
        """Nothing to do for the task."""
        if not session.current().is_group(task.name):
            self._fresh += 1

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
        self._failures.extend((name, "") for name in running)

    def teardown_task(self, task: Task) -> None:
        """A teardown starts."""

    def complete_run(self) -> None:
        """The run is over; doit has closed its database.

        Raises:
            InvalidTask: when a model changed while the run was using it.
        """
        changed: MnnqnnError | None = None
        if self._ran and not run.interrupted():
            changed = run.changed_models()
        for message, names in self._by_message().items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            self._write(f"\n{names[0]}{more} failed\n{message}")
        for message in self._errors:
            self._write(f"\n{message}")
        self._write(self._summary())
        if not (self._failures or self._waiting or self._errors or run.interrupted()):
            self._tidy()
        run.finish(clean=not run.interrupted() and not self._errors)
        if changed is not None:
            raise InvalidTask(str(changed))

    def _tidy(self) -> None:
        """After a run that ended well: drop what no graph reads, name what no target makes."""
        for job in session.current().jobs.values():
            if any(name.startswith(f"translate:{job.name}:") for name in self._done):
                leftovers.prune_blobs(job)
        old = leftovers.bundles() if self._ran else []
        if old:
            self._write(f"left by earlier pipelines: {', '.join(old)}; doit clean --old deletes it")

    def _by_message(self) -> dict[str, list[str]]:
        """Tasks by what they say: a missing library is one trouble, not sixty."""
        found: dict[str, list[str]] = {}
        for name, message in self._failures:
            if message:
                found.setdefault(message, []).append(name)
        return found

    def _summary(self) -> str:
        parts = [f"{self._ran} run", f"{self._fresh} up to date"]
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
