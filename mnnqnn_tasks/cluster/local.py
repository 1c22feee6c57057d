"""A Dask cluster on this machine that lives as long as the run.

It starts when its address is asked for first: until then the program waits, and has not
loaded Dask.

It is a program of its own: forked from a run, a scheduler's threads would be half there,
and a run that is killed could not end it.  It dies with the process that started it, its
Dask workers with it (Dask watches a pipe between the two), and their helpers with them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from mnnqnn_tasks.errors import ClusterError

#: Seconds that it may take to start, and to end.
_START_SECONDS = 120.0
_END_SECONDS = 10.0

_PR_SET_PDEATHSIG = 1
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])


class LocalScheduler:
    """The program and what it says; processes forked from this one may ask for the address.

    Args:
        workers: how many Dask workers, each a process that does one task at a time.
        folder: for Dask's temporary files; must exist.
    """

    def __init__(self, workers: int, folder: Path) -> None:
        # The address is written to a file without a name, and is there when the pipe closes:
        # any number of processes can wait for that.
        self._address = os.memfd_create("mnnqnn-scheduler", os.MFD_CLOEXEC)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # as long as this object
        self._started, started = os.pipe()
        wanted, self._wanted = os.pipe()
        paths = [_PACKAGE_PARENT, *filter(None, [os.environ.get("PYTHONPATH")])]
        passed = [wanted, self._address, started]
        command = [str(os.getpid()), *map(str, passed), str(workers), str(folder)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=passed,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C in a terminal is for the run
            )
        finally:
            os.close(started)
            os.close(wanted)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def address(self) -> str:
        """Address of the scheduler; starts it, and waits until it has started.

        Raises:
            ClusterError: it did not start.
        """
        with contextlib.suppress(OSError):  # it ended, as is found out below
            os.write(self._wanted, b"start")
        poll = select.poll()
        poll.register(self._started, select.POLLIN)
        ended = bool(poll.poll(_START_SECONDS * 1000))
        text = os.pread(self._address, 1024, 0).decode()
        if text:
            return text
        tail = os.pread(self._log.fileno(), 1 << 16, 0).decode("utf-8", "replace")
        raise ClusterError(
            "the local Dask cluster did not start",
            why="it ended" if ended else f"it took more than {_START_SECONDS:g} s",
            todo="see the last lines; without a cluster: executor: local",
            tail="\n".join(tail.splitlines()[-20:]) or None,
        )

    def end(self) -> None:
        """End it; its processes are gone when this returns."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(b"end")
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Program: process to die with; descriptors that say when to start, and for the address
    and its end; workers; folder."""
    _, parent, wanted, address, started, workers, folder = sys.argv
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it died before the line above
        os._exit(1)
    if 0 in select.select([0, int(wanted)], [], [])[0]:
        return  # nobody needed it
    import dask
    from distributed import LocalCluster

    for fd in (wanted, address, started):
        os.set_inheritable(int(fd), False)
    # The run admits tasks by their memory; here nobody is paused or killed for it.
    dask.config.set({"distributed.worker.memory.terminate": False})
    with LocalCluster(
        n_workers=int(workers),
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address=None,
        local_directory=folder,
        memory_limit=0,
    ) as cluster:
        os.write(int(address), cluster.scheduler_address.encode())
        os.close(int(started))
        os.read(0, 1)


if __name__ == "__main__":
    main()
