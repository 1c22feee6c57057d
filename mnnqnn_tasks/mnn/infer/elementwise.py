"""Ops that work on each element by itself.

Integer arithmetic follows MNN's CPU: ``REALDIV`` and ``DIV`` drop the fraction as C does,
``MOD`` takes the sign of the divisor, ``FLOORMOD`` that of the dividend.  Comparisons of
floats are never computed here: on some machines MNN drops the fraction before it compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mnnqnn_tasks.mnn.infer.facts import (
    DTYPES,
    MAX_VALUES,
    Array,
    TensorFact,
    broadcast,
    require,
)
from mnnqnn_tasks.mnn.infer.registry import rule
from mnnqnn_tasks.mnn.table import Table

_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "EQUAL": np.equal,
    "NOTEQUAL": np.not_equal,
}

#: Output type int32 whatever the inputs (ShapeBinaryOp.cpp).
_BOOL_RESULT = frozenset(_COMPARE)


def _truncated(a: Array, b: Array) -> Array:
    wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
    return (np.abs(wide_a) // np.abs(wide_b)) * np.sign(wide_a) * np.sign(wide_b)


_COMMON: dict[str, Callable[[Array, Array], Array]] = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "MINIMUM": np.minimum,
    "MIN_TEMP": np.minimum,
    "MAXIMUM": np.maximum,
    "MAX_TEMP": np.maximum,
    "SquaredDifference": lambda a, b: (a - b) * (a - b),
}

_INT: dict[str, Callable[[Array, Array], Array]] = {
    **_COMMON,
    **_COMPARE,
    "DIV": _truncated,
    "REALDIV": _truncated,
    "FLOORDIV": np.floor_divide,
    "MOD": np.mod,
    "FLOORMOD": np.fmod,
    "LOGICALOR": np.logical_or,
    "LOGICALXOR": np.not_equal,
    "BITWISE_AND": np.bitwise_and,
    "BITWISE_OR": np.bitwise_or,
    "BITWISE_XOR": np.bitwise_xor,
}

_FLOAT: dict[str, Callable[[Array, Array], Array]] = {
    **_COMMON,
    "DIV": np.divide,
    "REALDIV": np.divide,
    "FLOORDIV": lambda a, b: np.floor(a.astype(np.float64) / b),
    "MOD": np.fmod,
    "FLOORMOD": lambda a, b: a - np.floor(a / b) * b,
    "POW": np.power,
}

_INT_DIVISIONS = frozenset({"DIV", "REALDIV", "FLOORDIV", "MOD", "FLOORMOD"})


def _binary_value(kind: str, a: Array, b: Array, dtype: str) -> Array | None:
    integer = a.dtype.kind in "iu"
    function = (_INT if integer else _FLOAT).get(kind)
    if function is None or (integer and kind in _INT_DIVISIONS and not b.all()):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(function(a, b)).astype(dtype)


@rule("BinaryOp")
def binary(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Broadcasts; the layout is that of the input with more dimensions."""
    require(len(ins) == 2)
    a, b = ins
    require((a.dtype == "float32") == (b.dtype == "float32"), "the input types differ")
    kind = op.main.opType
    dims = broadcast(a.dims, b.dims)
    dtype = "int32" if kind in _BOOL_RESULT else a.dtype
    value = None
    if (
        a.value is not None
        and b.value is not None
        and op.main.activationType == 0
        and max(a.size, b.size) <= MAX_VALUES
    ):
        value = _binary_value(kind, a.value, b.value, dtype)
    return [TensorFact(dims, dtype, (b if b.rank > a.rank else a).format, value)]


_UNARY: dict[str, Callable[[Array], Array]] = {
    "ABS": np.abs,
    "NEG": np.negative,
    "SQUARE": np.square,
    "SIGN": np.sign,
    "FLOOR": np.floor,
    "CEIL": np.ceil,
    "SQRT": np.sqrt,
    "RSQRT": lambda x: np.float32(1) / np.sqrt(x),
    "RECIPROCAL": lambda x: np.float32(1) / x,
    "EXP": np.exp,
    "LOG": np.log,
    "SIN": np.sin,
    "COS": np.cos,
}

#: What MNN's CPU computes on integers (CPUUnary.cpp).
_UNARY_INT = frozenset({"ABS", "NEG", "SQUARE", "SIGN"})


@rule("UnaryOp")
def unary(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Same shape and type as the input."""
    (x,) = ins
    kind = op.main.opType
    value = None
    if x.value is not None and x.size <= MAX_VALUES:
        function = _UNARY.get(kind)
        if function is not None and (x.dtype == "float32" or kind in _UNARY_INT):
            with np.errstate(all="ignore"):
                value = np.asarray(function(x.value)).astype(x.dtype)
    return [TensorFact(x.dims, x.dtype, x.format, value)]


@rule("Cast")
def cast(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """To ``dstT``; a bool counts as int32, and becomes 0 or 1."""
    x = ins[0]
    target = op.main.dstT
    require(target in DTYPES, f"cast to {target}")
    dtype = DTYPES[target]
    value = None
    if x.value is not None and x.size <= MAX_VALUES:
        source = x.value if x.dtype != "float32" or dtype == "float32" else np.trunc(x.value)
        if target == "DT_BOOL":
            value = (x.value != 0).astype(np.int32)
        elif np.isfinite(source).all():
            with np.errstate(all="ignore"):
                value = source.astype(dtype)
    return [TensorFact(x.dims, dtype, x.format, value)]


@rule("Select")
def select(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """``where(ins[0], ins[1], ins[2])`` with broadcasting.

    MNN's CPU computes it only where the shapes are equal or an input has one element.
    """
    require(len(ins) == 3)
    which, yes, no = ins
    dims = broadcast(which.dims, yes.dims, no.dims)
    value = None
    plain = all(x.dims == dims or x.size == 1 for x in ins) and yes.size <= MAX_VALUES
    if plain and which.value is not None and yes.value is not None and no.value is not None:
        value = np.where(which.value != 0, yes.value, no.value).astype(yes.dtype)
    return [TensorFact(dims, yes.dtype, yes.format, value)]


@rule(
    "LayerNorm",
    "Softmax",
    "ReLU",
    "ReLU6",
    "PReLU",
    "ELU",
    "Selu",
    "Sigmoid",
    "TanH",
    "Scale",
    "BatchNorm",
    "InstanceNorm",
    "GroupNorm",
    "CumSum",
    "CumProd",
    "ScatterElements",
)
def same(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Each output is like the input of its number; values are left to the runtime."""
    require(len(ins) >= 1 and outs in (1, len(ins)))
    return [TensorFact(x.dims, x.dtype, x.format) for x in ins[:outs]]


@rule("Identity", "Dropout", "Copy")
def identity(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """The input, unchanged."""
    require(outs == 1)
    return [ins[0]]
