"""Static 16-bit activations: every fixed-point op against numpy, on the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from translate_graphs import Array, Net, check
from translate_weights import RNG, Kind, weights

from mnnqnn_tasks.partition.subgraph import QuantInfo
from mnnqnn_tasks.qnn.ir import AxisScaleOffset, ScaleOffset
from mnnqnn_tasks.translate.values import activation_encoding


def symmetric(limit: float) -> QuantInfo:
    return QuantInfo(float(np.float32(limit / 32767)), 0.0, -32767.0, 32767.0, "DT_INT16")


def asymmetric(limit: float) -> QuantInfo:
    scale = float(np.float32(2.1 * limit / 65535))
    return QuantInfo(scale, float(round(1.05 * limit / scale)), 0.0, 65535.0, "DT_UINT16")


A = (RNG.standard_normal((1, 6, 4, 16)) * 1.5).clip(-4, 4).astype(np.float32)
B = (RNG.standard_normal((1, 6, 4, 16)) * 0.5).clip(-2, 2).astype(np.float32)
X, Y = A.astype(np.float64), B.astype(np.float64)

STYLES = pytest.mark.parametrize("quant", [symmetric, asymmetric])


def test_encoding_of_signed_and_unsigned_integers() -> None:
    scale = float(np.float32(3.9e-5))
    assert activation_encoding(QuantInfo(scale, 0, -32767, 32767, "DT_INT16")) == ScaleOffset(
        scale, -32768
    )
    assert activation_encoding(QuantInfo(scale, 100, 0, 65535, "DT_UINT16")) == ScaleOffset(
        scale, -100
    )


@pytest.mark.parametrize(
    "info",
    [
        QuantInfo(0.1, 0, -127, 127, "DT_INT8"),
        QuantInfo(0.1, 0.5, -32767, 32767, "DT_INT16"),
        QuantInfo(0.0, 0, -32767, 32767, "DT_INT16"),
        QuantInfo(float("nan"), 0, -32767, 32767, "DT_INT16"),
        QuantInfo(0.1, float("inf"), -32767, 32767, "DT_INT16"),
        QuantInfo(1e-50, 0, -32767, 32767, "DT_INT16"),
    ],
)
def test_what_has_no_16_bit_encoding_is_computed_in_float16(info: QuantInfo) -> None:
    assert activation_encoding(info) is None
    net = Net()
    out = net.op("UnaryOp", [net.input(A, quant=info)], A.shape, params={"opType": "NEG"})
    net.output(out)
    assert not any(t.quant for t in net.translated().graph.tensors)


@STYLES
def test_elementwise_and_moves(quant) -> None:  # type: ignore[no-untyped-def]
    net, expected = Net(), {}
    a, b = net.input(A, quant=quant(4)), net.input(B, quant=quant(2))
    heads = B[:, :, :1].copy()
    c, k = net.input(heads, quant=quant(2)), net.const(np.array(1.7, np.float32))
    for name, function, limit in (
        ("ADD", np.add, 6),
        ("SUB", np.subtract, 6),
        ("MUL", np.multiply, 8),
    ):
        for right, values in ((b, Y), (c, heads.astype(np.float64)), (k, 1.7)):
            out = net.op(
                "BinaryOp", [a, right], A.shape, params={"opType": name}, quant=quant(limit)
            )
            expected[out] = function(X, values)
    negative = net.op("UnaryOp", [a], A.shape, params={"opType": "NEG"}, quant=quant(4))
    silu = net.op("UnaryOp", [a], A.shape, params={"opType": "SILU"}, quant=quant(4))
    expected |= {negative: -X, silu: X / (1 + np.exp(-X))}
    both = net.op("Concat", [a, b], (1, 6, 4, 32), params={"axis": 3}, quant=quant(4))
    expected[both] = np.concatenate([X, Y], 3)
    lists = [net.const(np.array(v, np.int32)) for v in ((0, 0, 0, 8), (1, 6, 4, 16), (1, 1, 1, 1))]
    expected[net.op("StridedSlice", [a, *lists], (1, 6, 4, 8), quant=quant(4))] = X[..., 8:]
    check(net, expected, 75)


@STYLES
def test_what_is_poor_in_fixed_point_is_computed_in_float16(quant) -> None:  # type: ignore[no-untyped-def]
    net = Net()
    a = net.input(A, quant=quant(4))
    exp = np.exp(X - X.max(-1, keepdims=True))
    softmax = net.op("Softmax", [a], A.shape, params={"axis": -1}, quant=quant(1))
    params = {"axis": [-1], "epsilon": 1e-6}
    norm = net.op("LayerNorm", [a], A.shape, params=params, quant=quant(6))
    centred = X - X.mean(-1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    check(net, {softmax: exp / exp.sum(-1, keepdims=True), norm: want}, 55)


@STYLES
def test_rms_norm(quant) -> None:  # type: ignore[no-untyped-def]
    net, expected = Net(), {}
    for shape in ((1, 6, 4, 16), (1, 100, 64), (1, 16, 4, 16)):
        x = RNG.standard_normal(shape).clip(-4, 4).astype(np.float32)
        gamma = RNG.uniform(0.5, 1.5, shape[-1]).astype(np.float32)
        ranges = {"gamma": net.blob(gamma), "beta": net.blob(gamma * 0)}
        params = {"axis": [-1], "epsilon": 1e-6, "useRMSNorm": True}
        source = net.input(x, quant=quant(4))
        out = net.op("LayerNorm", [source], shape, params=params, weights=ranges, quant=quant(6))
        real = x.astype(np.float64)
        expected[out] = real / np.sqrt((real**2).mean(-1, keepdims=True) + 1e-6) * gamma
    check(net, expected, 70)


def _linear(net: Net, kind: Kind, rows: int, quant) -> tuple[int, Array]:  # type: ignore[no-untyped-def]
    x = RNG.standard_normal((rows, 64, 1, 1)).clip(-4, 4).astype(np.float32)
    bias = (RNG.standard_normal(48) * 0.1).astype(np.float32)
    real, params, ranges = weights(net, kind, 48, 64)
    want = x[:, :, 0, 0].astype(np.float64) @ real.T + bias
    params["common"] = {"outputCount": 48, "inputCount": 64}
    ranges["bias"] = net.blob(bias)
    limit = float(np.abs(want).max()) * 1.02
    out = net.op(
        "Convolution", [net.input(x, format="NC4HW4", quant=quant(4))], (rows, 48, 1, 1),
        params=params, weights=ranges, format="NC4HW4", quant=quant(limit),
    )  # fmt: skip
    return out, want[:, :, None, None]


@STYLES
def test_linear(quant) -> None:  # type: ignore[no-untyped-def]
    net, expected = Net(), {}
    for kind in (Kind("i8"), Kind("i4"), Kind("i4", blocks=4), Kind("i8", asymmetric=True)):
        for rows in (1, 5, 100):
            out, want = _linear(net, kind, rows, quant)
            expected[out] = want
    check(net, expected, 58)


def test_a_bias_has_the_scale_of_the_accumulator() -> None:
    net = Net()
    net.output(_linear(net, Kind("i8"), 5, symmetric)[0])
    made = net.translated()
    by_name = {t.name.rsplit("_", 1)[-1]: t for t in made.graph.tensors}
    weight, bias = by_name["weight"].quant, by_name["bias"]
    assert isinstance(weight, AxisScaleOffset) and isinstance(bias.quant, AxisScaleOffset)
    assert bias.dtype == "SFIXED_POINT_32"
    scale = np.float32(symmetric(4).scale)
    want = scale * np.array(weight.scales, np.float32)
    assert np.array(bias.quant.scales, np.float32).tobytes() == want.tobytes()


def test_scales_in_the_graph_are_the_models() -> None:
    net = Net()
    a = net.input(A, quant=symmetric(4))
    out = net.op("UnaryOp", [a], A.shape, params={"opType": "NEG"}, quant=symmetric(3))
    net.output(out)
    quants = {t.quant for t in net.translated().graph.tensors if t.quant is not None}
    assert quants == {ScaleOffset(symmetric(v).scale, -32768) for v in (4, 3)}
