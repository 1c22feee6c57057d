"""StridedSlice (TensorFlow's and ONNX's form) and Slice (split along an axis)."""

from __future__ import annotations

from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.qnn.ir import TensorParam
from mnnqnn_tasks.translate.builder import Builder
from mnnqnn_tasks.translate.consts import const_ints, positive_axis
from mnnqnn_tasks.translate.params import param
from mnnqnn_tasks.translate.registry import translates
from mnnqnn_tasks.translate.values import Stored

#: begin, end (exclusive) and step of one axis, already inside the axis.
Range = tuple[int, int, int]
#: ``StridedSliceParam.fromType``.
_ONNX = 1


def _length(part: Range) -> int:
    begin, end, step = part
    return max(0, -((begin - end) // step))


def _inside(begin: int, end: int, step: int, size: int) -> Range:
    begin, end = (v + size if v < 0 else v for v in (begin, end))
    return min(max(begin, 0), size), min(max(end, 0), size), step


def _ranges(op: SubOp, subgraph: Subgraph) -> list[Range] | str:
    """The part of every input axis, or why it is not known."""
    dims = subgraph.tensors[op.inputs[0]].dims
    lists = [const_ints(subgraph, i) for i in op.inputs[1:]]
    if len(lists) < 2 or any(values is None for values in lists):
        return "begin, end or step is not constant"
    begins, ends, *more = [list(values or ()) for values in lists]
    onnx = param(op, "StridedSliceParam", "fromType") == _ONNX
    masks = {m: int(param(op, "StridedSliceParam", m)) for m in ("beginMask", "endMask")}
    shrink = int(param(op, "StridedSliceParam", "shrinkAxisMask"))
    if param(op, "StridedSliceParam", "ellipsisMask") or param(
        op, "StridedSliceParam", "newAxisMask"
    ):
        return "an ellipsis or a new axis in a slice"
    if not onnx and len(more) > 1:
        return "a slice that writes"
    axes = more.pop(0) if onnx and more else list(range(len(begins)))
    steps = more.pop(0) if more else [1] * len(begins)
    if not len(begins) == len(ends) == len(axes) == len(steps):
        return "begin, end and step of different lengths"
    parts: list[Range] = [(0, size, 1) for size in dims]
    for bit, (axis, begin, end, step) in enumerate(zip(axes, begins, ends, steps, strict=True)):
        front = positive_axis(axis, len(dims))
        if front is None:
            return f"axis {axis} of a tensor with {len(dims)}"
        if step <= 0:
            return f"step {step}"
        size = dims[front]
        if shrink >> bit & 1 and not onnx:
            begin = begin + size if begin < 0 else begin
            parts[front] = (begin, begin + 1, 1)
            continue
        begin = 0 if masks["beginMask"] >> bit & 1 and not onnx else begin
        end = size if masks["endMask"] >> bit & 1 and not onnx else end
        parts[front] = _inside(begin, end, step, size)
    return parts


def _supports(op: SubOp, subgraph: Subgraph) -> str | None:
    parts = _ranges(op, subgraph)
    if isinstance(parts, str):
        return parts
    kept = [_length(p) for p in parts]
    out = subgraph.tensors[op.outputs[0]].dims
    # A contradiction means that this reading of the masks is not MNN's.
    if [n for n in kept if n != 1] != [n for n in out if n != 1]:
        return f"a slice of shape {kept} where MNN has {list(out)}"
    return None


def _take(builder: Builder, source: int, target: int, parts: list[Range], suffix: str) -> None:
    dims = builder.dims(source)
    if all(p == (0, size, 1) for p, size in zip(parts, dims, strict=True)):
        builder.alias(target, source)
        return
    form = "fixed" if builder.is_fixed(source) else builder.kind(source)
    value = builder.read(source, form, dims)
    builder.define(target, slice_value(builder, value, parts, suffix))


def slice_value(builder: Builder, value: Stored, parts: list[Range], suffix: str) -> Stored:
    """The ``parts`` of ``value``, one (begin, end, step) for each of its axes."""
    flat = tuple(number for p in parts for number in p)
    ranges = TensorParam("ranges", "INT_32", (len(parts), 3), flat)
    taken = tuple(_length(p) for p in parts)
    return builder.node(
        "StridedSlice", [value], taken, value.form, value.quant, [ranges], suffix=suffix
    )


@translates("StridedSlice", inputs=(3, 5), supports=_supports)
def strided_slice(builder: Builder, op: SubOp) -> None:
    """A part of every axis; axes that are dropped have length 1 here."""
    parts = _ranges(op, builder.subgraph)
    assert not isinstance(parts, str)
    _take(builder, op.inputs[0], op.outputs[0], parts, "")


def _split_supports(op: SubOp, subgraph: Subgraph) -> str | None:
    dims = subgraph.tensors[op.inputs[0]].dims
    axis = positive_axis(int(param(op, "Slice", "axis")), len(dims))
    if axis is None:
        return f"axis {param(op, 'Slice', 'axis')} of a tensor with {len(dims)}"
    if any(len(subgraph.tensors[i].dims) != len(dims) for i in op.outputs):
        return "parts with another number of dimensions"
    lengths = [subgraph.tensors[i].dims[axis] for i in op.outputs]
    return None if sum(lengths) <= dims[axis] else f"parts {lengths} of length {dims[axis]}"


@translates("Slice", inputs=(1, 2), supports=_split_supports)
def split(builder: Builder, op: SubOp) -> None:
    """Consecutive parts along an axis, one for each output."""
    source = op.inputs[0]
    dims = builder.dims(source)
    axis = positive_axis(int(param(op, "Slice", "axis")), len(dims))
    assert axis is not None
    begin = 0
    for number, target in enumerate(op.outputs):
        end = begin + builder.dims(target)[axis]
        parts: list[Range] = [(0, size, 1) for size in dims]
        parts[axis] = (begin, end, 1)
        _take(builder, source, target, parts, f"_part{number}")
        begin = end
