"""Reduction: sum, mean, maximum or minimum over axes."""

from __future__ import annotations

import math

from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.qnn.ir import Param, ScalarParam, TensorParam
from mnnqnn_tasks.translate.builder import Builder
from mnnqnn_tasks.translate.consts import const_ints, positive_axis
from mnnqnn_tasks.translate.params import param
from mnnqnn_tasks.translate.registry import translates

#: ReduceProd exists, but libQnnHtp cannot prepare it for fp16 (2.51).
_KINDS = {
    "SUM": "ReduceSum",
    "MEAN": "ReduceMean",
    "MAXIMUM": "ReduceMax",
    "MINIMUM": "ReduceMin",
}


def _axes(op: SubOp, subgraph: Subgraph) -> tuple[int, ...] | None:
    rank = len(subgraph.tensors[op.inputs[0]].dims)
    if len(op.inputs) > 1:
        axes = const_ints(subgraph, op.inputs[1])
    else:
        dim = param(op, "ReductionParam", "dim")
        axes = tuple(range(rank)) if dim is None else tuple(int(a) for a in dim)
    if axes is None:
        return None
    front = [positive_axis(a, rank) for a in axes]
    return tuple(sorted({a for a in front if a is not None})) if None not in front else None


def _supports(op: SubOp, subgraph: Subgraph) -> str | None:
    kind = str(param(op, "ReductionParam", "operation"))
    tensor = subgraph.tensors[op.inputs[0]]
    if kind not in _KINDS:
        return f"Reduction {kind}"
    if tensor.dtype != "float32":
        return "a Reduction of integers"
    axes = _axes(op, subgraph)
    if not axes:
        return "the axes are not constant or out of range"
    if axes != tuple(range(axes[0], axes[0] + len(axes))):
        return f"axes {list(axes)} that do not lie together"
    return None


@translates("Reduction", inputs=(1, 2), supports=_supports)
def translate(builder: Builder, op: SubOp) -> None:
    """The axes become one in the middle of three: before, reduced, after.

    The fp16 reductions of the HTP cannot be lowered over the innermost axis, so where
    nothing comes after the reduced axes, rows and columns change places first.
    """
    source, out = op.inputs[0], op.outputs[0]
    dims = builder.dims(source)
    axes = _axes(op, builder.subgraph)
    assert axes
    before, after = math.prod(dims[: axes[0]]), math.prod(dims[axes[-1] + 1 :])
    middle = math.prod(dims[axes[0] : axes[-1] + 1])
    value = builder.read(source, "float", (before, middle, after))
    if after == 1:
        order = TensorParam("perm", "UINT_32", (3,), (2, 1, 0))
        value = builder.node(
            "Transpose", [value], (1, middle, before), "float", None, [order], suffix="_turn"
        )
        before, after = 1, before
    params: list[Param] = [
        TensorParam("axes", "UINT_32", (1,), (1,)),
        ScalarParam("keep_dims", "BOOL_8", True),
    ]
    kind = _KINDS[str(param(op, "ReductionParam", "operation"))]
    builder.define(out, builder.node(kind, [value], (before, 1, after), "float", None, params))
