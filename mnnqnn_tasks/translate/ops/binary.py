"""BinaryOp: arithmetic, comparison and logic on two tensors."""

from __future__ import annotations

from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.translate.builder import Builder
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
    "FLOORDIV": "ElementWiseFloorDiv",
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
    if operation == "MOD" and not integer:
        return "BinaryOp MOD of floats"  # fmod: the HTP has no such op for floats
    if operation == "MUL_SILU" and len({subgraph.tensors[i].dims for i in op.inputs}) > 1:
        return "BinaryOp MUL_SILU of different shapes"
    if integer and operation in ("POW", "SquaredDifference", "MUL_SILU"):
        return f"BinaryOp {operation} of integers"
    activation = param(op, "BinaryOp", "activationType")
    if activation not in (0, 1) or (activation and operation == "MUL_SILU"):
        return f"activation {activation}"
    return broadcast_reason(subgraph, op.inputs, op.outputs[0])


@translates("BinaryOp", supports=_supports)
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


def _form(builder: Builder, op: SubOp, operation: str) -> Form:
    if operation in _LOGIC:
        return "bool"
    if operation in _FIXED and builder.is_fixed(*op.inputs) and builder.encoding(op.outputs[0]):
        return "fixed"
    return builder.kind(op.inputs[0])


def _relu(builder: Builder, value: Stored) -> Stored:
    return builder.node("Relu", [value], value.dims, value.form, value.quant, suffix="_relu")
