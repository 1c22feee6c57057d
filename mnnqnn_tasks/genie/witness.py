"""The real loader as a witness: libGenie in a process of its own.

The child gets the folder of the libraries as its loader path, so that libGenie finds the
backend, the system library and the extensions of its own version, and the bundle's folder as
its working directory, because a config's relative paths count from where a program runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mnnqnn_tasks.errors import GenieError, MnnqnnError, QnnError, ToolMissing
from mnnqnn_tasks.genie import library
from mnnqnn_tasks.genie.native import LIBRARY, UNLOADABLE
from mnnqnn_tasks.genie.testimony import Testimony, read

_PACKAGE_PARENT = Path(__file__).resolve().parents[2]
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); from mnnqnn_tasks.genie.native import main; main()"
)
#: Lines that a library prints beside its log are few; more than this is not looked at.
_MAX_PRINTED = 1 << 22
_MAX_CONFIG = 1 << 24


TIMEOUT = 600.0
TOKENS = 16


def ask(
    config: Path,
    lib_dir: Path,
    question: str | None = None,
    tokens: int = TOKENS,
    timeout: float = TIMEOUT,
) -> Testimony:
    """Have libGenie load a bundle, and answer a question if there is one.

    Args:
        config: the config file; its relative paths count from its folder.
        lib_dir: the folder with libGenie and the QNN libraries of the same version.
        tokens: at most so many tokens are answered.
        timeout: seconds after which the process is killed.

    Raises:
        GenieError: the config cannot be read.
        QnnError, NativeCrash, ToolMissing: the library's version cannot be asked.
    """
    text = _text(config)
    version = library.version(lib_dir)
    with tempfile.TemporaryFile() as events, tempfile.TemporaryFile() as printed:
        request = {
            "library": str(lib_dir / LIBRARY),
            "config": text,
            "ask": question,
            "tokens": tokens,
            "events": events.fileno(),
            "parent": os.getpid(),
        }
        code = _run(request, config.parent, lib_dir, printed.fileno(), timeout)
        events.seek(0)
        printed.seek(0)
        lines = printed.read(_MAX_PRINTED).decode("utf-8", "replace")
        if code is not None and code > 0:
            raise _broken(code, lib_dir, lines)
        return read(version, code, events.read().decode("utf-8", "replace"), lines)


def _text(config: Path) -> str:
    try:
        if config.stat().st_size > _MAX_CONFIG:
            raise GenieError("too large for a config", where=str(config))
        return config.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise GenieError("cannot read the config", where=str(config), why=str(error)) from error


def _broken(code: int, lib_dir: Path, lines: str) -> MnnqnnError:
    """Why the child could not do its work."""
    tail = "\n".join(lines.strip().splitlines()[-12:])
    if code == UNLOADABLE:
        return ToolMissing(
            f"{LIBRARY} cannot be loaded",
            where=str(lib_dir),
            why=tail,
            todo="name a folder with libraries for x86-64 Linux that belong together",
        )
    return QnnError(
        f"the process that uses {LIBRARY} ended with exit code {code}",
        where=str(lib_dir),
        tail=tail or None,
    )


def _run(
    request: Mapping[str, object], folder: Path, lib_dir: Path, printed: int, timeout: float
) -> int | None:
    """Exit code of the child, None after ``timeout``; it is gone when this returns."""
    before = os.environ.get("LD_LIBRARY_PATH")
    process = subprocess.Popen(
        # -I -S: neither the environment nor site decides what runs, or costs time.
        [sys.executable, "-I", "-S", "-c", _BOOT, str(_PACKAGE_PARENT)],
        stdin=subprocess.PIPE,
        stdout=printed,
        stderr=printed,
        pass_fds=[int(str(request["events"]))],
        cwd=folder,
        env={
            **os.environ,
            "LD_LIBRARY_PATH": f"{lib_dir}:{before}" if before else str(lib_dir),
        },
    )
    try:
        process.communicate(json.dumps(request).encode(), timeout)
        return process.returncode
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
