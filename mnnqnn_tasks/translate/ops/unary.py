"""UnaryOp and the activations that are ops of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.qnn.ir import Quant, ScalarParam, ScaleOffset
from mnnqnn_tasks.translate.builder import Builder
from mnnqnn_tasks.translate.params import param
from mnnqnn_tasks.translate.registry import translates
from mnnqnn_tasks.translate.values import Stored

#: One QNN node each.
_SIMPLE: dict[str, str] = {
    "ABS": "ElementWiseAbs",
    "NEG": "ElementWiseNeg",
    "FLOOR": "ElementWiseFloor",
    "CEIL": "ElementWiseCeil",
    "ROUND": "ElementWiseRound",
    "SIGN": "ElementWiseSign",
    "SQRT": "ElementWiseSquareRoot",
    "RSQRT": "ElementWiseRsqrt",
    "EXP": "ElementWiseExp",
    "LOG": "ElementWiseLog",
    "SIN": "ElementWiseSin",
    "COS": "ElementWiseCos",
    "ASIN": "ElementWiseAsin",
    "ATAN": "ElementWiseAtan",
    "SIGMOID": "Sigmoid",
    "TANH": "Tanh",
    "HARDSWISH": "HardSwish",
    "GELU": "Gelu",
    "GELU_STANDARD": "Gelu",
}

#: Operations that integers have, too.
_INTEGER = {"ABS", "NEG", "SQUARE"}

#: What is computed in 16-bit fixed point where all tensors are; the rest goes over fp16.
_FIXED = {"NEG", "SILU"}

#: The 16-bit encoding of a sigmoid: 0..1.
_UNIT = ScaleOffset(float(np.float32(1 / 65535)), 0)


def sigmoid(builder: Builder, value: Stored) -> Stored:
    """``1 / (1 + exp(-x))`` in the form of ``value``."""
    unit = _UNIT if value.form == "fixed" else None
    return builder.node("Sigmoid", [value], value.dims, value.form, unit, suffix="_sigmoid")


def _silu(builder: Builder, value: Stored, quant: Quant | None) -> Stored:
    gate = sigmoid(builder, value)
    return builder.node("ElementWiseMultiply", [value, gate], value.dims, value.form, quant)


def _square(builder: Builder, value: Stored, quant: Quant | None) -> Stored:
    return builder.node("ElementWiseMultiply", [value, value], value.dims, value.form, quant)


def _reciprocal(builder: Builder, value: Stored, quant: Quant | None) -> Stored:
    one = builder.static(np.ones((1,) * len(value.dims), np.float16), "float", "_one")
    return builder.node("ElementWiseDivide", [one, value], value.dims, value.form, quant)


#: Operations that take more than one node.
_COMPOSED: dict[str, Callable[[Builder, Stored, Quant | None], Stored]] = {
    "SILU": _silu,
    "SQUARE": _square,
    "RECIPROCAL": _reciprocal,
}

#: Ops of their own -> the UnaryOp that they are.
_OP_TYPES = {"Sigmoid": "SIGMOID", "TanH": "TANH", "AbsVal": "ABS", "Exp": "EXP"}


def _operation(op: SubOp) -> str:
    return _OP_TYPES.get(op.type) or str(param(op, "UnaryOp", "opType"))


def _supports(op: SubOp, subgraph: Subgraph) -> str | None:
    operation = _operation(op)
    if operation not in _SIMPLE and operation not in _COMPOSED:
        return f"UnaryOp {operation}"
    if subgraph.tensors[op.inputs[0]].dtype != "float32" and operation not in _INTEGER:
        return f"UnaryOp {operation} of integers"
    return None


@translates("UnaryOp", *_OP_TYPES, supports=_supports)
def translate(builder: Builder, op: SubOp) -> None:
    """``out = f(x)``, element by element, in whatever dims ``x`` is held."""
    operation = _operation(op)
    source, out = op.inputs[0], op.outputs[0]
    fixed = operation in _FIXED and builder.is_fixed(source) and builder.encoding(out) is not None
    form = "fixed" if fixed else builder.kind(source)
    value = builder.read(source, form)
    quant = builder.encoding(out) if fixed else None
    if operation == "SILU" and form == "float":
        builder.define_product(out, value, sigmoid(builder, value))
        return
    if operation in _COMPOSED:
        builder.define(out, _COMPOSED[operation](builder, value, quant))
        return
    builder.define(out, builder.node(_SIMPLE[operation], [value], value.dims, form, quant))


def _relu_supports(op: SubOp, subgraph: Subgraph) -> str | None:
    if subgraph.tensors[op.inputs[0]].dtype != "float32":
        return f"{op.type} of integers"
    return None


@translates("ReLU", "ReLU6", supports=_relu_supports)
def relu(builder: Builder, op: SubOp) -> None:
    """ReLU with a slope below zero, and ReLU6 with its two limits."""
    value = builder.read(op.inputs[0], "float")
    if op.type == "ReLU6":
        low, high = param(op, "Relu6", "minValue"), param(op, "Relu6", "maxValue")
        limits = [
            ScalarParam("min_value", "FLOAT_32", float(low)),
            ScalarParam("max_value", "FLOAT_32", float(high)),
        ]
        result = builder.node("ReluMinMax", [value], value.dims, "float", params=limits)
    elif slope := float(param(op, "Relu", "slope") or 0.0):
        coeff = builder.static(np.full((1,), slope, np.float16), "float", "_slope")
        result = builder.node("Prelu", [value, coeff], value.dims, "float")
    else:
        result = builder.node("Relu", [value], value.dims, "float")
    builder.define(op.outputs[0], result)
