"""``<graph>_net.json``: the graph IR as text, exact and canonical.

One tensor or node a line, in the graph's order; keys in a fixed order; every float a
decimal that gives its float32 back.  ``schemas/net.schema.json`` documents the
form.  Equal offsets of a per-channel encoding are written once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import NetFileError
from mnnqnn_tasks.files import write_text
from mnnqnn_tasks.qnn import netload, spec
from mnnqnn_tasks.qnn.floats import decimals
from mnnqnn_tasks.qnn.ir import (
    AxisScaleOffset,
    BlockwiseExpansion,
    BwAxisScaleOffset,
    Graph,
    Node,
    Param,
    ScalarParam,
    ScaleOffset,
    Tensor,
)

#: One encoder for all: json.dumps makes a new one per call.
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class _Raw(str):
    """Text that is JSON already."""

    __slots__ = ()


def _text(value: object) -> str:
    if isinstance(value, _Raw):
        return value
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(k)}: {_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return _ENCODE(value)


def _floats(values: Sequence[float]) -> _Raw:
    return _Raw("[" + ", ".join(decimals(values)) + "]")


def _float(value: float) -> _Raw:
    return _Raw(decimals((value,))[0])


def _ints(values: Sequence[int]) -> _Raw:
    return _Raw("[" + ", ".join(map(str, values)) + "]")


def _offsets(values: tuple[int, ...]) -> _Raw:
    """One number where all are equal: most weights are symmetric."""
    return _Raw(str(values[0])) if values and len(set(values)) == 1 else _ints(values)


def _dump_channels(
    quant: AxisScaleOffset | BwAxisScaleOffset | BlockwiseExpansion,
) -> dict[str, Any]:
    return {
        "axis": quant.axis,
        "scales": _floats(quant.scales),
        "offsets": _offsets(quant.offsets),
    }


_DUMP_QUANT: dict[type, Callable[[Any], dict[str, Any]]] = {
    ScaleOffset: lambda q: {
        "encoding": "SCALE_OFFSET",
        "scale": _float(q.scale),
        "offset": q.offset,
    },
    AxisScaleOffset: lambda q: {"encoding": "AXIS_SCALE_OFFSET", **_dump_channels(q)},
    BwAxisScaleOffset: lambda q: {
        "encoding": "BW_AXIS_SCALE_OFFSET",
        "bitwidth": q.bitwidth,
        **_dump_channels(q),
    },
    BlockwiseExpansion: lambda q: {
        "encoding": "BLOCKWISE_EXPANSION",
        **_dump_channels(q),
        "blocks_per_axis": q.blocks_per_axis,
        "block_scale_bitwidth": q.block_scale_bitwidth,
        "block_scales": _ints(q.block_scales),
    },
}


def _dump_tensor(tensor: Tensor) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": tensor.name,
        "kind": tensor.kind,
        "dtype": tensor.dtype,
        "dims": _ints(tensor.dims),
    }
    if tensor.quant is not None:
        made["quant"] = _DUMP_QUANT[type(tensor.quant)](tensor.quant)
    if tensor.blob is not None:
        made["blob"] = {"sha256": tensor.blob.sha256, "size": tensor.blob.size}
    return made


def _number(dtype: str, value: float | int | bool) -> Any:
    if dtype == "FLOAT_32":
        return _float(value)
    return bool(value) if dtype == "BOOL_8" else int(value)


def _dump_param(param: Param) -> dict[str, Any]:
    made: dict[str, Any] = {"name": param.name, "dtype": param.dtype}
    if isinstance(param, ScalarParam):
        return {**made, "value": _number(param.dtype, param.value)}
    values = (
        _floats(param.values) if param.dtype == "FLOAT_32" else _ints(tuple(map(int, param.values)))
    )
    return {**made, "dims": _ints(param.dims), "values": values}


def _dump_node(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "package": node.package,
        "type": node.type,
        "inputs": node.inputs,
        "outputs": node.outputs,
        "params": tuple(map(_dump_param, node.params)),
    }


def dumps(graph: Graph) -> str:
    """The text of a graph; the same graph always gives the same text.

    Floats are rounded to float32, which is what QNN stores.

    Raises:
        NetFileError: the graph breaks a rule of the IR (`spec.check`).
    """
    spec.check(graph)
    tensors = ",\n".join(_text(_dump_tensor(tensor)) for tensor in graph.tensors)
    nodes = ",\n".join(_text(_dump_node(node)) for node in graph.nodes)
    head = f'"format": "{netload.FORMAT}", "version": {netload.VERSION}'
    head = f'{{{head}, "graph": {_text(graph.name)}'
    return f'{head},\n"tensors": [\n{tensors}\n],\n"nodes": [\n{nodes}\n]}}\n'


def save(graph: Graph, path: Path) -> None:
    """Write `dumps` to ``path``, whole or not at all.

    Raises:
        NetFileError: as `dumps`.
        DiskError: the file system refuses.
    """
    write_text(path, dumps(graph))


def load(path: Path) -> Graph:
    """Read a graph and check it against the IR's rules.

    Raises:
        NetFileError: unreadable, not JSON, of another form, or an illegal graph; the
            message names the place.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NetFileError(
            "cannot read the graph", where=str(path), why=str(error), todo="translate it again"
        ) from error
    return loads(text, str(path))


def loads(text: str, where: str = "net.json") -> Graph:
    """Read a graph from its text; see `load`."""
    try:
        data = json.loads(text, parse_constant=_no_constant)
        graph = netload.graph(data)
    except (json.JSONDecodeError, RecursionError) as error:
        raise NetFileError(
            "not JSON", where=where, why=str(error), todo="translate it again"
        ) from error
    except netload.FormError as error:
        raise NetFileError(
            "the graph has another form than the schema net.schema.json",
            where=where,
            why=str(error),
            todo="translate it again",
        ) from error
    spec.check(graph, where)
    return graph


def _no_constant(name: str) -> float:
    raise netload.FormError(f"{name} is no number of JSON")
