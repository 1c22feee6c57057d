"""BinaryOp: arithmetic, comparison and logic on two tensors."""

from __future__ import annotations

import numpy as np

from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.translate.builder import Builder, Dims
from mnnqnn_tasks.translate.consts import const_ints
from mnnqnn_tasks.translate.elementwise import broadcast_dims, broadcast_reason
from mnnqnn_tasks.translate.ops.unary import sigmoid
from mnnqnn_tasks.translate.params import param
from mnnqnn_tasks.translate.registry import translates
from mnnqnn_tasks.translate.values import Form, Stored

#: MNN operations that give a number of the inputs' type.
_ARITHMETIC: dict[str, str] = {
    "ADD": "ElementWiseAdd",
    "SUB": "ElementWiseSubtract",
    "MUL": "ElementWiseMultiply",
    "DIV": "ElementWiseDivide",
    "REALDIV": "ElementWiseDivide",
    "MINIMUM": "ElementWiseMinimum",
    "MAXIMUM": "ElementWiseMaximum",
    "SquaredDifference": "ElementWiseSquaredDifference",
    "POW": "ElementWisePower",
    "FLOORDIV": "ElementWiseDivide",
    "FLOORMOD": "ElementWiseMod",
    "MOD": "ElementWiseMod",
    "MUL_SILU": "ElementWiseMultiply",
}

#: MNN operations that give 0 or 1 as an int32.
_COMPARE: dict[str, str] = {
    "GREATER": "ElementWiseGreater",
    "GREATER_EQUAL": "ElementWiseGreaterEqual",
    "LESS": "ElementWiseLess",
    "LESS_EQUAL": "ElementWiseLessEqual",
    "EQUAL": "ElementWiseEqual",
    "NOTEQUAL": "ElementWiseNotEqual",
}

#: MNN operations on truth values.
_LOGIC: dict[str, str] = {
    "LOGICALOR": "ElementWiseOr",
    "LOGICALXOR": "ElementWiseXor",
}

#: Operations that are exact for integers and for nothing else.
_INTEGER = {"FLOORDIV", "FLOORMOD", "MOD"}

#: Integer operations that have to round the right way.
_QUOTIENTS = {"DIV", "REALDIV", "FLOORDIV"}

#: What is computed in 16-bit fixed point where all tensors are; the rest goes over fp16.
_FIXED = {"ADD", "SUB", "MUL"}


def _operation(op: SubOp) -> str:
    return str(param(op, "BinaryOp", "opType"))


def _supports(op: SubOp, subgraph: Subgraph) -> str | None:
    operation = _operation(op)
    if operation not in _ARITHMETIC | _COMPARE | _LOGIC:
        return f"BinaryOp {operation}"
    dtypes = {subgraph.tensors[i].dtype for i in op.inputs}
    if len(dtypes) > 1:
        return f"BinaryOp {operation} of {' and '.join(sorted(dtypes))}"
    integer = dtypes == {"int32"}
    if operation in _INTEGER and not integer:
        # A float16 quotient that is a little too small is a whole step off when floored.
        return f"BinaryOp {operation} of floats"
    if operation == "MUL_SILU" and len({subgraph.tensors[i].dims for i in op.inputs}) > 1:
        return "BinaryOp MUL_SILU of different shapes"
    if integer and operation in ("POW", "SquaredDifference", "MUL_SILU"):
        return f"BinaryOp {operation} of integers"
    activation = param(op, "BinaryOp", "activationType")
    if activation not in (0, 1) or (activation and operation == "MUL_SILU"):
        return f"activation {activation}"
    return broadcast_reason(subgraph, op.inputs, op.outputs[0])


@translates("BinaryOp", inputs=(2, 2), supports=_supports)
def translate(builder: Builder, op: SubOp) -> None:
    """``out = a (op) b`` with numpy's broadcasting; ``activationType`` 1 is a ReLU."""
    operation = _operation(op)
    out = op.outputs[0]
    if operation in ("MUL", "MUL_SILU") and _gated(builder, op, operation):
        return
    shapes, dims = broadcast_dims(builder, op.inputs, out)
    form = _form(builder, op, operation)
    inputs = [builder.read(i, form, d) for i, d in zip(op.inputs, shapes, strict=True)]
    if operation in _COMPARE or operation in _LOGIC:
        kind = (_COMPARE | _LOGIC)[operation]
        builder.define(out, builder.node(kind, inputs, dims, "bool"))
        return
    if form == "int" and (operation in _QUOTIENTS):
        inputs[0] = _multiple(builder, op, inputs, dims)
    quant = builder.encoding(out) if form == "fixed" else None
    result = builder.node(_ARITHMETIC[operation], inputs, dims, form, quant)
    if param(op, "BinaryOp", "activationType") == 1:
        result = _relu(builder, result)
    builder.define(out, result)


def _gated(builder: Builder, op: SubOp, operation: str) -> bool:
    """``silu(x) * y`` as ``x * (sigmoid(x) * y)``: no more nodes, and nothing that
    libQnnHtp would fuse into its imprecise swish (see `Builder.define_product`)."""
    first, second = op.inputs
    if builder.kind(first) != "float" or param(op, "BinaryOp", "activationType"):
        return False
    if builder.dims(first) != builder.dims(second):
        return False
    if operation == "MUL_SILU":
        value = builder.read(second, "float")
        factors, other = (value, sigmoid(builder, value)), first
    elif (product := builder.product(first)) is not None:
        factors, other = product, second
    elif (product := builder.product(second)) is not None:
        factors, other = product, first
    else:
        return False
    value, gate = factors
    scale = builder.read(other, "float", gate.dims)
    kind = "ElementWiseMultiply"
    scaled = builder.node(kind, [gate, scale], gate.dims, "float", suffix="_gate")
    builder.define(op.outputs[0], builder.node(kind, [value, scaled], value.dims, "float"))
    return True


def _multiple(builder: Builder, op: SubOp, inputs: list[Stored], dims: Dims) -> Stored:
    """A dividend without the remainder: dividing it is exact however QNN rounds.

    libQnnHtp (2.51) has no integer FloorDiv, and its integer Divide cuts towards zero
    except by a constant, where it rounds down.  MNN's REALDIV of integers is C's, which
    cuts towards zero; its FLOORDIV rounds down.
    """
    dividend, divisor = inputs
    floor = _operation(op) == "FLOORDIV"
    if not floor:
        if _nonnegative(builder.subgraph, op.inputs[0]) and _positive(builder, op.inputs[1]):
            return dividend
        dividend, divisor = (
            builder.node("ElementWiseAbs", [i], i.dims, "int", suffix="_abs") for i in inputs
        )
    rest = builder.node("ElementWiseMod", [dividend, divisor], dims, "int", suffix="_rest")
    if not floor:
        zero = builder.static(np.zeros((1,) * len(dims), np.int32), "int", "_zero")
        below = builder.node("ElementWiseLess", [inputs[0], zero], inputs[0].dims, "bool")
        minus = builder.node("ElementWiseSubtract", [zero, rest], dims, "int", suffix="_minus")
        rest = builder.node("ElementWiseSelect", [below, minus, rest], dims, "int")
    return builder.node("ElementWiseSubtract", [inputs[0], rest], dims, "int", suffix="_multiple")


def _positive(builder: Builder, index: int) -> bool:
    values = builder.const(index)
    return values is not None and bool((values > 0).all())


def _nonnegative(subgraph: Subgraph, index: int) -> bool:
    """Whether a value is clipped at zero: it came from MAXIMUM, perhaps through MINIMUM."""
    const = const_ints(subgraph, index)
    if const is not None:
        return min(const, default=0) >= 0
    maker = next((op for op in subgraph.ops if index in op.outputs), None)
    if maker is None or maker.type != "BinaryOp":
        return False
    known = [_nonnegative(subgraph, i) for i in maker.inputs]
    return {"MAXIMUM": any(known), "MINIMUM": all(known)}.get(_operation(maker), False)


def _form(builder: Builder, op: SubOp, operation: str) -> Form:
    if operation in _LOGIC:
        return "bool"
    if operation in _FIXED and builder.is_fixed(*op.inputs) and builder.encoding(op.outputs[0]):
        return "fixed"
    return builder.kind(op.inputs[0])


def _relu(builder: Builder, value: Stored) -> Stored:
    return builder.node("Relu", [value], value.dims, value.form, value.quant, suffix="_relu")
