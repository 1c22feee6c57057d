"""Asking for work in another process, and telling how that process ended.

One server process (`mnnqnn_tasks.qnn.server`) per library folder is started on the first
request and serves this process only; it ends when this process does, however that is.
One that `prestart` started also serves the processes that this one forks from then on.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mnnqnn_tasks import errors, peak
from mnnqnn_tasks.errors import MnnqnnError, NativeCrash, QnnError
from mnnqnn_tasks.qnn import library
from mnnqnn_tasks.qnn.log import tail_of

_PACKAGE_PARENT = Path(__file__).resolve().parents[2]
# At the end of the path: nothing in site-packages may stand before the standard library.
_BOOT = "import sys; sys.path.append(sys.argv[1]); from mnnqnn_tasks.qnn.boot import main; main()"
#: Seconds that a killed worker is given to be gone.
_KILL_SECONDS = 10.0


@dataclass(frozen=True)
class Outcome:
    """How a worker process ended.

    Attributes:
        code: exit code, minus the signal that ended it, None if it was given up.
        stage: the last step that it said it was at.
        tail: last lines that it printed besides.
        answer: its response, empty if it wrote none.
    """

    code: int | None
    stage: str | None
    tail: str | None
    answer: bytes

    @property
    def crashed(self) -> bool:
        """Whether a signal ended the process."""
        return self.code is not None and self.code < 0

    @property
    def signal(self) -> str:
        """Name of the signal that ended the process."""
        number = -(self.code or 0)
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"

    def result(self, label: str) -> Any:
        """The response's result; ``label`` names the request in errors.

        Raises:
            NativeCrash: a signal ended the process.
            QnnError: it was given up, or ended without a response.
            MnnqnnError: the error that it responded with.
        """
        at = self.stage or "start"
        if self.code is None:
            raise QnnError("no answer in time", where=label, why=f"at: {at}", tail=self.tail)
        if self.crashed:
            raise NativeCrash(
                "the process that uses the QNN library died",
                where=label,
                why=f"{self.signal} while it was at: {at}",
                todo="see the last lines; the system ends a process by SIGKILL if memory runs out",
                tail=self.tail,
            )
        if self.code != 0 or not self.answer:
            raise QnnError(
                f"the process that uses the QNN library ended with exit code {self.code}",
                where=label,
                why=f"at: {at}",
                tail=self.tail,
            )
        answer = json.loads(self.answer)
        if "error" in answer:
            raise _rebuild(*answer["error"])
        return answer["result"]


def _rebuild(
    kind: str, what: str, where: str | None, why: str | None, todo: str | None, tail: str | None
) -> MnnqnnError:
    cls: type[MnnqnnError] = getattr(errors, kind, QnnError)
    return cls(what, where=where, why=why, todo=todo, tail=tail)


#: The library serializes padding that it never wrote.  glibc fills what it hands out with
#: zeros under this setting, so that a binary depends on its graphs alone.
_HEAP = {"MALLOC_PERTURB_": "255", "GLIBC_TUNABLES": "glibc.malloc.perturb=255"}


class _Server:
    """A server process and the socket to it.

    Attributes:
        foreign: the process that forked this one started it, and alone can wait for it.
    """

    def __init__(self, lib_dir: Path, *, shared: bool = False) -> None:
        self.shared = shared
        self.foreign = False
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                # -I -S: neither the environment nor site decides what runs, or costs time.
                [
                    *(sys.executable, "-I", "-S", "-c", _BOOT),
                    *(str(_PACKAGE_PARENT), str(theirs.fileno()), str(lib_dir)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **_HEAP},
            )

    def send(self, files: Mapping[str, int]) -> None:
        message = json.dumps(list(files)).encode()
        socket.send_fds(self.control, [message], list(files.values()))

    def alive(self) -> bool:
        """Whether it may still take a request."""
        return self.foreign or self.process.poll() is None

    def end(self) -> int:
        """Exit code of a server that is ending."""
        self.control.close()
        # Whoever shares it learns no code; it ends by itself only when it is told to.
        return -signal.SIGKILL if self.foreign else self.process.wait()


_servers: dict[Path, _Server] = {}
_lock = threading.Lock()


def _forget() -> None:
    """In a forked process: its parent's servers are not its own, but it may share them."""
    global _lock
    _lock = threading.Lock()
    for lib_dir, server in list(_servers.items()):
        server.process.returncode = 0  # not a child of this process: nothing to wait for
        server.foreign = True
        if not server.shared:
            server.control.close()
            del _servers[lib_dir]


os.register_at_fork(after_in_child=_forget)


def _send(lib_dir: Path, files: Mapping[str, int]) -> _Server:
    """Hand a request to the server, starting one where there is none or it is gone."""
    with _lock:
        server = _servers.get(lib_dir)
        if server is not None and server.alive():
            with contextlib.suppress(OSError):
                server.send(files)
                return server
            if not server.foreign:
                server.process.kill()  # it has closed the socket: it is ending
            server.end()
        server = _servers[lib_dir] = _Server(lib_dir)
        server.send(files)
        return server


def prestart(lib_dir: Path | None = None) -> int | None:
    """Start a server while there is other work; processes forked from now on share it.

    Returns:
        Its process id; ``None`` where there is one, or no library: whoever needs that says so.
    """
    try:
        folder = library.find(lib_dir)
        with _lock:
            if folder in _servers:
                return None
            server = _servers[folder] = _Server(folder, shared=True)
    except (MnnqnnError, OSError):
        return None
    return server.process.pid


def end_prestarted() -> None:
    """Let go of shared servers: each ends when the last process that shares it has."""
    with _lock:
        for lib_dir, server in list(_servers.items()):
            if server.shared:
                server.control.close()
                del _servers[lib_dir]


def _memory_file(name: str) -> IO[bytes]:
    """A file that no disk has: none is full, and none is to be made and deleted per call."""
    return open(os.memfd_create(name), "w+b")


def spawn(
    action: str,
    lib_dir: Path | None,
    timeout: float,
    pass_files: Mapping[str, IO[bytes]] | None = None,
    **fields: Any,
) -> Outcome:
    """Run one request in a process of its own and wait for its end.

    Args:
        action: a key of `mnnqnn_tasks.qnn.worker.ACTIONS`.
        lib_dir: folder of the QNN libraries; the wheel's by default.
        timeout: seconds after which the process is killed.
        pass_files: files that the request reads or writes, by the name that it uses.
        fields: the request.

    Raises:
        ToolMissing: no library.
    """
    folder = library.find(lib_dir)
    with (
        _memory_file("request") as request,
        _memory_file("response") as response,
        _memory_file("stderr") as stderr,
    ):
        content = {
            **fields,
            "action": action,
            "lib_dir": str(folder),
            "cwd": os.getcwd(),
            "environ": dict(os.environ),
        }
        request.write(json.dumps(content).encode())
        request.flush()
        files: dict[str, IO[bytes]] = {
            "request_fd": request,
            "response_fd": response,
            "stderr_fd": stderr,
            **(pass_files or {}),
        }
        code = _run(folder, {name: stream.fileno() for name, stream in files.items()}, timeout)
        stderr.seek(0)
        response.seek(0)
        stage, tail = tail_of(stderr.read().decode("utf-8", "replace"))
        return Outcome(code, stage, tail or None, response.read())


def _run(lib_dir: Path, files: Mapping[str, int], timeout: float) -> int | None:
    """Exit code of a worker, None after ``timeout``; the worker is gone when this returns.

    A server that dies before it has forked the worker is replaced once, a shared one not
    counted; if its successor dies as well, the libraries cannot even be loaded, and its exit
    code is returned.
    """
    deadline = time.monotonic() + timeout
    tries = 2
    while True:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                server = _send(lib_dir, {**files, "status_fd": theirs.fileno()})
            forked, code = None, None
            try:
                forked = _receive(ours, deadline)
                code = _receive(ours, deadline) if forked else forked
            finally:
                if code is None:
                    _kill(ours)
        if code is None:
            return None
        if forked:
            if not code:  # the server died
                return server.end()
            ended, used = code.split()
            peak.helper_used(int(used))
            return int(ended)
        tries -= not server.foreign
        if not tries:
            return server.end()


def _kill(channel: socket.socket) -> None:
    """Have the server kill the worker, and wait until it is gone."""
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + _KILL_SECONDS
        while _receive(channel, deadline):
            pass


def _receive(channel: socket.socket, deadline: float) -> bytes | None:
    """The next message, empty when the other end is closed, None after ``deadline``."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    # poll(2) takes milliseconds in an int; an hour fits, longer waits take another turn.
    while (left := deadline - time.monotonic()) > 0:
        if poll.poll(min(left, 3600) * 1000):
            return channel.recv(64)
    return None
