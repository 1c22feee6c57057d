"""Which libraries a program is loaded with, asked of the loader itself."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path

#: Told to list, it maps a program and its libraries and runs nothing of them.
_LOADER = "/lib64/ld-linux-x86-64.so.2"
_FOUND = re.compile(r"^\s*(\S+) => (/.+) \(0x[0-9a-f]+\)$", re.M)

#: The system's C and C++ libraries, which count as little for tools as for our own stages.
_SYSTEM = re.compile(
    r"lib(c|m|dl|rt|util|pthread|resolv|stdc\+\+|gcc_s|gomp|atomic)\.so\.\d+|ld-linux.*|linux-vdso.*"
)


def libraries(program: Path) -> tuple[Path, ...] | None:
    """The libraries of a program, as it would find them now, without the system's own.

    ``None`` where nobody can tell: a script, a program for another machine, a library that
    is missing.
    """
    try:
        info = os.stat(program)
    except OSError:
        return None
    numbers = info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size
    return _libraries(str(program), os.environ.get("LD_LIBRARY_PATH", ""), numbers)


@functools.cache
def _libraries(program: str, _search: str, _numbers: tuple[int, ...]) -> tuple[Path, ...] | None:
    try:
        with open(program, "rb") as stream:
            if stream.read(4) != b"\x7fELF":
                return None
        done = subprocess.run(
            [_LOADER, "--list", os.path.abspath(program)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = os.fsdecode(done.stdout)
    if done.returncode or "=> not found" in text:
        return None
    return tuple(Path(path) for name, path in _FOUND.findall(text) if not _SYSTEM.fullmatch(name))
