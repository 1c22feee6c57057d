"""Select: one of two values by a condition."""

from __future__ import annotations

from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.translate.builder import Builder
from mnnqnn_tasks.translate.elementwise import broadcast_dims, broadcast_reason
from mnnqnn_tasks.translate.registry import translates


def _supports(op: SubOp, subgraph: Subgraph) -> str | None:
    condition, first, second = (subgraph.tensors[i] for i in op.inputs)
    if condition.dtype != "int32" or first.dtype != second.dtype:
        return f"Select by {condition.dtype} of {first.dtype} and {second.dtype}"
    return broadcast_reason(subgraph, op.inputs, op.outputs[0])


@translates("Select", inputs=(3, 3), supports=_supports)
def translate(builder: Builder, op: SubOp) -> None:
    """``out = a where condition != 0 else b``."""
    out = op.outputs[0]
    shapes, dims = broadcast_dims(builder, op.inputs, out)
    form = builder.kind(out)
    values = [
        builder.read(op.inputs[0], "bool", shapes[0]),
        builder.read(op.inputs[1], form, shapes[1]),
        builder.read(op.inputs[2], form, shapes[2]),
    ]
    builder.define(out, builder.node("ElementWiseSelect", values, dims, form))
