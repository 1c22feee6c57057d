"""One function on many items, on threads where that helps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

#: Below this many bytes threads cost more than they save.
_SMALL = 4 << 20

#: For digests and copies, which use a core each.
_WORKERS = 4

#: For transfers, which wait more than they work.
_WAITERS = 8


def on_threads(function: Callable[[T], R], items: Iterable[T], total: int) -> list[R]:
    """``function`` of every item in order; the first error ends it.

    Args:
        total: how many bytes there are to work on.
    """
    return _each(function, list(items), _WORKERS if total >= _SMALL else 1)


def at_once(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """``function`` of every item in order, several at a time; the first error ends it."""
    return _each(function, list(items), _WAITERS)


def _each(function: Callable[[T], R], items: list[T], threads: int) -> list[R]:
    threads = min(threads, len(items))
    if threads < 2:
        return [function(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        waiting = [pool.submit(function, item) for item in items]
        try:
            return [future.result() for future in waiting]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
