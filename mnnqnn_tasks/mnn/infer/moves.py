"""Ops that pick, join, repeat and reorder elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mnnqnn_tasks.mnn.infer.facts import (
    MAX_VALUES,
    Array,
    TensorFact,
    Unknown,
    axis_of,
    broadcast,
    known,
    of_value,
    require,
)
from mnnqnn_tasks.mnn.infer.registry import rule
from mnnqnn_tasks.mnn.table import Table


@rule("Concat")
def concat(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Along ``axis``; type of the last input, layout of the first."""
    first = ins[0]
    axis = axis_of(op.main.axis if op.main is not None else 0, first.rank)
    total = 0
    for x in ins:
        require(x.rank == first.rank)
        require(all(x.dims[i] == first.dims[i] for i in range(first.rank) if i != axis))
        total += x.dims[axis]
    dims = (*first.dims[:axis], total, *first.dims[axis + 1 :])
    value = None
    if known(*ins) and math.prod(dims) <= MAX_VALUES:
        value = np.concatenate([x.value for x in ins if x.value is not None], axis)
    return [TensorFact(dims, ins[-1].dtype, first.format, value)]


@rule("Pack")
def pack(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Joins tensors of one shape along a new axis."""
    first = ins[0]
    axis = axis_of(op.main.axis, first.rank + 1)
    require(all(x.dims == first.dims for x in ins))
    dims = (*first.dims[:axis], len(ins), *first.dims[axis:])
    value = None
    if known(*ins) and math.prod(dims) <= MAX_VALUES:
        value = np.stack([x.value for x in ins if x.value is not None], axis)
    return [TensorFact(dims, first.dtype, first.format, value)]


@rule("Unpack")
def unpack(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Takes a tensor apart along ``axis``, which goes away."""
    x = ins[0]
    axis = axis_of(op.main.axis, x.rank)
    require(outs <= x.dims[axis])
    dims = (*x.dims[:axis], *x.dims[axis + 1 :])
    return [
        TensorFact(dims, x.dtype, x.format, None if x.value is None else np.take(x.value, i, axis))
        for i in range(outs)
    ]


@rule("GatherV2", "Gather")
def gather(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """``take(ins[0], ins[1])`` along the axis in ``ins[2]`` or in the parameters."""
    require(len(ins) >= 2)
    table, index = ins[0], ins[1]
    require(index.dtype == "int32", "indices that are not int32")
    axis = ins[2].ints()[0] if len(ins) == 3 and op.type == "GatherV2" else 0
    if op.main is not None and op.main.type_name == "Axis":
        axis = op.main.axis
    axis = axis_of(axis, table.rank)
    dims = (*table.dims[:axis], *index.dims, *table.dims[axis + 1 :])
    value = None
    if table.value is not None and index.value is not None and math.prod(dims) <= MAX_VALUES:
        which = index.value
        # What MNN does with an index outside the table is not defined: leave it to MNN.
        if which.size and which.min() >= 0 and which.max() < table.dims[axis]:
            value = np.take(table.value, which, axis)
    return [TensorFact(dims, table.dtype, table.format, value)]


@rule("Permute", "Transpose")
def permute(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Reorders the dimensions; ``Permute`` without an order turns them round."""
    x = ins[0]
    if op.type == "Transpose":
        order = ins[1].ints()
    elif op.main is None or op.main.dims is None:
        order = list(range(x.rank))[::-1]
    else:
        order = op.main.dims.tolist()
    require(sorted(order) == list(range(x.rank)), "not an order of the dimensions")
    value = None if x.value is None else np.transpose(x.value, order)
    return [TensorFact(tuple(x.dims[i] for i in order), x.dtype, x.format, value)]


@rule("Tile")
def tile(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Repeats each dimension ``ins[1]`` times."""
    x, times = ins[0], ins[1].ints()
    require(len(times) == x.rank and min(times, default=0) >= 0)
    dims = tuple(d * t for d, t in zip(x.dims, times, strict=True))
    value = None
    if x.value is not None and math.prod(dims) <= MAX_VALUES:
        value = np.tile(x.value, times)
    return [TensorFact(dims, x.dtype, x.format, value)]


@rule("BroadcastTo")
def broadcast_to(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """To the common shape of ``ins[0]`` and the shape in ``ins[1]``."""
    x, wanted = ins[0], tuple(ins[1].ints())
    require(min(wanted, default=0) >= 0)
    exact = op.main is not None and op.main.type_name == "Axis" and op.main.axis
    dims = wanted if exact and len(wanted) >= x.rank else broadcast(x.dims, wanted)
    value = None
    if x.value is not None and math.prod(dims) <= MAX_VALUES:
        try:
            value = np.broadcast_to(x.value, dims)
        except ValueError as error:
            raise Unknown(str(error)) from error
    return [TensorFact(dims, x.dtype, x.format, value)]


@rule("Fill")
def fill(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """A tensor of shape ``ins[0]`` full of the scalar ``ins[1]``."""
    dims, x = tuple(ins[0].ints()), ins[1]
    require(min(dims, default=0) >= 0)
    value = None
    if x.value is not None and x.size == 1 and math.prod(dims) <= MAX_VALUES:
        value = np.full(dims, x.value.reshape(-1)[0], x.dtype)
    return [TensorFact(dims, x.dtype, x.format, value)]


@rule("Range")
def arange(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """``start, start + step, ...`` below ``limit``; counted in float32 as MNN does."""
    require(len(ins) == 3 and known(*ins), "the bounds of a Range are not known")
    start, limit, step = (np.float32(x.value.reshape(-1)[0]) for x in ins if x.value is not None)
    require(step != 0)
    span = (limit - start) / step
    count = int(np.ceil(np.abs(span))) if span > 0 else 0
    require(count <= MAX_VALUES)
    dtype = ins[0].dtype
    first, delta = ins[0].value, ins[2].value
    assert first is not None and delta is not None
    value = first.reshape(-1)[0] + np.arange(count).astype(dtype) * delta.reshape(-1)[0]
    return [of_value(value.astype(dtype), ins[0].format)]


@rule("Padding")
def padding(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """``ins[1]`` holds the elements to add before and after each dimension."""
    x, pads = ins[0], ins[1].ints()
    require(len(pads) >= 2 * x.rank)
    dims = tuple(d + pads[2 * i] + pads[2 * i + 1] for i, d in enumerate(x.dims))
    require(min(dims, default=0) >= 0)
    return [TensorFact(dims, x.dtype, x.format)]


@rule("Slice")
def split(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Splits ``ins[0]`` along ``axis`` into consecutive pieces (ShapeSlice.cpp)."""
    x = ins[0]
    axis = axis_of(op.main.axis, x.rank)
    lengths = _split_lengths(op, ins, outs, x.dims[axis])
    require(len(lengths) == outs and min(lengths) >= 0 and sum(lengths) <= x.dims[axis])
    facts, start = [], 0
    for length in lengths:
        dims = (*x.dims[:axis], length, *x.dims[axis + 1 :])
        value: Array | None = None
        if x.value is not None:
            value = x.value[(slice(None),) * axis + (slice(start, start + length),)]
        facts.append(TensorFact(dims, x.dtype, x.format, value))
        start += length
    return facts


def _split_lengths(op: Table, ins: Sequence[TensorFact], outs: int, total: int) -> list[int]:
    points = None if op.main.slicePoints is None else op.main.slicePoints.tolist()
    source = op.main.sourceType
    if source == "CAFFE":
        ends = [*(points or []), total]
        return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    if len(ins) == 1 and (points is None or len(points) == 1):
        if source == "TORCH" and points:
            return [points[0]] * outs
        parts = points[0] if source == "TENSORFLOW" and points and points[0] != outs else outs
        require(parts > 0 and total % parts == 0)
        return [total // parts] * outs
    lengths = ins[1].ints() if len(ins) == 2 else list(points or [])
    lengths = lengths[:outs]
    require(lengths.count(-1) <= 1)
    rest = total - sum(n for n in lengths if n != -1)
    return [rest if n == -1 else n for n in lengths]


@rule("SliceTf")
def slice_tf(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """``size`` elements from ``begin`` on in every dimension; size -1 is the rest."""
    require(len(ins) == 3)
    x, begins, sizes = ins[0], ins[1].ints(), ins[2].ints()
    require(len(begins) == len(sizes) == x.rank)
    ranges = []
    for dim, begin, count in zip(x.dims, begins, sizes, strict=True):
        start = begin + dim if begin < 0 else begin
        end = dim if count == -1 else start + count
        require(0 <= start <= end <= dim)
        ranges.append(slice(start, end))
    dims = tuple(r.stop - r.start for r in ranges)
    value = None if x.value is None else x.value[tuple(ranges)]
    return [TensorFact(dims, x.dtype, x.format, value)]
