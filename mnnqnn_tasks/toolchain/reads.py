"""Which files a stage reads, told from its arguments; for workers that do not have them.

Only the stages that are worth the way are here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Read:
    """A file that a stage reads.

    Attributes:
        path: where it is.
        sha256: the digest that the stage will compare it with; ``None`` if it does not.
    """

    path: str
    sha256: str | None = None


def reads(stage: str, arguments: Arguments, model: Mapping[str, str]) -> list[Read]:
    """The files that ``stage`` reads, each once.

    Args:
        model: SHA-256 of the model's files by name.

    Raises:
        KeyError: nobody knows what the stage reads.
        OSError, ValueError: a file that tells cannot be read.
    """
    found = {read.path: read for read in _STAGES[stage](arguments, model)}
    return list(found.values())


def _model(arguments: Arguments, model: Mapping[str, str]) -> Iterator[Read]:
    for name, sha256 in model.items():
        yield Read(os.path.join(arguments["folder"], *name.split("/")), sha256)


def _io_output(arguments: Arguments, model: Mapping[str, str]) -> Iterator[Read]:
    yield from _model(arguments, model)
    yield from map(Read, [arguments["index"], *arguments["samples"].values()])


def _cut(arguments: Arguments, model: Mapping[str, str]) -> Iterator[Read]:
    yield from _model(arguments, model)
    yield from map(Read, [arguments["index"], arguments["structure"]])
    yield from map(Read, filter(None, arguments["inputs"].values()))


def _translate(arguments: Arguments, model: Mapping[str, str]) -> Iterator[Read]:
    yield from map(Read, [arguments["subgraph"], arguments["sources"]])
    named = {place["file"] for place in _json(arguments["sources"]).values()}
    yield from _model(arguments, {name: model[name] for name in sorted(named & model.keys())})


def _link(arguments: Arguments, model: Mapping[str, str]) -> Iterator[Read]:
    for net in arguments["nets"]:
        yield Read(net)
        for tensor in _json(net)["tensors"]:
            if "blob" in tensor:
                digest = tensor["blob"]["sha256"]
                yield Read(os.path.join(arguments["blobs"], digest), digest)


def _json(path: str) -> Any:
    with open(path, encoding="utf-8") as stream:
        return json.load(stream)


_STAGES: dict[str, Callable[[Arguments, Mapping[str, str]], Iterator[Read]]] = {
    "io_output": _io_output,
    "cut": _cut,
    "translate": _translate,
    "link": _link,
}
