"""Setting ``graph.name`` of an ONNX model, weights untouched and never in memory.

Field numbers are those of onnx.proto (ONNX IR): ``ModelProto.graph`` is 7, ``GraphProto.name``
is 2.  Everything but the name is copied byte for byte, unknown fields too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mnnqnn_tasks.errors import GenieError
from mnnqnn_tasks.files import atomic_writer, clone_file
from mnnqnn_tasks.genie import wire

_GRAPH, _NAME = 7, 2

#: From a message to the messages in it that lead to tensors, by field number.
_TENSOR_PATHS: Mapping[str, Mapping[int, str]] = {
    "model": {_GRAPH: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {
        5: "tensor",
        6: "graph",
        10: "tensor",
        11: "graph",
        22: "sparse tensor",
        23: "sparse tensor",
    },
    "sparse tensor": {1: "tensor", 2: "tensor"},
}
_EXTERNAL_DATA = 13
_KEY, _VALUE = 1, 2

#: protobuf's own limit of a message.
_LIMIT = (1 << 31) - 1
_CHUNK = 1 << 20


def _not_onnx(path: Path, why: object) -> GenieError:
    return GenieError(
        "not an ONNX model",
        where=str(path),
        why=str(why),
        todo="give a model that the onnx package can load",
    )


#: Files of weights by the place that they were brought to.
Brought = MutableMapping[str, Path]


@dataclass(frozen=True)
class Renamed:
    """What was done to a model.

    Attributes:
        path: the file that has the name now.
        before, name: the graph's name.
        external: files beside it that hold its weights, relative to it.
    """

    path: Path
    before: str
    name: str
    external: tuple[str, ...]


def rename(
    source: Path, name: str, target: Path | None = None, brought: Brought | None = None
) -> Renamed:
    """Give the graph of ``source`` another name.

    Args:
        target: write there and leave ``source`` as it is; external weights are brought
            beside it.  By default ``source`` is replaced, atomically.
        brought: weights that were brought before, which models of one folder share; what
            this call brings is added.

    Raises:
        GenieError: not an ONNX model, or one that cannot carry the name.
        DiskError: the file cannot be written.
    """
    goal = Path(os.path.realpath(source)) if target is None else target
    try:
        with source.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            graph, names = _find(stream.fileno(), size)
            before = wire.text(stream.fileno(), names[-1]) if names else ""
            external = _weights(stream.fileno(), size)
            for location in external if target is not None else ():
                _bring(source, goal, location, {} if brought is None else brought)
            if before != name or target is not None:
                _write(stream, size, graph, names, name, goal)
    except wire.Malformed as error:
        raise _not_onnx(source, error) from error
    except OSError as error:
        raise GenieError("cannot read the model", where=str(source), why=str(error)) from error
    return Renamed(goal, before, name, external)


def external_files(path: Path) -> tuple[str, ...]:
    """The files with a model's weights, relative to it, sorted.

    Raises:
        GenieError: not an ONNX model.
    """
    try:
        with path.open("rb") as stream:
            return _weights(stream.fileno(), os.fstat(stream.fileno()).st_size)
    except wire.Malformed as error:
        raise _not_onnx(path, error) from error
    except OSError as error:
        raise GenieError("cannot read the model", where=str(path), why=str(error)) from error


def _weights(fd: int, size: int) -> tuple[str, ...]:
    found = {os.path.normpath(location) for location in _external(fd, "model", 0, size)}
    return tuple(sorted(found))


def graph_name(path: Path) -> str:
    """The name of a model's graph, empty where it has none.

    Raises:
        GenieError: not an ONNX model.
    """
    try:
        with path.open("rb") as stream:
            _, names = _find(stream.fileno(), os.fstat(stream.fileno()).st_size)
            return wire.text(stream.fileno(), names[-1]) if names else ""
    except wire.Malformed as error:
        raise _not_onnx(path, error) from error
    except OSError as error:
        raise GenieError("cannot read the model", where=str(path), why=str(error)) from error


def _find(fd: int, size: int) -> tuple[wire.Field, list[wire.Field]]:
    """The graph, and its name; of a name that is there twice the last one counts."""
    found = [field for field in wire.fields(fd, 0, size) if field.number == _GRAPH]
    if len(found) != 1 or found[0].kind != wire.BYTES:
        raise wire.Malformed("there is no graph in it" if not found else "two graphs are in it")
    graph = found[0]
    inside = wire.fields(fd, graph.payload, graph.end)
    names = [field for field in inside if field.number == _NAME]
    return graph, names


def _external(fd: int, kind: str, start: int, end: int) -> Iterator[str]:
    """Locations of tensors that lie outside the file."""
    for field in wire.fields(fd, start, end):
        inner = _TENSOR_PATHS[kind].get(field.number)
        if inner is None or field.kind != wire.BYTES:
            continue
        if inner == "tensor":
            yield from _locations(fd, field)
        else:
            yield from _external(fd, inner, field.payload, field.end)


def _locations(fd: int, tensor: wire.Field) -> Iterator[str]:
    for field in wire.fields(fd, tensor.payload, tensor.end):
        if field.number == _EXTERNAL_DATA and field.kind == wire.BYTES:
            pair = {f.number: f for f in wire.fields(fd, field.payload, field.end)}
            if _KEY in pair and _VALUE in pair and wire.text(fd, pair[_KEY]) == "location":
                yield wire.text(fd, pair[_VALUE])


def _bring(source: Path, goal: Path, location: str, brought: Brought) -> None:
    """Put a file of external weights where the copy of the model looks for it.

    The file system shares the blocks where it can, until one of the two is written to.
    """
    inside = Path(os.path.normpath(location))
    if inside.is_absolute() or inside.parts[:1] == ("..",):
        raise GenieError(
            "external weights lie outside the model's folder",
            where=str(source),
            why=f"location is {location!r}; ONNX wants a path below the model",
            todo="save the model with its weights beside it",
        )
    if not (source.parent / inside).is_file():
        raise GenieError(
            "external weights are missing",
            where=str(source.parent / inside),
            why=f"{source.name} names them",
            todo="put them beside the model",
        )
    data, copy = Path(os.path.realpath(source.parent / inside)), goal.parent / inside
    known = os.path.realpath(copy) in brought
    other = brought.setdefault(os.path.realpath(copy), data)
    if other != data:
        raise GenieError(
            "the weights of two models would be one file",
            where=str(copy),
            why=f"{data} and {other} have the same place below their models",
            todo="give the models one by one, each with a folder of its own",
        )
    if data == Path(os.path.realpath(copy)) or known:
        return
    # No link: the onnx package refuses weights that have a second hard link or are reached
    # through a symbolic one, and then it refuses the model that they come from as well.
    with data.open("rb") as stream, atomic_writer(copy) as out:
        if not clone_file(stream.fileno(), out.fileno()):
            shutil.copyfileobj(stream, out, _CHUNK)


def _write(
    stream: BinaryIO,
    size: int,
    graph: wire.Field,
    names: list[wire.Field],
    name: str,
    goal: Path,
) -> None:
    made = wire.bytes_field(_NAME, name.encode())
    length = graph.end - graph.payload - sum(f.end - f.start for f in names) + len(made)
    if size - graph.end + graph.payload + length > _LIMIT:
        raise GenieError(
            "the model would be larger than a protobuf message may be",
            where=str(goal),
            why="2 GiB is the limit",
            todo="save it with external weights, or take a shorter name",
        )
    at = names[0].start if names else graph.payload
    with atomic_writer(goal) as out:
        _copy(stream, out, 0, graph.start)
        out.write(wire.varint(_GRAPH << 3 | wire.BYTES) + wire.varint(length))
        _copy(stream, out, graph.payload, at)
        out.write(made)
        for field in names:
            _copy(stream, out, at, field.start)
            at = field.end
        _copy(stream, out, at, size)


def _copy(stream: BinaryIO, out: BinaryIO, start: int, end: int) -> None:
    stream.seek(start)
    while start < end:
        chunk = stream.read(min(_CHUNK, end - start))
        if not chunk:
            raise wire.Malformed("it became shorter while it was read")
        out.write(chunk)
        start += len(chunk)
