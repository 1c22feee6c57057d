"""MNN's tools in a build folder: where they are, and which generation they speak.

Two programs make IO samples.  ``generateLlmIO MODEL_DIR OUT CHUNK`` knows LLMs and writes
``OUT/1`` and ``OUT/CHUNK``; ``generateIO MODEL INPUT_JSON OUT WEIGHT`` is told every shape
and writes ``OUT/0``, ``OUT/1`` and so on.  Their names do not tell which one they are (the
second calls itself by the first one's name), so they are asked: without arguments both
print how they want to be called.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from mnnqnn_tasks.errors import ToolError, ToolMissing
from mnnqnn_tasks.toolchain.external import loads
from mnnqnn_tasks.toolchain.external.runner import Runner, check_program

COMPILE = "compilefornpu"
#: Newer first: MNN's own script uses it where it exists.
IO_TOOLS = ("generateIO", "generateLlmIO")
#: How to get the tools.
BUILD = (
    "build MNN with -DMNN_QNN=ON -DMNN_QNN_CONVERT_MODE=ON -DMNN_WITH_PLUGIN=OFF "
    "-DMNN_BUILD_TOOLS=ON -DMNN_BUILD_LLM=ON (docs/inference/npu.md in MNN)"
)
_ASK_SECONDS = 30
_SHOWN = 12
#: What only a library has that can write QNN graph sources.
_CONVERTER = b"QnnModel_composeGraphs"
#: Keys of ``qnn.json`` that not every version reads.
FEATURES = ("graph_name", "skips", "KVCACHE_SIZE_LIMIT")


@dataclass(frozen=True)
class IoTool:
    """A program that makes IO samples; ``takes_json`` is the newer generation."""

    path: Path
    takes_json: bool

    @property
    def generation(self) -> str:
        """In words."""
        if self.takes_json:
            return "MODEL INPUT_JSON OUT WEIGHT"
        return "MODEL_DIR OUT CHUNK"


def io_tools(folder: Path) -> list[IoTool]:
    """The programs that make IO samples, the one to use first.

    Raises:
        ToolMissing: when there is none.
        ToolError: when one does not say how it wants to be called.
    """
    found = [_ask(folder / name) for name in IO_TOOLS if (folder / name).is_file()]
    if not found:
        raise ToolMissing(
            "no tool of MNN's that makes IO samples",
            where=str(folder),
            why=f"neither {' nor '.join(IO_TOOLS)} is there",
            todo=f"{BUILD}; or io: native",
        )
    return found


def _ask(path: Path) -> IoTool:
    usage, end = first_words(path)
    words = usage.lower()
    if "inputjson" in words:
        return IoTool(path, True)
    if "outputdir" in words:
        return IoTool(path, False)
    raise _no_usage(path, usage, end, "io: native needs no tool")


def ask_compiler(folder: Path) -> Path:
    """``compilefornpu``, which is there and starts.

    Raises:
        ToolMissing: it is not there, not executable, or does not find its libraries.
        ToolError: it does not say how it wants to be called.
    """
    path = compiler(folder)
    usage, end = first_words(path)
    if "usage" not in usage.lower():
        raise _no_usage(path, usage, end, f"{BUILD}; or partition: native")
    return path


def _no_usage(path: Path, usage: str, end: str, todo: str) -> ToolError:
    return ToolError(
        "the tool does not say how it wants to be called",
        where=str(path),
        why=f"started without arguments, it should print its usage; {end}",
        todo=todo,
        tail="\n".join(usage.splitlines()[:_SHOWN]) or None,
    )


def first_words(path: Path) -> tuple[str, str]:
    """What a tool prints when it is started without arguments, and how it ended.

    Raises:
        ToolMissing: it is not there, not executable, or does not find its libraries.
    """
    text, end = Runner(str(path), Path(os.devnull), _ASK_SECONDS).ask(path)
    if "error while loading shared libraries" in text:
        raise ToolMissing(
            "the tool does not find its libraries",
            where=str(path),
            why=text,
            todo="set LD_LIBRARY_PATH to the folder that they are in",
        )
    return text, end


def compiler(folder: Path) -> Path:
    """``compilefornpu``.

    Raises:
        ToolMissing: when it is not there.
    """
    path = folder / COMPILE
    if not path.is_file():
        raise ToolMissing(
            f"there is no {COMPILE}", where=str(folder), todo=f"{BUILD}; or partition: native"
        )
    check_program(str(path))
    return path


def libraries(folder: Path) -> list[Path]:
    """MNN's shared libraries in a build folder."""
    return sorted(
        path
        for pattern in ("libMNN*.so*", "libllm*.so*", "express/libMNN*.so*")
        for path in folder.glob(pattern)
        if path.is_file()
    )


def consists_of(folder: Path) -> tuple[list[Path], bool]:
    """The files that decide what the tools make, and whether these are all.

    They are not where a tool is a script, or one of its libraries is not found.
    """
    tools = [path for name in (COMPILE, *IO_TOOLS) if (path := folder / name).is_file()]
    loaded = [loads.libraries(tool) for tool in tools]
    found = [*tools, *libraries(folder), *(path for paths in loaded for path in paths or ())]
    return list(dict.fromkeys(found)), bool(tools) and None not in loaded


def features(folder: Path) -> list[str]:
    """The keys of ``qnn.json`` that ``compilefornpu`` reads, as far as its bytes tell."""
    return [key for key in FEATURES if _holds(folder / COMPILE, key.encode())]


def writes_sources(folder: Path) -> bool:
    """Whether the build can write QNN graph sources; without, every graph is missing."""
    return any(_holds(path, _CONVERTER) for path in (folder / COMPILE, *libraries(folder)))


def _holds(path: Path, needle: bytes) -> bool:
    try:
        with path.open("rb") as stream, _mapped(stream.fileno()) as data:
            return data.find(needle) >= 0
    except (OSError, ValueError):  # an empty file cannot be mapped
        return False


def _mapped(fileno: int) -> mmap.mmap:
    return mmap.mmap(fileno, 0, access=mmap.ACCESS_READ)
