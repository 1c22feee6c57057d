"""doit tasks, commands and reporter: the only room that knows doit.

A ``dodo.py`` that exports every pipeline in ``pipelines/`` is::

    from mnnqnn_tasks.tasks import load

    globals().update(load())
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

#: The oldest Python that this package runs on.
PYTHON = (3, 11)


def load() -> dict[str, Any]:
    """What a ``dodo.py`` needs in its namespace: configuration and task creator.

    Imports are inside: doit imports this package to look for plugins, also for projects
    that have nothing to do with it.

    Raises:
        InvalidDodoFile: when a pipeline, Python or a wheel is wrong; doit prints its
            message without a traceback.
    """
    from doit.exceptions import InvalidDodoFile

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)  # until a run installs its own
    if sys.version_info < PYTHON:
        wanted = ".".join(map(str, PYTHON))
        have = ".".join(map(str, sys.version_info[:3]))
        raise InvalidDodoFile(
            f"Python {have} is too old\n"
            f"  to do: make a virtual environment with Python {wanted} or newer and install again"
        )
    from mnnqnn_tasks.tasks import loader

    return loader.load()


def _leave(number: int, frame: FrameType | None) -> None:
    """Ctrl-C: the exit status that a shell expects, and no traceback."""
    raise SystemExit(128 + number)


__all__ = ["PYTHON", "load"]
