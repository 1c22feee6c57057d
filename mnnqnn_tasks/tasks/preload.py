"""Modules that a worker loads while it has nothing to do.

The first stages of a model follow one another, so all workers but one wait.  A worker that
has work to do loads nothing beside it: the two would only take turns.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Iterable, Iterator

from mnnqnn_tasks.tasks.session import Job

#: What the stages load, in their order; the first ones only where a model is cut anew.
_CUT = ("mnnqnn_tasks.toolchain.opcheck", "mnnqnn_tasks.partition.template")
_GRAPHS = ("mnnqnn_tasks.partition.fill", "mnnqnn_tasks.translate.emit", "mnnqnn_tasks.qnn.run")

_idle = threading.Event()


def start(jobs: Iterable[Job]) -> None:
    """Begin in this process, a worker, until it is `busy`."""
    new = any(not os.path.exists(job.layout.cut_json) for job in jobs)
    names = ("numpy", *(_CUT if new else ()), *_GRAPHS)
    _idle.set()
    threading.Thread(target=_load, args=(names,), daemon=True).start()


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """The process has work to do while the block runs."""
    _idle.clear()
    try:
        yield
    finally:
        _idle.set()


def _load(names: Iterable[str]) -> None:
    for name in names:
        _idle.wait()
        with contextlib.suppress(ImportError):  # whoever needs it says so
            importlib.import_module(name)
