"""Concat along an axis."""

from __future__ import annotations

from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.qnn.ir import ScalarParam
from mnnqnn_tasks.translate.builder import Builder
from mnnqnn_tasks.translate.consts import positive_axis
from mnnqnn_tasks.translate.params import param
from mnnqnn_tasks.translate.registry import translates


def _supports(op: SubOp, subgraph: Subgraph) -> str | None:
    out = subgraph.tensors[op.outputs[0]].dims
    axis = positive_axis(int(param(op, "Axis", "axis")), len(out))
    if axis is None:
        return f"axis {param(op, 'Axis', 'axis')} of a tensor with {len(out)}"
    shapes = [subgraph.tensors[i].dims for i in op.inputs]
    if any(s[:axis] + s[axis + 1 :] != out[:axis] + out[axis + 1 :] for s in shapes):
        return f"shapes {[list(s) for s in shapes]} on axis {axis}"
    return None


@translates("Concat", inputs=(1, 1 << 16), supports=_supports)
def translate(builder: Builder, op: SubOp) -> None:
    """The inputs one after another along ``axis``."""
    out = op.outputs[0]
    dims = builder.dims(out)
    if len(op.inputs) == 1:
        builder.alias(out, op.inputs[0])
        return
    axis = positive_axis(int(param(op, "Axis", "axis")), len(dims))
    assert axis is not None
    encoding = builder.encoding(out)
    fixed = encoding is not None and builder.is_fixed(*op.inputs)
    form = "fixed" if fixed else builder.kind(out)
    values = [builder.read(i, form, builder.dims(i)) for i in op.inputs]
    where = ScalarParam("axis", "UINT_32", axis)
    quant = encoding if fixed else None
    builder.define(out, builder.node("Concat", values, dims, form, quant, [where]))
