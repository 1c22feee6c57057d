"""Wheels of other versions, fetched by pip into a folder of the test's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Versions of onnxruntime-qnn with a libGenie for x86-64, by the QAIRT that they carry.
WHEELS = {"2.47": "2.3.0", "2.48": "2.4.0", "2.49": "2.5.0", "2.50": "2.6.0", "2.51": "2.7.0"}
_SECONDS = 300


def fetch(version: str, folder: Path) -> Path:
    """The wheel file; skips the test, saying why, where the registry is out of reach."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    command += [f"onnxruntime-qnn=={version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"onnxruntime-qnn {version} did not arrive in {_SECONDS} s")
    found = sorted(folder.glob(f"onnxruntime_qnn-{version}-*.whl"))
    if done.returncode != 0 or not found:
        last = (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]
        pytest.skip(f"onnxruntime-qnn {version} cannot be had here: {last}")
    return found[0]
