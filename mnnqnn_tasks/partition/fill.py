"""Fills the digests of a model's weights into the files of a cut.

This is all that a run does to the plan after weights changed, so nothing large is
imported here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import ModelFileError, PartitionError
from mnnqnn_tasks.files import sha256_bytes
from mnnqnn_tasks.partition.text import readable_json

VERSION = 1

#: Names of files in the build folder of a model; subgraphs are ``GRAPHS/<graph>.json``.
GRAPHS, POSTREAT, PLAN, SOURCES = "subgraphs", "npu_postreat.json", "plan.json", "sources.json"

Span = tuple[int, int]

#: Text, or what its digest stands for: a number of a range, the name of a graph.
Part = str | int


@dataclass(frozen=True)
class Template:
    """The text files of a cut.

    Attributes:
        graphs: names of the graphs in plan order.
        binaries: names of the binaries in plan order.
        ranges: (offset, size) of the ranges of the weight file, ascending.
        texts: by file name, in the order of writing, texts (even positions) and the
            digests between them (odd positions): of a range, by its number, or of the
            file of a graph, by its name.
        places: (file, offset, size, digest, used) of bytes that ops read; the digest is
            ``None`` for a range of the weight file; ``used``: a graph refers to them.
    """

    graphs: tuple[str, ...]
    binaries: tuple[str, ...]
    ranges: tuple[Span, ...]
    texts: Mapping[str, tuple[Part, ...]]
    places: tuple[tuple[str, int, int, str | None, bool], ...]

    def to_json(self) -> dict[str, Any]:
        """JSON values; `from_json` is the inverse."""
        return {
            "version": VERSION,
            "graphs": self.graphs,
            "binaries": self.binaries,
            "ranges": self.ranges,
            "texts": self.texts,
            "places": self.places,
        }

    @classmethod
    def from_json(cls, value: Any) -> Template:
        """What `to_json` gave.

        Raises:
            PartitionError: when ``value`` is something else.
        """
        try:
            if value["version"] != VERSION:
                raise ValueError(f"its version is {value['version']}, not {VERSION}")
            return cls(
                tuple(value["graphs"]),
                tuple(value["binaries"]),
                tuple((offset, size) for offset, size in value["ranges"]),
                {name: tuple(parts) for name, parts in value["texts"].items()},
                tuple((f, o, s, digest, used) for f, o, s, digest, used in value["places"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PartitionError(
                "not a cut of this tool",
                why=f"{type(error).__name__}: {error}",
                todo="delete it and run again",
            ) from error


def read_template(path: Path) -> Template:
    """The template in the file ``path``.

    Raises:
        PartitionError: when it cannot be read.
    """
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise PartitionError(
            "cannot read the cut", where=str(path), why=str(error), todo="delete it and run again"
        ) from error
    return Template.from_json(value)


def range_digests(model_json: Path) -> dict[Span, str]:
    """The digests of weight ranges in ``model.json``.

    Raises:
        ModelFileError: when the file is something else.
    """
    try:
        value = json.loads(model_json.read_text("utf-8"))
        return {(r["offset"], r["size"]): r["sha256"] for r in value["ranges"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(
            "not a model.json of this tool",
            where=str(model_json),
            why=f"{type(error).__name__}: {error}",
            todo="delete it and run again",
        ) from error


def fill(template: Template, digests: Mapping[Span, str]) -> dict[str, bytes]:
    """The files of the cut, by name; `PLAN` is the last.

    Args:
        digests: SHA-256 of each range (offset, size) of the weight file.

    Raises:
        ModelFileError: when ``digests`` lacks a range.
    """
    try:
        ranges = [digests[span] for span in template.ranges]
    except KeyError as error:
        offset, size = error.args[0]
        raise ModelFileError(
            "the model reads a weight range that its index does not have",
            why=f"{size} bytes from byte {offset}",
            todo="the model changed; run again to index it anew",
        ) from None
    by_name: dict[Part, str] = dict(enumerate(ranges))
    files: dict[str, bytes] = {}
    for name, parts in template.texts.items():
        text = "".join(part if i % 2 == 0 else by_name[part] for i, part in enumerate(parts))  # type: ignore[misc]
        data = files[name] = text.encode()
        folder, _, file = name.partition("/")
        if folder == GRAPHS:
            by_name[file.removesuffix(".json")] = sha256_bytes(data)
    plan = files.pop(PLAN)
    return {**files, SOURCES: _sources(template, digests), PLAN: plan}


def _sources(template: Template, digests: Mapping[Span, str]) -> bytes:
    """Of places with the same bytes the first counts, be it one that no graph refers to."""
    first: dict[str, tuple[str, int, int]] = {}
    used = set()
    for file, offset, size, known, is_used in template.places:
        sha256 = known or digests[offset, size]
        first[sha256] = min(first.get(sha256, (file, offset, size)), (file, offset, size))
        if is_used:
            used.add(sha256)
    places = {
        sha256: dict(zip(("file", "offset", "size"), first[sha256], strict=True))
        for sha256 in sorted(used)
    }
    return readable_json(places).encode()
