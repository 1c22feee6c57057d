"""Ops that only rename the shape: no node, the next reader asks for its dims."""

from __future__ import annotations

import math

from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.qnn.ir import TensorParam
from mnnqnn_tasks.translate.builder import Builder
from mnnqnn_tasks.translate.registry import translates

#: To NHWC and back, by rank: position of each output axis in the input.
_TO_NHWC = {3: (0, 2, 1), 4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}
_TO_NCHW = {3: (0, 2, 1), 4: (0, 3, 1, 2), 5: (0, 4, 1, 2, 3)}


def _same_elements(op: SubOp, subgraph: Subgraph) -> str | None:
    source, target = subgraph.tensors[op.inputs[0]], subgraph.tensors[op.outputs[0]]
    if math.prod(source.dims) != math.prod(target.dims) or source.dtype != target.dtype:
        return f"{list(source.dims)} {source.dtype} to {list(target.dims)} {target.dtype}"
    return None


def _reshape_order(op: SubOp, subgraph: Subgraph) -> str | None:
    # A Reshape of an NHWC tensor with NCHW rules (Caffe) permutes; LLMs have none.
    source = subgraph.tensors[op.inputs[0]]
    nhwc = len(source.dims) == 4 and source.format == "NHWC"
    if op.type == "Reshape" and nhwc and op.params.get("dimType", "NCHW") == "NCHW":
        return "a Reshape in NCHW order of an NHWC tensor"
    return _same_elements(op, subgraph)


@translates(
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "ExpandDims",
    "Flatten",
    "Identity",
    "Copy",
    "Dropout",
    inputs=(1, 2),
    supports=_reshape_order,
)
def reshape(builder: Builder, op: SubOp) -> None:
    """The same elements under another shape."""
    builder.alias(op.outputs[0], op.inputs[0])


def permutes(source: str, target: str, rank: int) -> tuple[int, ...] | None:
    """The permutation between two MNN layouts, ``None`` where the order is the same.

    NC4HW4 counts as NCHW: MNN packs channels by four in memory only.
    """
    channels_last = (source == "NHWC", target == "NHWC")
    if channels_last[0] == channels_last[1] or rank < 3:
        return None
    return (_TO_NHWC if channels_last[1] else _TO_NCHW)[rank]


def _layouts(op: SubOp) -> tuple[str, str]:
    return str(op.params.get("source", "NCHW")), str(op.params.get("dest", "NCHW"))


def _convert_supports(op: SubOp, subgraph: Subgraph) -> str | None:
    known = {"NCHW", "NHWC", "NC4HW4"}
    if not set(_layouts(op)) <= known:
        return f"layouts {' to '.join(_layouts(op))}"
    return _same_elements(op, subgraph)


@translates("ConvertTensor", supports=_convert_supports)
def convert_tensor(builder: Builder, op: SubOp) -> None:
    """A change of layout: a Transpose between NHWC and the others, else nothing."""
    source, target = op.inputs[0], op.outputs[0]
    dims = builder.dims(source)
    perm = permutes(*_layouts(op), len(dims))
    if perm is None:
        builder.alias(target, source)
        return
    transpose(builder, source, target, perm)


def transpose(builder: Builder, source: int, target: int, perm: tuple[int, ...]) -> None:
    """``target = source`` with axis ``i`` taken from ``perm[i]``."""
    dims = builder.dims(source)
    moved = tuple(dims[i] for i in perm)
    # Moving axes of length 1 does not move elements.
    if [i for i in perm if dims[i] > 1] == [i for i in range(len(dims)) if dims[i] > 1]:
        builder.alias(target, source)
        return
    form = "fixed" if builder.is_fixed(source) else builder.kind(source)
    value = builder.read(source, form, dims)
    order = TensorParam("perm", "UINT_32", (len(perm),), perm)
    builder.define(target, builder.node("Transpose", [value], moved, form, value.quant, [order]))
