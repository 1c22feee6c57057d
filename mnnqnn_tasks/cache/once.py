"""Something that happens once in a run, whichever of its processes comes first."""

from __future__ import annotations

import mmap
import os


class Once:
    """Claimed by one caller of this process and all that are forked from it.

    A counter of the kernel (eventfd) decides, so that nothing is left locked by a process
    that is killed; a shared page lets the others look without taking.  A copy that was
    pickled to another process is a new one.
    """

    def __init__(self) -> None:
        flags = os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE
        self._turn = os.fdopen(os.eventfd(1, flags), "rb", buffering=0)
        self._page = mmap.mmap(-1, 1)

    def claim(self) -> bool:
        """True for the first caller only."""
        first = self._turn.read(8) is not None
        self._page[0] = 1
        return first

    @property
    def claimed(self) -> bool:
        """Whether somebody has claimed it."""
        return self._page[0] != 0

    def __reduce__(self) -> tuple[type[Once], tuple[()]]:
        return Once, ()
