"""Ctrl-C, a polite kill, and workers that die."""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
import multiprocessing.queues
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from doit.exceptions import InvalidTask

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

#: Seconds between two looks whether doit is waiting, after a worker was lost.
_PAUSE = 0.2

#: How long the workers of an interrupted run, and what they started, may take to end.
_GRACE = 3.0

#: Loaded early: a signal handler should do as little as it can.
_libc = ctypes.CDLL(None)

#: Not empty once this process has forked a worker (programs that it starts do not count).
_forks: list[bool] = []

#: Children of this process that are no workers: the run goes on without them.
helpers: set[int] = set()


class Interrupted(SystemExit):
    """The user or the system ended the run; leaves by the usual exits, no traceback."""


class WorkerLost(InvalidTask):  # type: ignore[misc]
    """A worker process was killed; doit would wait for its answer for ever."""


def install(before_first: Callable[[], None], in_worker: Callable[[], None]) -> None:
    """Prepare this process to run tasks in worker processes.

    Args:
        before_first: called in this process before it forks the first worker.
        in_worker: called in every worker when it starts.
    """
    # Workers must share this process's session, which only a fork does.
    multiprocessing.set_start_method("fork", force=True)
    signal.signal(signal.SIGINT, _end)
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGCHLD, _child_changed)
    parent = os.getpid()
    os.register_at_fork(
        # Before: a worker may die before the fork's other hooks have run.
        before=lambda: _before_fork(before_first),
        after_in_child=lambda: _in_child(parent, in_worker),
    )


def _before_fork(before_first: Callable[[], None]) -> None:
    if not _forks:
        _forks.append(True)
        before_first()


def _end(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough; a second one must not tear the exit
    workers_end()
    _insist(Interrupted(128 + number))
    # A queue that is left in the middle of a put keeps its lock: its thread never ends.
    if not _inside(frame, multiprocessing.queues.Queue.put):
        raise Interrupted(128 + number)


def workers_end() -> None:
    """The run is about to fail, and doit ends its workers: no news if they die."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # What the workers started becomes ours, so that `workers_gone` sees it.
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def workers_gone() -> bool:
    """Wait a little until this process has no living child; whether that came true."""
    deadline = time.monotonic() + _GRACE
    while any(_status(pid) is None for pid in _children()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def calm() -> None:
    """Stop insisting: the run is over."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def _in_child(root: int, in_worker: Callable[[], None]) -> None:
    """A worker, or what it forks: dies with its parent, leaves Ctrl-C to the main process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1 and root != 1:
        os._exit(1)  # the parent was gone before the kernel knew of the wish
    if os.getppid() == root:
        in_worker()


def _child_changed(number: int, frame: FrameType | None) -> None:
    """End the run if a worker was killed; other children are their owners' business."""
    if not _forks:
        return
    for pid in _children():
        state = _status(pid) if pid not in helpers else None
        if isinstance(state, int):
            workers_end()
            _insist(WorkerLost(f"a worker process was ended by signal {state}"))
            return


def _status(pid: int) -> int | str | None:
    """The signal that ended a child, ``"exited"``, or ``None`` while it lives."""
    try:
        state = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return "exited"
    if state is None:
        return None
    killed = state.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
    return int(state.si_status) if killed else "exited"


def _insist(error: BaseException) -> None:
    """Raise ``error`` as soon as doit waits for a worker's answer.

    Anywhere else it could be swallowed: Python ignores what is raised in a fork's hooks.
    """
    signal.signal(signal.SIGALRM, functools.partial(_raise_in_wait, error))
    signal.setitimer(signal.ITIMER_REAL, _PAUSE, _PAUSE)


def _raise_in_wait(error: BaseException, number: int, frame: FrameType | None) -> None:
    if _inside(frame, multiprocessing.queues.Queue.get):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise error


def _inside(frame: FrameType | None, function: Any) -> bool:
    """Whether ``function`` is being called somewhere above ``frame``."""
    while frame is not None:
        if frame.f_code is function.__code__:
            return True
        frame = frame.f_back
    return False


def _children() -> list[int]:
    """Direct children of this process: workers and `helpers`.

    Read as bytes and by system calls: a signal handler may stand in the middle of an
    import, and a text file imports its codec.
    """
    main = os.getpid()
    fd = os.open(b"/proc/%d/task/%d/children" % (main, main), os.O_RDONLY | os.O_CLOEXEC)
    text = b""
    try:
        while part := os.read(fd, 1 << 16):
            text += part
    finally:
        os.close(fd)
    return [int(pid) for pid in text.split()]
