"""``npu_postreat.json``: which graphs belong into which context binary.

``compilefornpu`` writes it: ``{"type": "QNN", "merge": {"qnn/graph0.bin": ["qnn/graph0",
"qnn/graph1_0"]}, "cache": "qnn"}``.  Its paths become paths of files that are read and
written, so they must be plain ones inside the build folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import SourceFileError
from mnnqnn_tasks.toolchain.cppnet.raws import open_plain

NAME = "npu_postreat.json"

#: An LLM has one binary per layer and one graph per sequence length.
MAX_BINARIES = 4096
MAX_GRAPHS = 256
_MAX_BYTES = 16 << 20
_MAX_PATH = 512
_DEFAULT_CACHE = "res"  # npu_convert.py's

_PART = re.compile(r"[A-Za-z0-9_+.-]{1,200}")
#: The name of a graph is a C++ symbol as well.
_GRAPH = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,119}")

_TODO = "run compilefornpu again; do not edit the file"


@dataclass(frozen=True)
class Merge:
    """One context binary.

    Attributes:
        binary: its path from the build folder, ``qnn/graph0.bin``.
        graphs: the folders of its graphs' sources from there, ``qnn/graph0``, in order.
    """

    binary: str
    graphs: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the binary without folder and suffix."""
        return self.binary.rsplit("/", 1)[-1].removesuffix(".bin")

    def graph_names(self) -> tuple[str, ...]:
        """Names of the graphs, which are those of their folders."""
        return tuple(graph.rsplit("/", 1)[-1] for graph in self.graphs)


def read_merges(folder: Path) -> list[Merge]:
    """The merges of a build folder, in the file's order; every source exists.

    Raises:
        SourceFileError: the file is missing, damaged or of another form, a path leads out
            of the folder, there are too many, or a graph has no source.
    """
    path = folder / NAME
    try:
        with open_plain(path) as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SourceFileError(
            f"{NAME} cannot be read",
            where=str(path),
            why=error.strerror,
            todo="look at what compilefornpu printed; it writes this file last",
        ) from error
    merges = parse_merges(data, str(path))
    _check_sources(folder, merges, str(path))
    return merges


def parse_merges(data: bytes, where: str) -> list[Merge]:
    """The merges in the text of the file; looks at no other file.

    Raises:
        SourceFileError: as `read_merges`.
    """
    for problem in _problems(data):
        raise SourceFileError(
            f"{NAME} is not what MNN writes", where=where, why=problem, todo=_TODO
        )
    document = json.loads(data)
    return [Merge(binary, tuple(graphs)) for binary, graphs in document["merge"].items()]


def _problems(data: bytes) -> Iterator[str]:
    if len(data) > _MAX_BYTES:
        yield f"it has more than {_MAX_BYTES} bytes"
    try:
        document = json.loads(data, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, absurd numbers
        yield str(error)
        return
    if not isinstance(document, dict):
        yield "an object is needed"
        return
    for key in document:
        if key not in ("type", "merge", "cache"):
            yield f"unknown key {key[:80]!r}"
    if document.get("type") != "QNN":
        yield f"expected type 'QNN', found {str(document.get('type'))[:80]!r}"
    merge, cache = document.get("merge"), document.get("cache", _DEFAULT_CACHE)
    if not isinstance(merge, dict) or not merge:
        yield "'merge' must name binaries and their graphs"
        return
    if len(merge) > MAX_BINARIES:
        yield f"{len(merge)} binaries are more than {MAX_BINARIES}"
    yield from _path_problems("cache", cache)
    seen: set[str] = set()
    for binary, graphs in merge.items():
        yield from _binary_problems(binary, cache)
        yield from _graphs_problems(binary, graphs, seen)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is there twice")
    return made


def _path_problems(what: str, path: object) -> Iterator[str]:
    if not isinstance(path, str):
        yield f"{what}: a path is needed"
        return
    if len(path) > _MAX_PATH:
        yield f"{what}: a path of {len(path)} characters is longer than {_MAX_PATH}"
    for part in path.split("/"):
        if not _PART.fullmatch(part) or part.strip(".") == "":
            yield f"{what} {path[:80]!r} is no path inside the build folder"


def _binary_problems(binary: str, cache: str) -> Iterator[str]:
    yield from _path_problems("binary", binary)
    folder, _, name = binary.rpartition("/")
    if not name.endswith(".bin") or not _GRAPH.fullmatch(name.removesuffix(".bin")):
        yield f"binary {binary[:80]!r}: expected a name and .bin"
    if folder != cache:
        yield f"binary {binary[:80]!r} is not in the folder {cache!r} that 'cache' names"


def _graphs_problems(binary: str, graphs: object, seen: set[str]) -> Iterator[str]:
    if not isinstance(graphs, list) or not 1 <= len(graphs) <= MAX_GRAPHS:
        yield f"binary {binary!r}: expected a list of 1 to {MAX_GRAPHS} graphs"
        return
    for graph in graphs:
        yield from _path_problems("graph", graph)
        name = graph.rsplit("/", 1)[-1]
        if not _GRAPH.fullmatch(name):
            yield f"graph {graph[:80]!r}: expected a C++ name"
        if name in seen:
            yield f"graph {name!r} is there twice"
        seen.add(name)


def _check_sources(folder: Path, merges: list[Merge], where: str) -> None:
    """Every graph's source must exist, inside the folder also where a link leads."""
    root = folder.resolve()
    missing = []
    for merge in merges:
        for graph, name in zip(merge.graphs, merge.graph_names(), strict=True):
            source = folder / graph / f"{name}.cpp"
            if not source.is_file():
                missing.append(graph)
            elif not source.resolve().is_relative_to(root):
                raise SourceFileError(
                    f"the source of {name} is not in the build folder",
                    where=str(source),
                    why=f"a link leads to {source.resolve()}",
                )
    if missing:
        count = sum(len(merge.graphs) for merge in merges)
        raise SourceFileError(
            f"{len(missing)} of {count} graphs have no source",
            where=where,
            why=f"compilefornpu listed but did not write {', '.join(missing[:20])}"
            + (", ..." if len(missing) > 20 else ""),
            todo='look for "Don\'t support type" and the like in what it printed, and name those '
            "ops in skips",
        )
