"""Running a tool that is not ours: no shell, a time limit, its output kept, its end told.

An exit code of 0 is never the proof that a tool did its work: callers look for the files
that it should have made, and `Runner` for the lines in which MNN says that it did not.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import time
import tty
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from mnnqnn_tasks.errors import NativeCrash, ToolError, ToolMissing
from mnnqnn_tasks.files import disk_errors
from mnnqnn_tasks.peak import helper_used
from mnnqnn_tasks.toolchain.external import faults, guard

_TAIL = 12
_PIECE = 1 << 16
#: Longer lines are cut for messages; the log has them whole.
_WIDTH = 400
#: A tool that prints without end must not fill the disk.
_LONGEST_LOG = 64 << 20
#: As much of what a program prints about its arguments is looked at.
_USAGE = 1 << 16

#: Escape sequences and other control characters: a message must not act on the terminal.
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


@dataclass
class _Output:
    """The tool's output so far: last lines and the first fault.

    Each line goes on to ``live``, all of it to ``log`` as long as that has room.
    """

    log: BinaryIO
    live: str | None
    most: int = _LONGEST_LOG
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL))
    fault: faults.Fault | None = None
    faults: int = 0
    size: int = 0
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """Take what came."""
        if room := max(0, self.most - self.size):
            self.log.write(data[:room])
            self.log.flush()
        self.size += len(data)
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _PIECE:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._line(line.decode("utf-8", "replace").rstrip("\r"))

    def end(self) -> None:
        """Nothing more will come."""
        if self._rest:
            self._feed(b"\n")
        if self.size > self.most:
            cut = f"\n# {self.size - self.most} bytes more are left out; the last lines:\n"
            self.log.write(f"{cut}{chr(10).join(self.tail)}\n".encode())

    def _line(self, line: str) -> None:
        # Of a line that is drawn again and again, what is left there; no tool moves a cursor.
        line = _CONTROL.sub("", line.rpartition("\r")[2])
        if not line.strip():
            return
        self.tail.append(line[:_WIDTH])
        if (fault := faults.find(line)) is not None:
            self.fault = self.fault or fault
            self.faults += 1
        if self.live is not None:
            with contextlib.suppress(OSError):  # nobody has to look
                os.write(2, f"{self.live} | {line}\n".encode("utf-8", "replace"))


@dataclass(frozen=True)
class Runner:
    """Runs the tools of one task.

    Attributes:
        label: the task, for messages.
        log: what the tools print goes here; emptied by the first run.
        limit_s: seconds after which a tool is ended.
        live: whether to show the output as it comes.
    """

    label: str
    log: Path
    limit_s: float
    live: bool = False

    def run(
        self,
        command: Sequence[str | os.PathLike[str]],
        cwd: Path,
        *,
        env: Mapping[str, str] | None = None,
        deep_stack: bool = False,
        append: bool = False,
    ) -> str:
        """Run ``command`` in the folder ``cwd`` and wait for its end.

        Args:
            command: program and arguments; the program as an absolute path.
            env: variables that differ from this process's.
            deep_stack: raise the stack limit to what the system allows.
            append: keep what an earlier tool of the task wrote to the log.

        Returns:
            The last lines of the output, for messages about what the tool did not make.

        Raises:
            ToolMissing: the program is not there or not executable.
            ToolError: it ran too long, ended with another exit code than 0, or said that it
                left an op out.
            NativeCrash: a signal ended it.
            DiskError: the log cannot be written.
        """
        argv = [os.fspath(part) for part in command]
        check_program(argv[0])
        name = Path(argv[0]).name
        with disk_errors(self.log):
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with open(self.log, "ab" if append else "wb") as log:
                log.write(f"$ cd {shlex.quote(str(cwd))}\n$ {shlex.join(argv)}\n".encode())
                log.flush()
                output = _Output(log, self.label if self.live else None, _LONGEST_LOG)
                started = time.monotonic()
                code = self._wait(argv, cwd, env, deep_stack, output)
                spent = time.monotonic() - started
                log.write(f"# {name}: {_ending(code)} after {spent:.1f} s\n".encode())
        tail = "\n".join(output.tail)
        self._judge(name, code, output, tail)
        return tail

    def ask(self, program: Path) -> tuple[str, str]:
        """What a program prints when it is started without arguments, and how it ended.

        Raises:
            ToolMissing: as `run`.
        """
        check_program(str(program))
        heard = io.BytesIO()
        code = self._wait([str(program)], Path("/"), None, False, _Output(heard, None, _USAGE))
        return heard.getvalue().decode("utf-8", "replace").strip(), _ending(code)

    def _wait(
        self,
        argv: list[str],
        cwd: Path,
        env: Mapping[str, str] | None,
        deep_stack: bool,
        output: _Output,
    ) -> int | None:
        """The exit code, minus the signal that ended the tool, or None if it was ended here."""
        used, told = os.pipe()
        heard, said = _terminal()
        watch = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(int(deep_stack))]
        process = subprocess.Popen(
            [*watch, str(told), *argv],
            pass_fds=[told],
            cwd=cwd,
            env={**os.environ, "TERM": "dumb", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        os.close(told)
        os.close(said)
        deadline = time.monotonic() + self.limit_s
        try:
            with selectors.DefaultSelector() as ready:
                ready.register(heard, selectors.EVENT_READ)
                while (left := deadline - time.monotonic()) > 0:
                    if not ready.select(min(left, 3600)):
                        continue
                    data = _read(heard)
                    if not data:
                        break
                    output.feed(data)
                output.end()
            return process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            return None
        finally:
            os.close(heard)
            if process.poll() is None:
                process.terminate()  # the guard ends the tool, and all that it started
                process.wait()
            with open(used, "rb") as stream:
                helper_used(int(stream.read() or 0))

    def _judge(self, name: str, code: int | None, output: _Output, tail: str) -> None:
        where = self.label
        log = f"the whole output is in {self.log}"
        fault = output.fault
        said = f"{name} {fault.what}" if fault else None
        if code is None:
            raise ToolError(
                f"{name} was ended because it ran longer than {self.limit_s:g} s",
                where=where,
                why=said,
                todo=f"if it needs longer, raise time_limit_s; {log}",
                tail=tail,
            )
        if code < 0:
            raise NativeCrash(
                f"{name} was ended by {_signal_name(-code)}",
                where=where,
                why=said or _SIGNALS.get(-code),
                todo=log,
                tail=tail,
            )
        if fault:
            more = f" ({output.faults - 1} more in the log)" if output.faults > 1 else ""
            raise ToolError(
                f"{name} {fault.what}{more}",
                where=where,
                why=f"{fault.reason}: {fault.line!r}; its exit code was {code}",
                todo=f"partition: native has no such trouble; {log}",
                tail=tail,
            )
        if code:
            raise ToolError(f"{name} ended with exit code {code}", where=where, todo=log, tail=tail)


#: What a signal most often means.
_SIGNALS: dict[int, str] = {
    signal.SIGSEGV: "a crash inside the tool: a broken or too large model, or a bug in it",
    signal.SIGABRT: "the tool gave up by itself",
    signal.SIGKILL: "most often the system, when memory runs out",
    signal.SIGILL: "the tool was built for another processor",
}


def _terminal() -> tuple[int, int]:
    """Both ends of what a tool prints to: ours and its own.

    A terminal, or what a tool printed last would be lost in its buffer when it crashes.
    """
    try:
        ours, its = os.openpty()
    except OSError:  # there are none here
        return os.pipe()
    tty.setraw(its)
    return ours, its


def _read(heard: int) -> bytes:
    """What came; nothing at the end."""
    try:
        return os.read(heard, _PIECE)
    except OSError as error:
        if error.errno != errno.EIO:  # how a terminal ends
            raise
        return b""


def check_program(path: str) -> None:
    """Refuse what cannot be started.

    Raises:
        ToolMissing: naming the path.
    """
    if not os.path.isfile(path):
        raise ToolMissing("there is no such tool", where=path, todo="doit doctor")
    if not os.access(path, os.X_OK):
        raise ToolMissing("the tool is not executable", where=path, todo=f"chmod +x {path!r}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _ending(code: int | None) -> str:
    if code is None:
        return "ended, time limit"
    return f"exit code {code}" if code >= 0 else f"ended by {_signal_name(-code)}"
