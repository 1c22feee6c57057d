"""What a Dask worker is asked to run."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

from mnnqnn_tasks.cluster.helper import Helper
from mnnqnn_tasks.cluster.request import Differs, Request

#: Helpers that wait for work; a Dask worker with several threads has as many.
_idle: list[Helper] = []
_lock = threading.Lock()


def run_remote(payload: bytes) -> bytes:
    """Do a stage, in a process that ends when nobody wants the result any more.

    Args:
        payload: a pickled `Request`.

    Returns:
        pickled, the `Answer` and the address of this Dask worker.
    """
    from distributed import get_worker

    request: Request = pickle.loads(payload)
    worker = get_worker()
    key = worker.get_current_task()
    helper = _take(Path(worker.local_directory, "mnnqnn"))
    said = helper.ask(request, lambda: _wanted(worker, key))
    if isinstance(said, Differs):
        helper.end()  # the next one reads the code anew: it may be brought up to date
    elif helper.usable:
        with _lock:
            _idle.append(helper)
    return pickle.dumps((said, worker.address))


def _take(scratch: Path) -> Helper:
    with _lock:
        while _idle:
            helper = _idle.pop()
            if helper.usable:
                return helper
            helper.end()
    return Helper(scratch)


def _wanted(worker: Any, key: object) -> bool:
    """Whether the scheduler still wants what the task ``key`` computes."""
    task = worker.state.tasks.get(key)
    return task is not None and task.state == "executing" and worker.status.name in _ALIVE


#: States of a worker (``distributed.core.Status``) in which its results can still be had.
_ALIVE = ("init", "running", "paused", "closing_gracefully")
