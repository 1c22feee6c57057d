"""Folders of doubled external tools: an MNN build, a QAIRT SDK (see `tests/doubles`)."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from mnnqnn_tasks.qnn import library

DOUBLES = Path(__file__).resolve().parent / "doubles"
LLM_IO, IO, COMPILE = "generateLlmIO", "generateIO", "compilefornpu"
MODEL_LIB, CONTEXT = "qnn-model-lib-generator", "qnn-context-binary-generator"
HOST = "x86_64-linux-clang"


class Tools:
    """A folder of doubles, how they are told to behave, and what they were called with."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        shutil.copyfile(DOUBLES / "double.py", folder / "double.py")
        for name in names:
            text = (DOUBLES / f"{name}.py").read_text("utf-8")
            (folder / name).write_text(f"#!{sys.executable}\n{text}", "utf-8")
            (folder / name).chmod(0o755)

    def mode(self, **modes: str) -> None:
        """How tools behave from now on; names with ``_`` for ``-``."""
        told = {name.replace("_", "-"): mode for name, mode in modes.items()}
        (self.folder / "modes.json").write_text(json.dumps(told))

    def calls(self, tool: str) -> list[dict[str, Any]]:
        """All calls so far."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if call["tool"] == tool]

    def forget(self) -> None:
        """Start counting anew."""
        (self.folder / "calls.jsonl").unlink(missing_ok=True)


def mnn_build(folder: Path, *io_tools: str) -> Tools:
    """An MNN build with these tools for IO samples."""
    return Tools(folder, (*(io_tools or (LLM_IO,)), COMPILE))


def qnn_sdk(folder: Path, version: str = "2.38.0.250901") -> Tools:
    """A QAIRT SDK with the wheel's libraries; gives the folder of its tools."""
    tools = Tools(folder / "bin" / HOST, (MODEL_LIB, CONTEXT))
    libraries = folder / "lib" / HOST
    libraries.mkdir(parents=True)
    for path in library.find().glob("*.so"):
        (libraries / path.name).symlink_to(path)
    beside = library.find().with_name("onnxruntime_qnn.libs")  # where the wheel's look for libc++
    (libraries.parent / beside.name).symlink_to(beside)
    extensions = libraries / "libQnnHtpNetRunExtensions.so"
    extensions.unlink(missing_ok=True)  # the wheel's own must not be written through its link
    extensions.write_bytes(b"a double")
    for arch in ("v75", "v79"):
        (folder / "lib" / f"hexagon-{arch}").mkdir()
    (folder / "sdk.yaml").write_text(f"name: qairt\nversion: {version}\n")
    return tools
