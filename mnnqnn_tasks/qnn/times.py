"""CPU seconds of the library's long calls, kept for whoever asks.

Times never go into an artifact, whose bytes must not depend on them.  A benchmark sets
the environment variable `TIMES_VAR` to a file, to which every call appends a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator

#: Names a file of JSON lines: ``call``, ``name``, ``cpu`` (seconds, all threads of the
#: process), ``begin`` and ``end`` (seconds since the epoch).
TIMES_VAR = "MNNQNN_TIMES"


@contextlib.contextmanager
def measured(call: str, name: str) -> Iterator[None]:
    """Append how long the block took, if somebody asked; a failed block leaves no line."""
    path = os.environ.get(TIMES_VAR)
    if not path:
        yield
        return
    begin, cpu = time.time(), time.process_time()
    yield
    record = {
        "call": call,
        "name": name,
        "cpu": time.process_time() - cpu,
        "begin": begin,
        "end": time.time(),
    }
    # One write of a short line to a file opened for appending: lines of several
    # processes do not mix.  A file that cannot be written is the benchmark's trouble.
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(fd, (json.dumps(record) + "\n").encode())
        finally:
            os.close(fd)
