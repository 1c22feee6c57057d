"""The graphs of a Genie bundle, from context binaries or from a dump of their metadata.

A context binary is read by libQnnSystem in a process of its own, which maps the file: two
gigabytes of weights are never read.  The dump is what ``qnn-context-binary-utility
--context_binary FILE --json_file DUMP`` writes, in the older form (every level wrapped in
``info``) or in the flat one of 2026 (``CONTEXT_BINARY_INFO_UNIFIED``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import GenieError, QnnError
from mnnqnn_tasks.genie import damage
from mnnqnn_tasks.qnn.binary import TensorInfo

#: A tensor at the border of a graph: name, dtype, dims, quantization.
Tensor = TensorInfo

#: Reading metadata takes milliseconds; a library that is led astray by it gets no longer.
_SECONDS = 120.0

#: Metadata takes kilobytes per graph; more than this is no dump.
_MAX_DUMP = 256 << 20

_UNDAMAGED = (
    "copy the file again as it was compiled; a name that is wrong takes compiling again from ONNX "
    "or DLC, but for split numbers, which doit genie_renumber changes"
)
_TODO = "give context binaries, or what qnn-context-binary-utility --json_file wrote of them"


@dataclass(frozen=True)
class GraphInfo:
    """A graph as a loader sees it.

    Attributes:
        name: the graph's name.
        inputs, outputs: in the order of the file; QNN sorts them as it likes.
        file: the file that it was read from, as the caller named it.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    file: str = ""

    def input(self, name: str) -> Tensor | None:
        """The input called ``name``."""
        return next((tensor for tensor in self.inputs if tensor.name == name), None)

    def output(self, name: str) -> Tensor | None:
        """The output called ``name``."""
        return next((tensor for tensor in self.outputs if tensor.name == name), None)


@dataclass(frozen=True)
class ContextFile:
    """One file of a bundle.

    Attributes:
        file: as the caller named it.
        graphs: in the order of the file.
        soc_id: chip that it was made for, None where the file does not tell.
        build_id: of the library that wrote it.
        dump: it is a dump of a context binary, not the binary itself.
    """

    file: str
    graphs: tuple[GraphInfo, ...]
    soc_id: int | None = None
    build_id: str = ""
    dump: bool = False


def read(path: Path, lib_dir: Path | None = None) -> ContextFile:
    """Read a context binary or a JSON dump of one; the content decides which it is.

    Args:
        lib_dir: folder of the QNN libraries; the wheel's by default.

    Raises:
        GenieError: missing, unreadable, truncated or foreign.
        ToolMissing: there is no QNN library to read a binary with.
    """
    if _is_json(path):
        return read_dump(path)
    return read_binary(path, lib_dir)


def read_binary(path: Path, lib_dir: Path | None = None) -> ContextFile:
    """Read a context binary's metadata.

    Raises:
        GenieError, ToolMissing.
    """
    from mnnqnn_tasks.qnn import run

    try:
        info = run.inspect(path.absolute(), lib_dir, _SECONDS)
    except QnnError as error:
        if why := damage.reason(path):
            what = "a damaged context binary (Genie: Create From Binary FAILED)"
            raise GenieError(what, where=str(path), why=why, todo=_UNDAMAGED) from error
        raise GenieError(error.what, where=str(path), why=error.why, todo=_TODO) from error
    graphs = tuple(GraphInfo(g.name, g.inputs, g.outputs, str(path)) for g in info.graphs)
    return ContextFile(str(path), graphs, info.soc_id, info.build_id)


def _is_json(path: Path) -> bool:
    """Whether a file starts like a JSON object; binaries start with a number.

    Raises:
        GenieError: no regular file, or an empty one.
    """
    try:
        if path.is_dir():
            raise GenieError(
                "a folder, not a context binary",
                where=str(path),
                todo=f"name the files in it: {path}/*.bin",
            )
        if not path.is_file():
            why = "no such file" if not os.path.lexists(path) else "not a regular file"
            raise GenieError("cannot read the file", where=str(path), why=why, todo=_TODO)
        with path.open("rb") as stream:
            head = stream.read(64)
    except (OSError, ValueError) as error:
        raise GenieError(
            "cannot read the file", where=str(path), why=str(error), todo=_TODO
        ) from error
    if not head:
        raise GenieError("the file is empty", where=str(path), todo=_TODO)
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"


def load_json(path: Path, what: str, todo: str | None = None) -> Any:
    """Parse a JSON file that somebody else wrote; ``what`` says what it should be.

    Raises:
        GenieError: unreadable, too large, not UTF-8, not JSON, or nested too deeply.
    """
    try:
        size = path.stat().st_size
        if size > _MAX_DUMP:
            why = f"{size} bytes are too many"
            raise GenieError(f"not {what}", where=str(path), why=why, todo=todo)
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise GenieError(f"not {what}", where=str(path), why=str(error), todo=todo) from error
    except RecursionError:
        why = "nested too deeply"
        raise GenieError(f"not {what}", where=str(path), why=why, todo=todo) from None


def is_path(text: str) -> bool:
    """Whether a text of foreign origin can be the name of a file at all."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeError:
        return False


def read_dump(path: Path) -> ContextFile:
    """Read a JSON dump of ``qnn-context-binary-utility``.

    Raises:
        GenieError: not such a dump; the message names the place.
    """
    data = load_json(path, "a dump of a context binary", _TODO)
    try:
        body = _body(data, "the file")
        graphs = tuple(
            _graph(item, f"graphs[{index}]", str(path))
            for index, item in enumerate(_list(body, "graphs", "the file"))
        )
    except _Malformed as error:
        raise GenieError(
            "not a dump of a context binary", where=str(path), why=str(error), todo=_TODO
        ) from None
    soc, build = body.get("socModel"), body.get("buildId")
    return ContextFile(
        str(path),
        graphs,
        soc if isinstance(soc, int) and not isinstance(soc, bool) else None,
        build if isinstance(build, str) else "",
        dump=True,
    )


class _Malformed(Exception):
    """Where a dump is not as it should be."""


def _body(value: object, place: str) -> Mapping[str, Any]:
    """An object, without the ``info`` that older dumps wrap around it."""
    if not isinstance(value, dict):
        raise _Malformed(f"{place} is no JSON object")
    inner = value.get("info", value)
    if not isinstance(inner, dict):
        raise _Malformed(f"info of {place} is no JSON object")
    return inner


def _list(body: Mapping[str, Any], key: str, place: str) -> Sequence[object]:
    found = body.get(key)
    if not isinstance(found, list):
        raise _Malformed(f"{place} has no list {key}")
    return found


def _text(body: Mapping[str, Any], key: str, place: str) -> str:
    found = body.get(key)
    if not isinstance(found, str):
        raise _Malformed(f"{place} has no text {key}")
    return found


def _graph(value: object, place: str, file: str) -> GraphInfo:
    body = _body(value, place)
    return GraphInfo(
        _text(body, "graphName", place),
        _tensors(body, "graphInputs", place),
        _tensors(body, "graphOutputs", place),
        file,
    )


def _tensors(body: Mapping[str, Any], key: str, place: str) -> tuple[Tensor, ...]:
    return tuple(
        _tensor(item, f"{place}.{key}[{index}]")
        for index, item in enumerate(_list(body, key, place))
    )


def _tensor(value: object, place: str) -> Tensor:
    body = _body(value, place)
    dims: list[int] = []
    for size in _list(body, "dimensions", place):
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 32:
            raise _Malformed(f"dimensions of {place} are not all numbers of 32 bits")
        dims.append(size)
    encoding, scale, offset = _quantization(body.get("quantizeParams"))
    return Tensor(
        name=_text(body, "name", place),
        dtype=_dtype(body.get("dataType"), place),
        dims=tuple(dims),
        encoding=encoding,
        scale=scale,
        offset=offset,
    )


def _dtype(value: object, place: str) -> str:
    if isinstance(value, str):
        return value.removeprefix("QNN_DATATYPE_")
    if isinstance(value, int):
        from mnnqnn_tasks.qnn import abi

        return abi.enum_names("DataType").get(value, f"0x{value:04x}")
    raise _Malformed(f"{place} has no dataType")


def _quantization(value: object) -> tuple[str | None, float | None, int | None]:
    """Encoding, scale and offset, each None where a dump does not have it."""
    if not isinstance(value, dict):
        return None, None, None
    encoding = value.get("quantizationEncoding")
    name = encoding.removeprefix("QNN_QUANTIZATION_ENCODING_") if isinstance(encoding, str) else ""
    if name != "SCALE_OFFSET":
        return (None if name in ("", "UNDEFINED") else name), None, None
    pair = value.get("scaleOffset")
    scale, offset = (pair.get("scale"), pair.get("offset")) if isinstance(pair, dict) else (0, 0)
    if not isinstance(scale, int | float) or not isinstance(offset, int):
        return name, None, None
    try:
        return name, float(scale), offset
    except OverflowError:
        return name, None, None
