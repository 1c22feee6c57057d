"""StridedSlice, with the rules of TensorFlow (``fromType`` 0) and ONNX (``fromType`` 1).

Follows ShapeStridedSlice.cpp, including how bounds outside the tensor are clamped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mnnqnn_tasks.mnn.infer.facts import TensorFact, axis_of, require
from mnnqnn_tasks.mnn.infer.registry import rule
from mnnqnn_tasks.mnn.table import Table


@dataclass
class Cut:
    """How one dimension is cut; ``new`` makes a dimension of 1, ``shrink`` drops it."""

    begin: int
    end: int
    step: int = 1
    open_begin: bool = False
    open_end: bool = False
    shrink: bool = False
    new: bool = False


def cuts(op: Table, ins: Sequence[TensorFact]) -> list[Cut]:
    """The cut of each dimension, in order, from the op's inputs and masks.

    Raises:
        Unknown: when begin, end, axes or steps are not known.
    """
    dims = ins[0].dims
    begins, ends = ins[1].ints(), ins[2].ints()
    require(len(begins) == len(ends))
    if op.main.fromType == 1:
        axes = ins[3].ints() if len(ins) >= 4 else list(range(len(begins)))
        steps = ins[4].ints() if len(ins) == 5 else [1] * len(begins)
        require(len(axes) >= len(begins) and len(steps) >= len(begins))
        out = [Cut(0, dim) for dim in dims]
        for begin, end, axis, step in zip(begins, ends, axes, steps, strict=False):
            i = axis_of(axis, len(dims))
            require(step != 0, "a step of 0")
            begin = begin + dims[i] if begin < 0 else begin
            out[i] = Cut(begin, end + dims[i] if end < 0 else end, step)
        return out
    steps = ins[3].ints() if len(ins) >= 4 else [1] * len(begins)
    require(len(steps) == len(begins) and 0 not in steps)
    masks = op.main
    out = [
        Cut(
            begins[i],
            ends[i],
            steps[i],
            open_begin=bool(masks.beginMask >> i & 1),
            open_end=bool(masks.endMask >> i & 1),
            shrink=bool(masks.shrinkAxisMask >> i & 1),
            new=bool(masks.newAxisMask >> i & 1),
        )
        for i in range(len(begins))
    ]
    if masks.ellipsisMask:
        at = masks.ellipsisMask.bit_length() - 1
        require(masks.ellipsisMask == 1 << at and at < len(out), "more than one ellipsis")
        require(not masks.newAxisMask, "an ellipsis beside a new axis")
        missing = len(dims) - (len(out) - 1)
        require(missing >= 0)
        out[at : at + 1] = [Cut(0, dims[at + j]) for j in range(missing)]
    return out


def _clamp(index: int, dim: int) -> int:
    index = max(-dim - 1, min(dim, index))
    return index + dim if index < 0 else index


def bounds(cut: Cut, dim: int) -> tuple[int, int, int]:
    """``(begin, step, count)`` of a cut of a dimension of ``dim`` elements."""
    step = 1 if cut.shrink else cut.step
    if cut.open_begin:
        begin = dim - 1 if step < 0 else 0
    elif step < 0:
        begin = max(-dim, min(dim - 1, cut.begin))
        begin = begin + dim if begin < 0 else begin
    else:
        begin = min(dim, cut.begin)
    if begin < 0:
        require(dim > 0)
        begin += -(begin // dim) * dim
    if cut.open_end:
        end = -1 if step < 0 else dim
    else:
        end = max(-1, min(dim, cut.end)) if step < 0 else _clamp(cut.end, dim)
    if cut.shrink:
        require(begin < dim, "an index outside the dimension")
        return begin, 1, 1
    count = (begin - end + -step - 1) // -step if step < 0 else (end - begin + step - 1) // step
    return begin, step, max(0, count)


@rule("StridedSlice")
def strided_slice(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """A slice of ``ins[0]``; with five inputs and ``fromType`` 0 a write into it."""
    x = ins[0]
    require(len(ins) >= 3 and x.rank > 0)
    if op.main.fromType == 0 and len(ins) == 5:
        return [TensorFact(x.dims, x.dtype, x.format)]
    dims: list[int] = []
    index: list[slice | int | None] = []
    used = 0
    for cut in cuts(op, ins):
        if cut.new:
            dims.append(1)
            index.append(None)
            continue
        require(used < x.rank)
        begin, step, count = bounds(cut, x.dims[used])
        used += 1
        if cut.shrink:
            index.append(begin)
            continue
        dims.append(count)
        last = begin + step * count
        index.append(slice(begin, None if last < 0 else last, step) if count else slice(0, 0))
    dims.extend(x.dims[used:])
    value = None if x.value is None else x.value[tuple(index)]
    return [TensorFact(tuple(dims), x.dtype, x.format, value)]
