"""Ops with arithmetic over several elements: only their shapes are told here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mnnqnn_tasks.mnn.infer.facts import DTYPES, TensorFact, axis_of, require
from mnnqnn_tasks.mnn.infer.registry import rule
from mnnqnn_tasks.mnn.table import Table


def _window(size: int, kernel: int, stride: int, pads: int | None, mode: str) -> int:
    """Output length of one dimension (ShapeConvolution.cpp)."""
    require(stride > 0)
    if mode == "SAME":
        return math.ceil(size / stride)
    if mode == "VALID":
        return math.ceil((size - kernel + 1) / stride)
    padded = size + (pads or 0)
    require(padded >= kernel)
    return (padded - kernel) // stride + 1


@rule("Convolution", "ConvolutionDepthwise")
def convolution(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """2-D convolution of a 4-D tensor; weights in the parameters or in ``ins[1]``."""
    x, common = ins[0], op.main.common
    require(x.rank == 4 and common is not None)
    count, kx, ky = common.outputCount, common.kernelX, common.kernelY
    if len(ins) > 1 and count == 0:
        require(ins[1].rank == 4)
        count, ky, kx = ins[1].dims[0], ins[1].dims[2], ins[1].dims[3]
    nhwc = x.format == "NHWC"
    batch = x.dims[0]
    channel, height, width = (
        (x.dims[3], x.dims[1], x.dims[2]) if nhwc else (x.dims[1], x.dims[2], x.dims[3])
    )
    wanted = common.inputCount
    require(
        len(ins) > 1 or wanted in (0, channel) or wanted * common.group == channel,
        "the input has another number of channels than the weights",
    )
    top = bottom = common.padY
    left = right = common.padX
    if common.pads is not None:
        require(len(common.pads) >= 4)
        top, left, bottom, right = (int(p) for p in common.pads[:4])
    kernel_y, kernel_x = common.dilateY * (ky - 1) + 1, common.dilateX * (kx - 1) + 1
    out_y = _window(height, kernel_y, common.strideY, top + bottom, common.padMode)
    out_x = _window(width, kernel_x, common.strideX, left + right, common.padMode)
    dims = (batch, out_y, out_x, count) if nhwc else (batch, count, out_y, out_x)
    dtype = x.dtype
    symmetric = op.main.symmetricQuan
    if symmetric is not None and symmetric.outputDataType != "DT_INT8":
        dtype = DTYPES.get(symmetric.outputDataType, dtype)
    return [TensorFact(dims, dtype, x.format)]


@rule("MatMul", "BatchMatMul")
def matmul(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Matrix product over the last two dimensions, the others broadcast."""
    require(len(ins) >= 2)
    a, b = list(ins[0].dims), list(ins[1].dims)
    require(len(a) >= 2 and len(b) >= 2, "a product with a vector")
    plain = op.type == "MatMul"
    if op.main.transposeA if plain else op.main.adjX:
        a[-2:] = a[:-3:-1]
    if op.main.transposeB if plain else op.main.adjY:
        b[-2:] = b[:-3:-1]
    require(a[-1] == b[-2], "the inner dimensions differ")
    rank = max(len(a), len(b))
    front_a = [1] * (rank - len(a)) + a[:-2]
    front_b = [1] * (rank - len(b)) + b[:-2]
    front = []
    for x, y in zip(front_a, front_b, strict=True):
        require(x == y or 1 in (x, y), "the shapes do not broadcast")
        front.append(y if x == 1 else x)
    return [TensorFact((*front, a[-2], b[-1]), ins[0].dtype, ins[0].format)]


@rule("Reduction")
def reduction(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Over the axes in the parameters or in ``ins[1]``; over all where none is named."""
    x = ins[0]
    if op.main.dim is not None:
        axes = {axis_of(int(a), x.rank) for a in op.main.dim}
    elif len(ins) > 1:
        axes = {axis_of(a, x.rank) for a in ins[1].ints()}
    else:
        axes = set(range(x.rank))
    keep = op.main.keepDims
    dims = tuple(1 if i in axes else d for i, d in enumerate(x.dims) if keep or i not in axes)
    return [TensorFact(dims, x.dtype, x.format)]


@rule("Attention")
def attention(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """From queries ``[batch, seq, heads, head_dim]``: heads joined (ShapeAttention.cpp)."""
    q = ins[0]
    require(q.rank == 4 and outs == 1)
    batch, seq, heads, dim = q.dims
    if op.main is not None and op.main.output_c4:
        return [TensorFact((batch * seq, heads * dim, 1, 1), q.dtype, "NC4HW4")]
    return [TensorFact((batch, seq, heads * dim), q.dtype, q.format)]
