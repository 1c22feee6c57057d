"""Calls that may hang, and are given up when they make no progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

#: Tells that the work is getting on.
Beat = Callable[[], None]


class Stalled(TimeoutError):
    """A call made no progress for too long; it may still be hanging somewhere."""


class _Call(Generic[T]):
    def __init__(self, work: Callable[[Beat], T], seconds: float) -> None:
        self._work = work
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._ended = threading.Event()
        self._given_up = False
        self._result: T
        self._error: BaseException | None = None

    def _beat(self) -> None:
        if self._given_up:
            raise Stalled("nobody waits for this any more")
        self._deadline = time.monotonic() + self._seconds

    def _run(self) -> None:
        try:
            self._result = self._work(self._beat)
        except BaseException as error:  # it belongs to the thread that waits
            self._error = error
        self._ended.set()

    def wait(self) -> T:
        # A daemon: a call that hangs for good must not keep the process from ending.
        threading.Thread(target=self._run, daemon=True).start()
        while not self._ended.wait(max(0.0, self._deadline - time.monotonic())):
            if time.monotonic() >= self._deadline:
                self._given_up = True
                raise Stalled(f"no answer for {self._seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._result


def patiently(work: Callable[[Beat], T], seconds: float) -> T:
    """The result of ``work``, on a thread of its own.

    Args:
        work: given a function to call whenever it gets on; that raises `Stalled` once
            nobody waits any more.
        seconds: how long it may go without.

    Raises:
        Stalled: it took longer; the thread is left to itself.
        Exception: what ``work`` raised.
    """
    return _Call(work, seconds).wait()
