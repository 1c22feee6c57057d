"""When Python looks for garbage.

Tasks are many small objects that stay.  Looking through them again and again is a quarter
of the time of a run with nothing to do.
"""

from __future__ import annotations

import gc

#: Python's own thresholds, and those for while tasks are made and found fresh.
_USUAL, _RARE = gc.get_threshold(), (100_000, 50, 100)


def rarely() -> None:
    """Tasks are about to be made."""
    gc.set_threshold(*_RARE)


def usually() -> None:
    """Work is about to begin, which may leave large cycles; tasks are no garbage."""
    if gc.get_threshold() == _RARE:
        gc.freeze()
        gc.set_threshold(*_USUAL)
