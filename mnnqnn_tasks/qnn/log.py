"""What the QNN library prints: its last lines, free of noise.

Lines go to standard error at once, so that they survive a crash of the process; the
parent shows them only when something fails.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from typing import Any

#: Lines that the library prints at ERROR level although nothing is wrong.
NOISE = ("unexpected GraphHtpSettings option 66",)

#: A line of the worker's own, naming what it is about to do.
STAGE = "@stage "

_KEEP = 40
_LINE_BYTES = 2048

Callback = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
)


class Log:
    """Collects the library's lines; ``callback`` is what ``logCreate`` takes.

    Attributes:
        lines: the last lines.
        heads: the first line of each of the last messages.
        quiet: collect only, print nothing.
    """

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=_KEEP)
        self.heads: deque[str] = deque(maxlen=_KEEP)
        self.quiet = False
        self._vsnprintf: Any = ctypes.CDLL(None).vsnprintf
        self._vsnprintf.argtypes = [
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_char_p,
            ctypes.c_void_p,
        ]
        self.callback = Callback(self._receive)

    def _receive(self, fmt: bytes, _level: int, _time: int, arguments: int) -> None:
        buffer = ctypes.create_string_buffer(_LINE_BYTES)
        self._vsnprintf(buffer, _LINE_BYTES, fmt, arguments)
        self.add(buffer.value.decode("utf-8", "replace"))

    def add(self, text: str) -> None:
        """Keep the lines of a message that are no noise, and print them."""
        lines = [line.strip() for line in text.splitlines()]
        lines = [line for line in lines if line and not any(n in line for n in NOISE)]
        if not lines:
            return
        self.heads.append(lines[0])
        self.lines.extend(lines)
        if not self.quiet:
            os.write(2, ("\n".join(lines) + "\n").encode("utf-8", "replace"))

    def stage(self, text: str) -> None:
        """Say what is about to be done; the parent names it if the process dies."""
        os.write(2, f"{STAGE}{text}\n".encode("utf-8", "replace"))

    def tail(self) -> str | None:
        """The last lines joined, None where there are none."""
        return "\n".join(self.lines) or None

    def clear(self) -> None:
        """Forget what was printed so far."""
        self.lines.clear()
        self.heads.clear()


def tail_of(stderr: str, count: int = 12) -> tuple[str | None, str]:
    """Split a worker's standard error: the last stage it named, its last other lines."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    stages = [line.removeprefix(STAGE) for line in lines if line.startswith(STAGE)]
    rest = [
        line
        for line in lines
        if not line.startswith(STAGE) and not any(noise in line for noise in NOISE)
    ]
    return (stages[-1] if stages else None), "\n".join(rest[-count:])
