"""Ops that read a tensor's shape or give it another one, without moving elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mnnqnn_tasks.mnn.infer.facts import TensorFact, axis_of, require
from mnnqnn_tasks.mnn.infer.registry import rule
from mnnqnn_tasks.mnn.table import Table

#: Dimensions that an MNN tensor can have (MNN_MAX_TENSOR_DIM).
MAX_RANK = 8


def _nhwc_view(op: Table, x: TensorFact) -> bool:
    """Old TensorFlow models look at packed tensors as NHWC (ShapeShape.cpp)."""
    return x.format == "NC4HW4" and op.defaultDimentionFormat == "NHWC"


@rule("Shape")
def shape(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """The dimensions as int32, cut to ``start:end`` where the op has a ShapeParam."""
    x = ins[0]
    dims = list(x.dims)
    if _nhwc_view(op, x):
        require(len(dims) == 4)
        dims = [dims[0], dims[2], dims[3], dims[1]]
    start, end = 0, len(dims)
    if op.main is not None and op.main.type_name == "ShapeParam":
        rank = len(dims)
        if op.main.hasStart:
            start = op.main.start + (rank if op.main.start < 0 else 0)
        if op.main.hasEnd:
            end = op.main.end + (rank if op.main.end < 0 else 0)
        start = max(0, min(start, rank))
        end = max(start, min(end, rank))
    value = np.array(dims[start:end], np.int32)
    return [TensorFact(value.shape, "int32", op.defaultDimentionFormat, value)]


@rule("Rank")
def rank(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """The number of dimensions, a scalar."""
    value = np.array(ins[0].rank, np.int32)
    return [TensorFact((), "int32", op.defaultDimentionFormat, value)]


@rule("Size")
def size(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """The number of elements, a scalar."""
    value = np.array(ins[0].size, np.int32)
    return [TensorFact((), "int32", op.defaultDimentionFormat, value)]


def with_dims(x: TensorFact, dims: tuple[int, ...]) -> TensorFact:
    """``x`` with other dimensions of the same number of elements."""
    require(math.prod(dims) == x.size, "the number of elements differs")
    value = None if x.value is None else x.value.reshape(dims)
    return TensorFact(dims, x.dtype, x.format, value)


@rule("Reshape")
def reshape(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """To the shape in the parameters or in ``ins[1]``; 0 keeps a dimension, -1 is the rest."""
    x = ins[0]
    zero_keeps = True
    if len(ins) == 1:
        wanted = [] if op.main.dims is None else op.main.dims.tolist()
    else:
        wanted = ins[1].ints()
        zero_keeps = ins[1].format != "NHWC"
        dim_type = op.main.dimType if op.main is not None else "NHWC"
        if x.format == "NC4HW4" and dim_type == "NHWC":
            require(len(wanted) == 4)
            wanted = [wanted[0], wanted[3], wanted[1], wanted[2]]
    dims, rest = [], -1
    for i, dim in enumerate(wanted):
        if dim == -1:
            rest = i
            dims.append(1)
        elif dim == 0 and zero_keeps:
            require(i < x.rank, "0 keeps a dimension that the input does not have")
            dims.append(x.dims[i])
        else:
            require(dim >= 0, "a negative dimension")
            dims.append(dim)
    if rest >= 0:
        others = math.prod(dims)
        dims[rest] = x.size // others if others else 0
    if x.format == "NC4HW4" and tuple(dims) != x.dims:
        # The elements lie packed by channel; their order is not that of the values.
        x = TensorFact(x.dims, x.dtype, x.format)
    return [with_dims(x, tuple(dims))]


def _axes(op: Table, ins: Sequence[TensorFact]) -> list[int]:
    listed = op.main.squeezeDims if op.main is not None else None
    if listed is not None:
        return [int(a) for a in listed]
    return ins[1].ints() if len(ins) > 1 else []


@rule("Unsqueeze")
def unsqueeze(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Puts dimensions of 1 at the axes of the result."""
    x, axes = ins[0], _axes(op, ins)
    rank = x.rank + len(axes)
    require(rank <= MAX_RANK)
    ones = {axis_of(a, rank) for a in axes}
    require(len(ones) == len(axes), "an axis is named twice")
    rest = iter(x.dims)
    return [with_dims(x, tuple(1 if i in ones else next(rest) for i in range(rank)))]


@rule("Squeeze")
def squeeze(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Drops the dimensions of 1 at the axes, all of them where none is named."""
    x, axes = ins[0], _axes(op, ins)
    drop = {axis_of(a, x.rank) for a in axes} or {i for i, d in enumerate(x.dims) if d == 1}
    require(all(x.dims[a] == 1 for a in drop), "a squeezed dimension is not 1")
    return [with_dims(x, tuple(d for i, d in enumerate(x.dims) if i not in drop))]


@rule("ExpandDims")
def expand_dims(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """One dimension of 1 at an axis of the result."""
    x = ins[0]
    axis = axis_of(ins[1].ints()[0] if len(ins) == 2 else op.main.axis, x.rank + 1)
    return [with_dims(x, (*x.dims[:axis], 1, *x.dims[axis:]))]


@rule("Flatten")
def flatten(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Joins dimensions: all from ``axis`` on into two (ONNX), or ``axis..endAxis`` into one."""
    x = ins[0]
    axis = op.main.axis + (x.rank if op.main.axis < 0 else 0)
    end = op.main.endAxis + (x.rank if op.main.endAxis < 0 else 0)
    dims: tuple[int, ...]
    if end == 0:
        dims = (math.prod(x.dims[:axis]), math.prod(x.dims[axis:]))
    else:
        # MNN writes later dimensions to their old places, so joining in the middle fails.
        require(end == x.rank - 1 or end == axis, "a Flatten that MNN cannot do")
        dims = (*x.dims[:axis], math.prod(x.dims[axis : end + 1]), *x.dims[end + 1 :])
    return [with_dims(x, dims)]


@rule("ConvertTensor")
def convert(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """To the layout ``dest``; NC4HW4 counts as NCHW."""
    x, dest = ins[0], op.main.dest
    packed = {"NC4HW4": "NCHW"}
    source, target = packed.get(x.format, x.format), packed.get(dest, dest)
    if x.rank <= 2 or source == target:
        order = list(range(x.rank))
    elif source == "NCHW" and target == "NHWC":
        order = [0, *range(2, x.rank), 1]
    elif source == "NHWC" and target == "NCHW":
        order = [0, x.rank - 1, *range(1, x.rank - 1)]
    else:
        require(False, f"layout {x.format} to {dest}")
    value = None if x.value is None else np.transpose(x.value, order)
    return [TensorFact(tuple(x.dims[i] for i in order), x.dtype, dest, value)]
