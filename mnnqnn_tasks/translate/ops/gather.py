"""Gather and GatherV2: rows of a table, or one slice of a tensor."""

from __future__ import annotations

from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.qnn.ir import ScalarParam
from mnnqnn_tasks.translate.builder import Builder
from mnnqnn_tasks.translate.consts import const_ints, positive_axis
from mnnqnn_tasks.translate.ops.slice import slice_value
from mnnqnn_tasks.translate.registry import MAX_RANK, translates


def _axis(op: SubOp, subgraph: Subgraph) -> int | None:
    rank = len(subgraph.tensors[op.inputs[0]].dims)
    if len(op.inputs) < 3 or op.inputs[2] < 0:
        axes: tuple[int, ...] | None = (int(op.params.get("axis", 0)),)
    else:
        axes = const_ints(subgraph, op.inputs[2])
    return positive_axis(axes[0], rank) if axes else None


def _supports(op: SubOp, subgraph: Subgraph) -> str | None:
    data, indices = (subgraph.tensors[i] for i in op.inputs[:2])
    axis = _axis(op, subgraph)
    if axis is None:
        return "the axis is not constant or out of range"
    if indices.dtype != "int32":
        return f"indices of type {indices.dtype}"
    if len(data.dims) > MAX_RANK:
        return f"{len(data.dims)} dimensions, the HTP has {MAX_RANK}"
    values = const_ints(subgraph, op.inputs[1])
    if values is not None and any(not -data.dims[axis] <= v < data.dims[axis] for v in values):
        return f"index {max(values)} of {data.dims[axis]}"
    return None


@translates("GatherV2", "Gather", inputs=(2, 3), supports=_supports)
def translate(builder: Builder, op: SubOp) -> None:
    """``out[..., i, ...] = data[..., indices[i], ...]`` along ``axis``.

    One constant index is a slice: exact in every form, and cheaper than a Gather.
    """
    source, indices, out = op.inputs[0], op.inputs[1], op.outputs[0]
    axis = _axis(op, builder.subgraph)
    assert axis is not None
    dims = builder.dims(source)
    form = "fixed" if builder.is_fixed(source) else builder.kind(source)
    value = builder.read(source, form, dims)
    constant = const_ints(builder.subgraph, indices)
    if constant is not None and len(constant) == 1:
        at = constant[0] % dims[axis]
        parts = [(0, size, 1) for size in dims]
        parts[axis] = (at, at + 1, 1)
        builder.define(out, slice_value(builder, value, parts, ""))
        return
    places = builder.dims(indices)
    index = builder.read(indices, "int", places)
    taken = dims[:axis] + places + dims[axis + 1 :]
    where = ScalarParam("axis", "INT_32", axis)
    node = builder.node("Gather", [value, index], taken, form, value.quant, [where])
    builder.define(out, node)
