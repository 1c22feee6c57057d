"""When Python looks for garbage.

Tasks are many small objects that stay.  Looking through them again and again is a quarter
of the time of a run with nothing to do.  A decoded model is the same, for a while.
"""

from __future__ import annotations

import gc

#: Thresholds for while tasks are made and found fresh, and for while one works: large
#: cycles must not pile up.
_TASKS, _WORK = (100_000, 50, 100), (20_000, 20, 50)


def rarely() -> None:
    """Tasks are about to be made."""
    gc.set_threshold(*_TASKS)


def at_work() -> None:
    """Work is about to begin; tasks are no garbage."""
    if gc.get_threshold() == _TASKS:
        gc.freeze()
        gc.set_threshold(*_WORK)
