"""Unary, binary, comparison, Select and Cast against numpy, on the emulator."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from translate_graphs import Array, Net, check, half

RNG = np.random.default_rng(1)
X = (RNG.standard_normal((3, 40)) * 2).astype(np.float32)
POSITIVE = np.abs(X) + np.float32(0.05)
SMALL = (np.tanh(X) * 0.9).astype(np.float32)
_erf = np.vectorize(math.erf)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


UNARY: dict[str, tuple[Array, Callable[[Array], Array]]] = {
    "ABS": (X, np.abs),
    "NEG": (X, np.negative),
    "FLOOR": (X, np.floor),
    "CEIL": (X, np.ceil),
    "ROUND": (X, np.round),
    "SIGN": (X, np.sign),
    "SQUARE": (X, np.square),
    "SQRT": (POSITIVE, np.sqrt),
    "RSQRT": (POSITIVE, lambda x: 1 / np.sqrt(x)),
    "RECIPROCAL": (POSITIVE, lambda x: 1 / x),
    "EXP": (X, np.exp),
    "LOG": (POSITIVE, np.log),
    "SIN": (X, np.sin),
    "COS": (X, np.cos),
    "ASIN": (SMALL, np.arcsin),
    "ATAN": (X, np.arctan),
    "TANH": (X, np.tanh),
    "SIGMOID": (X, sigmoid),
    "HARDSWISH": (X, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "GELU": (X, lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    "GELU_STANDARD": (X, lambda x: x / 2 * (1 + _erf(x / math.sqrt(2)))),
    "SILU": (X, lambda x: x * sigmoid(x)),
}


def test_unary_operations() -> None:
    net, expected = Net(), {}
    inputs = {id(a): net.input(a) for a in (X, POSITIVE, SMALL)}
    for name, (values, function) in UNARY.items():
        out = net.op("UnaryOp", [inputs[id(values)]], X.shape, params={"opType": name})
        expected[out] = function(half(values))
    check(net, expected, 55)


@pytest.mark.parametrize("rows", [1, 7, 100, 128])
def test_silu_times_up_is_precise_for_any_number_of_rows(rows: int) -> None:
    """libQnnHtp fuses ``x * sigmoid(x)`` into an op that loses 13 dB for 1 or 100 rows."""
    gate, up = (RNG.standard_normal((rows, 64, 1, 1)).astype(np.float32) for _ in range(2))
    weight = (RNG.standard_normal((192, 64)) * 0.2).astype(np.float32)
    net = Net()
    linear = net.op(
        "Convolution",
        [net.input(gate)],
        (rows, 192, 1, 1),
        params={"common": {"outputCount": 192, "inputCount": 64}},
        weights={"weight": net.blob(weight)},
    )
    silu = net.op("UnaryOp", [linear], (rows, 192, 1, 1), params={"opType": "SILU"})
    wide = np.repeat(up, 3, axis=1)
    out = net.op("BinaryOp", [silu, net.input(wide)], wide.shape, params={"opType": "MUL"})
    x = half(gate)[:, :, 0, 0] @ half(weight).T
    check(net, {out: (x * sigmoid(x) * half(wide)[:, :, 0, 0])[:, :, None, None]}, 58)


FLOAT_BINARY: dict[str, Callable[..., Array]] = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "REALDIV": np.divide,
    "DIV": np.divide,
    "MINIMUM": np.minimum,
    "MAXIMUM": np.maximum,
    "SquaredDifference": lambda a, b: (a - b) ** 2,
}


def test_float_binary_operations_broadcast() -> None:
    a = RNG.standard_normal((1, 6, 4, 16)).astype(np.float32)
    heads = RNG.standard_normal((1, 6, 1, 16)).astype(np.float32)
    row = RNG.standard_normal(16).astype(np.float32)
    two = np.array(2.5, np.float32)
    net, expected = Net(), {}
    ids = {"a": net.input(a), "heads": net.input(heads)}
    ids |= {"row": net.const(row), "two": net.const(two)}
    values = {"a": half(a), "heads": half(heads), "row": half(row), "two": half(two)}
    for name, function in FLOAT_BINARY.items():
        for left, right in (("a", "a"), ("a", "heads"), ("a", "row"), ("a", "two"), ("two", "a")):
            pair = [ids[left], ids[right]]
            out = net.op("BinaryOp", pair, a.shape, params={"opType": name})
            expected[out] = function(values[left], values[right])
    relu = {"opType": "ADD", "activationType": 1}
    out = net.op("BinaryOp", [ids["a"], ids["heads"]], a.shape, params=relu)
    expected[out] = np.maximum(values["a"] + values["heads"], 0)
    base = np.abs(a) + np.float32(0.5)
    positive = net.input(base)
    out = net.op("BinaryOp", [positive, ids["heads"]], a.shape, params={"opType": "POW"})
    expected[out] = half(base) ** values["heads"]
    out = net.op("BinaryOp", [ids["a"], positive], a.shape, params={"opType": "MUL_SILU"})
    expected[out] = values["a"] * half(base) * sigmoid(half(base))
    check(net, expected)


POSITIONS = np.array([0, 1, 5, -1, -7, 2047, 2048, 4095, 12287, 131071, -2049, 100000], np.int32)
DIVISORS = np.array([3, 1, -2, 2, 3, 2048, 2048, 7, -2048, 2048, 2048, 6], np.int32)


def _cut(a: Array, b: Array) -> Array:
    return np.trunc(a / b).astype(np.int32)


INT_BINARY: dict[str, Callable[..., Array]] = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "MINIMUM": np.minimum,
    "MAXIMUM": np.maximum,
    "REALDIV": _cut,
    "FLOORDIV": np.floor_divide,
    "FLOORMOD": np.mod,
    "MOD": np.mod,
}


def test_integers_are_exact() -> None:
    """Also beyond float16: the table positions of a long context depend on it."""
    net, expected = Net(), {}
    a, b = net.input(POSITIONS), net.input(DIVISORS)
    constant = net.const(np.array(2048, np.int32))
    for name, function in INT_BINARY.items():
        out = net.op("BinaryOp", [a, b], (12,), "int32", params={"opType": name})
        expected[out] = function(POSITIONS, DIVISORS)
        out = net.op("BinaryOp", [a, constant], (12,), "int32", params={"opType": name})
        expected[out] = function(POSITIONS, np.int32(2048))
    clipped = net.op("BinaryOp", [a, b], (12,), "int32", params={"opType": "MAXIMUM"})
    zero = net.const(np.array(0, np.int32))
    clipped = net.op("BinaryOp", [clipped, zero], (12,), "int32", params={"opType": "MAXIMUM"})
    out = net.op("BinaryOp", [clipped, constant], (12,), "int32", params={"opType": "REALDIV"})
    expected[out] = np.maximum(np.maximum(POSITIONS, DIVISORS), 0) // 2048
    check(net, expected)


COMPARE: dict[str, Callable[..., Array]] = {
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "EQUAL": np.equal,
    "NOTEQUAL": np.not_equal,
}


def test_comparisons_logic_select_and_cast() -> None:
    net, expected = Net(), {}
    rounded = np.round(X)
    a, b, x, r = (net.input(v) for v in (POSITIONS, DIVISORS, X, rounded))
    for name, function in COMPARE.items():
        out = net.op("BinaryOp", [a, b], (12,), "int32", params={"opType": name})
        expected[out] = function(POSITIONS, DIVISORS).astype(np.int32)
        out = net.op("BinaryOp", [x, r], X.shape, "int32", params={"opType": name})
        expected[out] = function(half(X), half(rounded)).astype(np.int32)
    less = net.op("BinaryOp", [a, b], (12,), "int32", params={"opType": "LESS"})
    equal = net.op("BinaryOp", [a, b], (12,), "int32", params={"opType": "EQUAL"})
    for name, function in (("LOGICALOR", np.logical_or), ("LOGICALXOR", np.logical_xor)):
        out = net.op("BinaryOp", [less, equal], (12,), "int32", params={"opType": name})
        expected[out] = function(POSITIONS < DIVISORS, POSITIONS == DIVISORS).astype(np.int32)
    expected[net.op("Select", [less, a, b], (12,), "int32")] = np.minimum(POSITIONS, DIVISORS)
    expected[net.op("Select", [a, a, b], (12,), "int32")] = np.where(
        POSITIONS != 0, POSITIONS, DIVISORS
    )
    above = net.op("BinaryOp", [x, r], X.shape, "int32", params={"opType": "GREATER"})
    lowest = net.const(np.array(-3.4e38, np.float32))
    masked = np.where(half(X) > half(rounded), half(X), -65504.0)
    expected[net.op("Select", [above, x, lowest], X.shape)] = masked
    truth = {"srcT": "DT_INT32", "dstT": "DT_BOOL"}
    expected[net.op("Cast", [a], (12,), "int32", params=truth)] = (POSITIONS != 0).astype(np.int32)
    some = {"srcT": "DT_FLOAT", "dstT": "DT_BOOL"}
    expected[net.op("Cast", [r], X.shape, "int32", params=some)] = (rounded != 0).astype(np.int32)
    whole = {"srcT": "DT_FLOAT", "dstT": "DT_INT32"}
    expected[net.op("Cast", [r], X.shape, "int32", params=whole)] = rounded.astype(np.int32)
    check(net, expected)


def test_relu_family() -> None:
    net = Net()
    x = net.input(X * 4)
    values = half(X * 4)
    check(
        net,
        {
            net.op("ReLU", [x], X.shape): np.maximum(values, 0),
            net.op("ReLU", [x], X.shape, params={"slope": 0.25}): np.where(
                values > 0, values, values / 4
            ),
            net.op("ReLU6", [x], X.shape): np.clip(values, 0, 6),
        },
    )
