"""Peak memory of a piece of work: of this process meanwhile, and of its helper processes.

Like `errors` and `files`, any room may use this: whoever waits for a helper process says
here what the kernel tells of it.
"""

from __future__ import annotations

import contextlib
import os

#: Meters that run now, in this process.
_running: list[Meter] = []


class Meter:
    """Measures while it is entered.

    Attributes:
        peak: largest resident size of any single process, in bytes; 0 if the kernel
            does not tell.
    """

    def __init__(self) -> None:
        self.peak = 0

    def __enter__(self) -> Meter:
        # proc(5): writing 5 resets the peak to what is resident now.
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as stream:
            stream.write("5")
        _running.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _running.remove(self)
        self.peak = max(self.peak, resident_peak(os.getpid()))


def helper_used(size: int) -> None:
    """A helper process of this one had ``size`` bytes resident at its peak."""
    for meter in _running:
        meter.peak = max(meter.peak, size)


def resident_peak(pid: int) -> int:
    """Largest resident size so far of a living process in bytes, 0 if it is not known."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as stream:
        for line in stream:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
