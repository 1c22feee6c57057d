"""Softmax, Reduction, LayerNorm and MatMul against numpy, on the emulator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from translate_graphs import Array, Net, check, half

RNG = np.random.default_rng(3)
A = RNG.standard_normal((2, 6, 4, 16)).astype(np.float32)
H = half(A)


def test_softmax_over_every_axis() -> None:
    net, expected = Net(), {}
    x = net.input(A)
    for axis in (-1, 2, 1, 0):
        raised = np.exp(H - H.max(axis, keepdims=True))
        want = raised / raised.sum(axis, keepdims=True)
        expected[net.op("Softmax", [x], A.shape, params={"axis": axis})] = want
    check(net, expected, 55)


def test_reductions_over_axes_that_lie_together() -> None:
    net, expected = Net(), {}
    x = net.input(A)
    kinds = {"SUM": np.sum, "MEAN": np.mean, "MAXIMUM": np.max, "MINIMUM": np.min}
    for kind, function in kinds.items():
        for axes in ((-1,), (1,), (0, 1), (2, 3), (0, 1, 2, 3)):
            want = function(H, axes, keepdims=True)
            params = {"operation": kind, "dim": list(axes), "keepDims": True}
            expected[net.op("Reduction", [x], want.shape, params=params)] = want
    want = H.sum(1)
    axis = net.const(np.array([1], np.int32))
    expected[net.op("Reduction", [x, axis], want.shape, params={"operation": "SUM"})] = want
    check(net, expected, 60)


def normalized(x: Array, gamma: Array, beta: Array, rms: bool) -> Array:
    if not rms:
        x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * gamma + beta


# libQnnHtp miscomputes RmsNorm for the first three, unless their rows are flattened.
SHAPES = [(1, 16, 4, 16), (1, 48, 16, 128), (16, 4, 16), (1, 100, 576), (1, 1, 576), (3, 33, 40)]


def _norm(net: Net, shape: Sequence[int], rms: bool, scale: float = 1.0) -> tuple[int, Array]:
    values = ((RNG.standard_normal(shape) + (0 if rms else 0.3)) * scale).astype(np.float32)
    size = shape[-1]
    gamma = RNG.uniform(0.5, 2, size).astype(np.float32)
    beta = np.zeros(size, np.float32) if rms else RNG.standard_normal(size).astype(np.float32)
    out = net.op(
        "LayerNorm",
        [net.input(values)],
        shape,
        params={"axis": [-1], "epsilon": 1e-6, "useRMSNorm": rms},
        weights={"gamma": net.blob(gamma), "beta": net.blob(beta)},
    )
    return out, normalized(half(values), gamma, beta, rms)


@pytest.mark.parametrize("rms", [True, False])
def test_norms_of_any_shape(rms: bool) -> None:
    net = Net()
    check(net, dict(_norm(net, shape, rms) for shape in SHAPES), 65)


def test_norms_of_large_and_small_rows() -> None:
    """A residual stream may be large: its squares do not fit into float16."""
    net = Net()
    made = [_norm(net, (1, 16, 2048), True, s) for s in (1000.0, 300.0, 0.003)]
    check(net, dict([*made, _norm(net, (1, 5, 512), False, 200.0)]), 65)


def test_norm_without_weights_over_two_axes_and_with_a_sum() -> None:
    net, expected = Net(), {}
    x = net.input(A)
    params = {"axis": [-1], "epsilon": 1e-6, "useRMSNorm": True}
    one, zero = np.ones(16), np.zeros(16)
    expected[net.op("LayerNorm", [x], A.shape, params=params)] = normalized(H, one, zero, True)
    two = {"axis": [2, 3], "epsilon": 1e-6}
    want = normalized(H.reshape(2, 6, 64), np.ones(64), np.zeros(64), False).reshape(A.shape)
    expected[net.op("LayerNorm", [x], A.shape, params=two)] = want
    other = net.input(A[::-1].copy())
    first = net.op("LayerNorm", [x, other], [A.shape, A.shape], params=params)
    total = half((H + H[::-1]).astype(np.float32))
    expected[first] = total
    expected[first + 1] = normalized(total, one, zero, True)
    check(net, expected, 65)


@pytest.mark.parametrize("kind", ["MatMul", "BatchMatMul"])
def test_products(kind: str) -> None:
    flags = ("transposeA", "transposeB") if kind == "MatMul" else ("adjX", "adjY")
    leading = [((), ())] if kind == "MatMul" else [((2,), (2,)), ((2, 3), (2, 1)), ((2,), ())]
    net, expected = Net(), {}
    for lead_a, lead_b in leading:
        for swap_a, swap_b in ((False, False), (False, True), (True, False)):
            a = RNG.standard_normal((*lead_a, *((8, 5) if swap_a else (5, 8))))
            b = RNG.standard_normal((*lead_b, *((7, 8) if swap_b else (8, 7))))
            a, b = a.astype(np.float32), b.astype(np.float32)
            left = half(a).swapaxes(-1, -2) if swap_a else half(a)
            want = left @ (half(b).swapaxes(-1, -2) if swap_b else half(b))
            params = dict(zip(flags, (swap_a, swap_b), strict=True))
            pair = [net.input(a), net.input(b)]
            expected[net.op(kind, pair, want.shape, params=params)] = want
    if kind == "MatMul":
        bias = RNG.standard_normal(7).astype(np.float32)
        a, b = (RNG.standard_normal(s).astype(np.float32) for s in ((5, 8), (8, 7)))
        ids = [net.input(a), net.input(b), net.const(bias)]
        expected[net.op(kind, ids, (5, 7))] = half(a) @ half(b) + half(bias)
    check(net, expected, 65)
