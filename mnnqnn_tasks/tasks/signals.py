"""Ctrl-C, a polite kill, and workers that die."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from types import FrameType

from doit.exceptions import InvalidTask

_PR_SET_PDEATHSIG = 1


class Interrupted(SystemExit):
    """The user or the system ended the run; leaves by the usual exits, no traceback."""


class WorkerLost(InvalidTask):  # type: ignore[misc]
    """A worker process was killed; doit would wait for its answer for ever."""


def install() -> None:
    """Prepare this process to run tasks in worker processes."""
    # Workers must share this process's session, which only a fork does.
    multiprocessing.set_start_method("fork", force=True)
    signal.signal(signal.SIGINT, _end)
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGCHLD, _child_changed)
    parent = os.getpid()
    os.register_at_fork(after_in_child=lambda: _in_child(parent))


def _end(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough; a second one must not tear the exit
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # doit ends its workers now
    raise Interrupted(128 + number)


def _in_child(root: int) -> None:
    """A worker, or what it forks: dies with its parent, leaves Ctrl-C to the main process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1 and root != 1:
        os._exit(1)  # the parent was gone before the kernel knew of the wish


def _child_changed(number: int, frame: FrameType | None) -> None:
    try:
        dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return
    if dead is None or dead.si_code not in (os.CLD_KILLED, os.CLD_DUMPED):
        return
    workers = {p.pid for p in multiprocessing.process._children}  # type: ignore[attr-defined]
    if dead.si_pid in workers:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        raise WorkerLost(f"a worker process was ended by signal {dead.si_status}")
