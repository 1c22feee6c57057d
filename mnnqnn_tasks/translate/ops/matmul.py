"""MatMul and BatchMatMul of two tensors."""

from __future__ import annotations

import math

from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.qnn.ir import ScalarParam
from mnnqnn_tasks.translate.builder import Builder
from mnnqnn_tasks.translate.params import param
from mnnqnn_tasks.translate.registry import translates
from mnnqnn_tasks.translate.values import Form


def _transposed(op: SubOp) -> tuple[bool, bool]:
    if op.type == "MatMul":
        return bool(param(op, "MatMul", "transposeA")), bool(param(op, "MatMul", "transposeB"))
    return bool(param(op, "BatchMatMulParam", "adjX")), bool(param(op, "BatchMatMulParam", "adjY"))


def _supports(op: SubOp, subgraph: Subgraph) -> str | None:
    tensors = [subgraph.tensors[i] for i in op.inputs]
    if any(t.dtype != "float32" for t in tensors):
        return "a product of integers"
    a, b = (t.dims for t in tensors[:2])
    if len(a) < 2 or len(b) < 2:
        return f"shapes {list(a)} and {list(b)}"
    swap_a, swap_b = _transposed(op)
    inner_a, inner_b = a[-2 if swap_a else -1], b[-1 if swap_b else -2]
    if inner_a != inner_b:
        return f"{inner_a} columns times {inner_b} rows"
    return None


@translates("MatMul", "BatchMatMul", inputs=(2, 3), supports=_supports)
def translate(builder: Builder, op: SubOp) -> None:
    """``out = a @ b (+ bias)`` over the last two axes, the leading ones broadcast."""
    a, b, out = op.inputs[0], op.inputs[1], op.outputs[0]
    rank = max(len(builder.dims(a)), len(builder.dims(b)))
    shapes = [(1,) * (rank - len(builder.dims(i))) + builder.dims(i) for i in (a, b)]
    dims = builder.dims(out)
    result = (1,) * (rank - len(dims)) + dims
    encoding = builder.encoding(out)
    fixed = encoding is not None and builder.is_fixed(a, b)
    form: Form = "fixed" if fixed and len(op.inputs) == 2 else "float"
    inputs = [builder.read(i, form, s) for i, s in zip((a, b), shapes, strict=True)]
    if len(op.inputs) > 2 and op.inputs[2] >= 0:
        bias = op.inputs[2]
        inputs.append(builder.read(bias, form, (math.prod(builder.dims(bias)),)))
    flags = [
        ScalarParam(f"transpose_in{i}", "BOOL_8", flag) for i, flag in enumerate(_transposed(op))
    ]
    quant = encoding if form == "fixed" else None
    builder.define(out, builder.node("MatMul", inputs, result, form, quant, flags))
