"""Softmax along an axis."""

from __future__ import annotations

import math

from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.qnn.ir import ScalarParam, TensorParam
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
    """``exp(x) / sum(exp(x))`` along ``axis``, in fp16.

    The HTP has it over the innermost axis only: the tensor becomes [before, axis,
    after], and the last two change places where something comes after.
    """
    dims = builder.dims(op.inputs[0])
    axis = positive_axis(int(param(op, "Axis", "axis")), len(dims))
    assert axis is not None
    before, size, after = math.prod(dims[:axis]), dims[axis], math.prod(dims[axis + 1 :])
    last = ScalarParam("axis", "UINT_32", 1 if after == 1 else 2)
    swap = TensorParam("perm", "UINT_32", (3,), (0, 2, 1))
    if after == 1:
        value = builder.read(op.inputs[0], "float", (before, size))
        result = builder.node("Softmax", [value], value.dims, "float", None, [last])
    else:
        value = builder.read(op.inputs[0], "float", (before, size, after))
        turned = (before, after, size)
        value = builder.node("Transpose", [value], turned, "float", None, [swap], suffix="_turn")
        value = builder.node("Softmax", [value], turned, "float", None, [last])
        result = builder.node(
            "Transpose", [value], (before, size, after), "float", None, [swap], suffix="_back"
        )
    builder.define(op.outputs[0], result)
