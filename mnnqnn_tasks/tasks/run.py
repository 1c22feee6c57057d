"""The frame of a run: locks taken before anything is read, models compared at the end."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import Any

from doit.exceptions import InvalidCommand

from mnnqnn_tasks.errors import MnnqnnError, StaleInputError
from mnnqnn_tasks.tasks import executor as executors
from mnnqnn_tasks.tasks import names, preload, session, signals
from mnnqnn_tasks.tasks.checks import ModelUnchanged
from mnnqnn_tasks.tasks.lock import sweep
from mnnqnn_tasks.tasks.session import Place

#: Commands that neither make nor forget anything.
_READ_ONLY = frozenset(
    {"list", "info", "help", "dumpdb", "why", "ci_plan", "cache", "tabcompletion"}
)


def begin(command: Any) -> bool:
    """Prepare for ``command``.

    Returns:
        Whether it executes tasks.

    Raises:
        InvalidCommand: when no task could ever run.
        ToolMissing: when a pipeline wants Dask, and it is not installed.
        BusyError: when another run uses a build folder.
        DiskError: when a build folder cannot be written.
    """
    executes = command is None or bool(command.execute_tasks)
    processes = names.loading_option("num_process")
    if executes and processes is not None and processes < 0:
        raise InvalidCommand(
            f"-n {processes} is no number of processes\n"
            "  to do: -n 2 runs two tasks at once, -n 0 runs them in the main process"
        )
    if command is not None and command.get_name() in _READ_ONLY:
        return executes
    here = session.current()
    if executes:
        executors.require(here.jobs.values())
    for place in here.places.values():
        if place.lock.acquire():
            _sweep(place)
    atexit.register(finish, clean=not executes, only=os.getpid())
    if executes:
        here.running = True
        here.share_memory()
        here.open_caches()
        cores = len(os.sched_getaffinity(0))
        here.executor = executors.Executor(
            here.jobs.values(), cores if processes is None else processes
        )
        signals.install(_prepare, _prepare_worker)
    return executes


def _prepare() -> None:
    """There is work to do: what it may need starts up beside it."""
    if not session.current().builds:
        return
    from mnnqnn_tasks.qnn import client

    work = session.current().executor
    started = client.prestart(), work.start() if work else None
    signals.helpers.update(pid for pid in started if pid is not None)


def _prepare_worker() -> None:
    here = session.current()
    if here.builds:
        preload.start(here.jobs.values())


def _sweep(place: Place) -> None:
    jobs = session.current().every_job()
    dist = {Path(job.layout.dist) for job in jobs if job.place is place}
    for folder in {place.build_dir, *dist}:
        sweep(folder)


def finish(*, clean: bool, only: int | None = None) -> None:
    """Give the locks back.

    Args:
        clean: the run ended by itself, so there is nothing to sweep; else that is done
            now, and again by the next run if something still lives that may write.
        only: do nothing in another process than this one.
    """
    if only in (None, os.getpid()):
        signals.calm()
        if signals.helpers:
            from mnnqnn_tasks.qnn import client

            client.end_prestarted()
        work = session.current().executor
        if work is not None:
            work.end()
        held = [place for place in session.current().places.values() if place.lock.held]
        gone = clean or not held or signals.workers_gone()
        for place in held:
            if not clean or (work is not None and work.used):
                _sweep(place)
            # Other machines may need a moment to notice that nobody wants their results.
            place.lock.release(clean=gone and (clean or work is None or not work.elsewhere))


def interrupted() -> bool:
    """Whether the run is on its way out because of a signal or an error in doit."""
    return sys.exc_info()[0] is not None


def wants_reasons() -> bool:
    """Whether the user asked with ``why=1`` for the reason of every task."""
    from doit import get_var

    return get_var("why", "0") not in ("0", "", "no", "false")


def changed_models() -> MnnqnnError | None:
    """The error for a model whose files are not those that this run digested."""
    for job in session.current().jobs.values():
        record = job.place.journal.records.get(f"model:{job.name}", {})
        values = record.get("_values_:", {})
        folder = str(job.model.path)
        files = [os.path.join(folder, name) for name in values.get("files", {})]
        try:
            reason = ModelUnchanged(job, files)(values) if files else None
        except MnnqnnError as error:
            return error
        if reason:
            return StaleInputError(
                "the model changed while it was exported",
                where=folder,
                why=f"{reason} since it was read",
                todo="run again when the file is complete; what was made from it is not trusted",
            )
    return None
