"""The process in which a Dask worker does stages, one after the other.

A Dask worker runs tasks on threads, and a thread cannot be ended.  This process can, with
all that it started: it leads a process group, and kills that when its standard input is
closed, which happens however the Dask worker ends.

A helper that is ended leaves no files behind, and those of a dead worker take its whole
folder away.

It talks over a socket: pickled `Request` and `Answer`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socketpair

from mnnqnn_tasks.cluster.apart import perform_apart, work_folder
from mnnqnn_tasks.cluster.identity import identity
from mnnqnn_tasks.cluster.request import (
    Answer,
    Differs,
    Done,
    Failed,
    NoMemory,
    Request,
    Unforeseen,
    Unshared,
)
from mnnqnn_tasks.errors import MnnqnnError, NativeCrash
from mnnqnn_tasks.toolchain.work import perform

_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])
_TAIL_LINES = 20

#: Seconds between two looks whether an answer is still wanted.
_LOOK = 0.1


class Helper:
    """A helper process, as the Dask worker sees it.

    Args:
        scratch: a folder for all helpers of the worker; need not exist.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        ours, theirs = socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # as long as this object
        self._channel = Connection(ours.detach())
        paths = [_PACKAGE_PARENT, *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), str(scratch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )

    def ask(self, request: Request, wanted: Callable[[], bool]) -> Answer | None:
        """Have a stage done.

        Args:
            wanted: asked again and again; when it says no, the helper is ended.

        Returns:
            the answer, ``None`` if it is not wanted any more.
        """
        try:
            self._channel.send(request)
            while not self._channel.poll(_LOOK):
                if not wanted():
                    self.end()
                    return None
            answer: Answer = self._channel.recv()
        except (EOFError, OSError):
            return Failed(self._crash(request.stage))
        return answer

    def _crash(self, stage: str) -> NativeCrash:
        code = self.end()
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return NativeCrash(
            f"the process of a Dask worker that did the stage {stage} died",
            where=f"process {self._process.pid} of {os.uname().nodename}",
            why=how,
            todo="see the last lines; the system ends a process by SIGKILL if memory runs out",
            tail="\n".join(lines) or None,
        )

    @property
    def usable(self) -> bool:
        """Whether it can take another request."""
        if self._channel.closed:
            return False
        # Not reaped: while it is not, nobody else gets the number of its group.
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, options) is None

    def end(self) -> int:
        """End it and all that it started; how it ended."""
        assert self._process.stdin is not None
        self._channel.close()
        self._process.stdin.close()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        shutil.rmtree(work_folder(self._scratch, self._process.pid), ignore_errors=True)
        return code


def answer(request: Request, scratch: Path) -> Answer:
    """Do what the request asks for, in this process; ``scratch`` is for `perform_apart`."""
    if dict(request.identity) != identity():
        return Differs(identity())
    hidden = [path for path, content in request.probes.items() if not _seen(path, content)]
    if hidden and request.parcel is None:
        return Unshared(hidden[0])
    try:
        if hidden and request.parcel is not None:
            return perform_apart(request.stage, request.parcel, scratch)
        work = perform(request.stage, request.arguments)
        return Done(work, {path: os.stat(path).st_size for path in work.made})
    except MnnqnnError as error:
        return Failed(error)
    except MemoryError:
        return NoMemory()
    except Exception as error:
        return Unforeseen(f"{type(error).__name__}: {error}", traceback.format_exc())


def _seen(path: str, content: str | None) -> bool:
    if content is None:
        return os.path.exists(path)
    try:
        return Path(path).read_text("utf-8") == content
    except (OSError, ValueError):
        return False


def _die_with_parent(parent: int, scratch: Path) -> None:
    """Wait for the end of standard input; nobody writes to it."""
    while os.read(0, 1):
        pass
    # A worker that lives has its files yet, and kills this process in a moment.
    deadline = time.monotonic() + _LOOK
    while os.getppid() == parent and time.monotonic() < deadline:
        time.sleep(_LOOK / 20)
    if os.getppid() != parent:
        gone = scratch.with_name(scratch.name + "-gone")  # for those that still write to it
        with contextlib.suppress(OSError):
            os.rename(scratch, gone)
        shutil.rmtree(gone, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Program; its arguments are the socket's descriptor and the scratch folder."""
    scratch = Path(sys.argv[2])
    channel = Connection(int(sys.argv[1]))
    os.set_inheritable(channel.fileno(), False)
    end = threading.Thread(target=_die_with_parent, args=(os.getppid(), scratch), daemon=True)
    end.start()
    with contextlib.suppress(EOFError, OSError):  # the worker is no more
        while True:
            channel.send(answer(channel.recv(), scratch))
    end.join()


if __name__ == "__main__":
    main()
