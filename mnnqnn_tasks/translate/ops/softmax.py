"""Softmax along an axis."""

from __future__ import annotations

from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.qnn.ir import ScalarParam
from mnnqnn_tasks.translate.builder import Builder
from mnnqnn_tasks.translate.consts import positive_axis
from mnnqnn_tasks.translate.params import param
from mnnqnn_tasks.translate.registry import translates


def _supports(op: SubOp, subgraph: Subgraph) -> str | None:
    tensor = subgraph.tensors[op.inputs[0]]
    if positive_axis(int(param(op, "Axis", "axis")), len(tensor.dims)) is None:
        return f"axis {param(op, 'Axis', 'axis')} of a tensor with {len(tensor.dims)}"
    return None if tensor.dtype == "float32" else "softmax of integers"


@translates("Softmax", supports=_supports)
def translate(builder: Builder, op: SubOp) -> None:
    """``exp(x) / sum(exp(x))`` along ``axis``, in fp16."""
    dims = builder.dims(op.inputs[0])
    axis = positive_axis(int(param(op, "Axis", "axis")), len(dims))
    assert axis is not None
    value = builder.read(op.inputs[0], "float", dims)
    where = ScalarParam("axis", "UINT_32", axis)
    builder.define(op.outputs[0], builder.node("Softmax", [value], dims, "float", None, [where]))
