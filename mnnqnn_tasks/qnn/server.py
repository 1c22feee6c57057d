"""The process that loads the libraries once and forks a worker for every request.

Starting Python and loading a library of 100 MB costs more than a small link.  This process
does both, uses nothing of the library, and forks: a worker starts loaded, has the memory
of a fresh process, and takes no other down when it dies.

It talks over one SOCK_SEQPACKET socket.  A message is a JSON list of names, with one file
descriptor for each: ``request_fd``, ``response_fd``, ``stderr_fd``, ``status_fd`` and those
that the request itself uses.  ``status_fd`` gets the message "forked", and when the worker
has ended its exit code (minus the signal) and its peak memory (bytes) as text; closing the
other end of it kills the worker.  When the control socket is closed, all workers are killed
and this process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

from mnnqnn_tasks.qnn import abi, library, worker

_MAX_MESSAGE, _MAX_FDS = 4096, 16


def _preload(lib_dir: Path) -> None:
    """Load the libraries and build the structure classes; a failure is the worker's to report."""
    from mnnqnn_tasks.qnn import execute, inspect, link, validate  # noqa: F401  # imported once

    for name in (library.HTP, library.SYSTEM):
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(lib_dir / name))
    for name in abi.struct_names():
        abi.ctype(name)
    for name in abi.functions():
        abi.prototype(name)


class Server:
    """The loop; ``control`` is the socket to the process that started this one."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._status: dict[int, socket.socket] = {}  # by pid of the worker
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)

    def run(self) -> None:
        """Serve until the control socket is closed."""
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._wake_read:
                    os.read(fd, 512)
                    self._reap()
                elif fd != self._control.fileno():
                    self._give_up(fd)
                elif not self._accept():
                    for pid in self._status:
                        os.kill(pid, signal.SIGKILL)
                    return

    def _accept(self) -> bool:
        """Take one request and fork its worker; False when there will be no more."""
        message, fds, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE, _MAX_FDS)
        if not message:
            return False
        files: dict[str, int] = dict(zip(json.loads(message), fds, strict=True))
        status = socket.socket(fileno=files.pop("status_fd"))
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._leave(status)
            worker.serve(files, parent)
        for fd in files.values():
            os.close(fd)
        with contextlib.suppress(OSError):
            status.send(b"forked")
        self._status[pid] = status
        self._poll.register(status, select.POLLIN)
        return True

    def _leave(self, status: socket.socket) -> None:
        """In a worker: let go of everything that is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._wake_read)
        os.close(self._wake_write)
        for held in (self._control, status, *self._status.values()):
            held.close()

    def _give_up(self, fd: int) -> None:
        """Whoever asked has closed its end: kill the worker, `_reap` does the rest."""
        self._poll.unregister(fd)
        for pid, status in self._status.items():
            if status.fileno() == fd:
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self._status:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            channel = self._status.pop(pid)
            with contextlib.suppress(KeyError):
                self._poll.unregister(channel)
            with contextlib.suppress(OSError):
                code = os.waitstatus_to_exitcode(status)
                channel.send(f"{code} {usage.ru_maxrss * 1024}".encode())
            channel.close()


def main() -> None:
    """Program: arguments are the package's folder, the socket's descriptor, the library folder."""
    _, _, fd, lib_dir = sys.argv
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; see client
    control = socket.socket(fileno=int(fd))
    _preload(Path(lib_dir))
    Server(control).run()
    os._exit(0)
