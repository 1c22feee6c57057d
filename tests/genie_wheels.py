"""Other versions of the wheel, by pip, in a folder or virtual environment of the test's own."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

#: Versions of onnxruntime-qnn with a libGenie for x86-64, by the QAIRT that they carry.
WHEELS = {"2.47": "2.3.0", "2.48": "2.4.0", "2.49": "2.5.0", "2.50": "2.6.0", "2.51": "2.7.0"}
_SECONDS = 300


def fetch(version: str, folder: Path) -> Path:
    """The wheel file; skips the test, saying why, where the registry is out of reach."""
    _pip(version, "download", "--dest", str(folder))
    return next(folder.glob(f"onnxruntime_qnn-{version}-*.whl"))


def install(version: str, folder: Path) -> Path:
    """``site-packages`` of a virtual environment in ``folder`` that has this version; or skips."""
    # Without pip in it, and without what the wheel depends on, it takes seconds.
    venv.create(folder, with_pip=False)
    _pip(version, "install", "--no-compile", options=["--python", str(folder / "bin" / "python")])
    return next(folder.glob("lib/python*/site-packages"))


def _pip(version: str, command: str, *more: str, options: Sequence[str] = ()) -> None:
    arguments = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet"]
    line = [sys.executable, "-m", "pip", *options, command, *arguments, *more]
    try:
        done = subprocess.run(
            [*line, f"onnxruntime-qnn=={version}"],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"onnxruntime-qnn {version} did not arrive in {_SECONDS} s")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]
        pytest.skip(f"onnxruntime-qnn {version} cannot be had here: {last}")
