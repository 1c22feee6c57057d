"""A QAIRT SDK: its tools, libraries, version, and what they need around them.

Its folder is what ``QNN_SDK_ROOT`` names: ``bin/x86_64-linux-clang`` with the tools,
``lib/x86_64-linux-clang`` with the libraries, ``lib/hexagon-vNN`` for every architecture
that it supports, ``sdk.yaml`` with its version.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from mnnqnn_tasks.errors import ToolMissing

HOST = "x86_64-linux-clang"
PAGE = "https://developer.qualcomm.com/software/qualcomm-ai-engine-direct-sdk"
_MODEL_LIB = "qnn-model-lib-generator"
_CONTEXT = "qnn-context-binary-generator"
_HTP = "libQnnHtp.so"
_EXTENSIONS = "libQnnHtpNetRunExtensions.so"
_SYSTEM = "libQnnSystem.so"
#: Sources and headers that qnn-model-lib-generator compiles with a graph.
_COMPILED = ("share/QNN/converter/**/*", "include/QNN/**/*")
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Sdk:
    """A QAIRT SDK in the folder ``root``; nothing is looked at before it is needed."""

    root: Path

    @property
    def model_lib_generator(self) -> Path:
        """Compiles a graph's source."""
        return self.root / "bin" / HOST / _MODEL_LIB

    @property
    def context_generator(self) -> Path:
        """Makes a context binary of compiled graphs."""
        return self.root / "bin" / HOST / _CONTEXT

    @property
    def lib_dir(self) -> Path:
        """The libraries for this machine."""
        return self.root / "lib" / HOST

    @property
    def htp(self) -> Path:
        """The backend."""
        return self.lib_dir / _HTP

    @property
    def extensions(self) -> Path:
        """Reads the backend's options for the context generator."""
        return self.lib_dir / _EXTENSIONS

    @property
    def has_system(self) -> bool:
        """Whether binaries can be read back with the SDK's own library."""
        return (self.lib_dir / _SYSTEM).is_file()

    def files(self) -> list[Path]:
        """Everything that a link needs."""
        return [self.model_lib_generator, self.context_generator, self.htp, self.extensions]

    def missing(self) -> list[Path]:
        """What is not there."""
        return [path for path in self.files() if not path.is_file()]

    def require(self) -> None:
        """Refuse an SDK that cannot link.

        Raises:
            ToolMissing: naming the first missing file.
        """
        if lacking := self.missing():
            raise ToolMissing(
                f"{lacking[0].relative_to(self.root)} is not in the QAIRT SDK",
                where=str(self.root),
                why=None if self.root.is_dir() else "there is no such folder",
                todo=f"correct qnn_sdk_root or QNN_SDK_ROOT, or get the SDK from {PAGE}",
            )

    def version(self) -> str | None:
        """The SDK's version, ``None`` where neither ``sdk.yaml`` nor the folder says it."""
        try:
            text = (self.root / "sdk.yaml").read_text("utf-8", "replace")
        except OSError:
            text = ""
        said = re.search(r"^\s*version\s*:\s*['\"]?v?([0-9][0-9.]*)", text, re.M)
        if said:
            return said[1]
        named = _VERSION.search(self.root.name)
        return named[0] if named else None

    def archs(self) -> list[str]:
        """Hexagon architectures that it has libraries for."""
        names = (path.name.removeprefix("hexagon-") for path in self.root.glob("lib/hexagon-v*"))
        return sorted(names, key=lambda name: int(re.sub(r"\D", "", name) or 0))

    def environment(self) -> dict[str, str]:
        """Variables that the SDK's own setup script would set."""
        return {
            "QNN_SDK_ROOT": str(self.root),
            "PATH": _before(self.model_lib_generator.parent, "PATH"),
            "LD_LIBRARY_PATH": _before(self.lib_dir, "LD_LIBRARY_PATH"),
            "PYTHONPATH": _before(self.root / "lib" / "python", "PYTHONPATH"),
        }

    def consists_of(self) -> tuple[list[Path], bool]:
        """The files that decide what the tools make, and whether these are all.

        An SDK has gigabytes.  These are the tools, the libraries that prepare graphs, and
        what is compiled into a model library; the version stands for the rest, so without
        one they are not all.
        """
        found = [*self.files(), self.root / "sdk.yaml", *self.lib_dir.glob("libQnnHtp*.so")]
        for folder in _COMPILED:
            found += sorted(self.root.glob(folder))
        there = [path for path in dict.fromkeys(found) if path.is_file()]
        return there, not self.missing() and self.version() is not None


def _before(folder: Path, variable: str) -> str:
    return os.pathsep.join(filter(None, (str(folder), os.environ.get(variable))))
