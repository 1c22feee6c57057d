"""Convolutions in every storage form of weights against numpy, on the emulator."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from translate_graphs import Array, Net, check, half
from translate_weights import RNG, Kind, weights

from mnnqnn_tasks.qnn.ir import AxisScaleOffset, BwAxisScaleOffset, Tensor

KINDS = [
    Kind("f32"),
    Kind("f16"),
    Kind("i8"),
    Kind("i4"),
    Kind("i8", blocks=2),
    Kind("i4", blocks=4),
    Kind("i8", asymmetric=True),
    Kind("i4", asymmetric=True),
    Kind("i4", blocks=2, asymmetric=True),
]


def _linear(
    net: Net, kind: Kind, rows: int = 5, mean: float = 0.0, **common: object
) -> tuple[int, Array]:
    x = (RNG.standard_normal((rows, 64, 1, 1)) + mean).astype(np.float32)
    bias = RNG.standard_normal(48).astype(np.float32)
    real, params, ranges = weights(net, kind, 48, 64)
    params["common"] = {"outputCount": 48, "inputCount": 64, **common}
    ranges["bias"] = net.blob(bias)
    out = net.op(
        "Convolution", [net.input(x, format="NC4HW4")], (rows, 48, 1, 1),
        params=params, weights=ranges, format="NC4HW4",
    )  # fmt: skip
    want = half(x)[:, :, 0, 0] @ real.T.astype(np.float64) + half(bias)
    return out, want[:, :, None, None]


def test_linear_of_every_kind() -> None:
    net = Net()
    check(net, dict(_linear(net, kind) for kind in KINDS), 65)


def test_asymmetric_linear_of_rows_with_a_mean_and_large_values() -> None:
    net, expected = Net(), {}
    for kind in (Kind("i8", asymmetric=True), Kind("i4", asymmetric=True)):
        for rows, mean in ((1, 3.0), (16, 3.0), (16, 1500.0)):
            out, want = _linear(net, kind, rows, mean)
            expected[out] = want
    check(net, expected, 60)


def test_linear_with_an_activation() -> None:
    net = Net()
    first, want = _linear(net, Kind("i8"), relu=True)
    second, other = _linear(net, Kind("i4"), relu6=True)
    check(net, {first: np.maximum(want, 0), second: np.clip(other, 0, 6)}, 60)


def _weight_tensor(kind: Kind) -> tuple[Net, Tensor]:
    net = Net()
    net.output(_linear(net, kind)[0])
    graph = net.translated().graph
    return net, next(t for t in graph.tensors if t.name.endswith("_weight"))


@pytest.mark.parametrize("kind", [Kind("i8"), Kind("i4"), Kind("i8", asymmetric=True)])
def test_integers_and_scales_are_the_models_bit_for_bit(kind: Kind) -> None:
    net, tensor = _weight_tensor(kind)
    assert tensor.dtype == "SFIXED_POINT_8" and tensor.dims == (48, 64)
    assert isinstance(tensor.quant, AxisScaleOffset | BwAxisScaleOffset)
    assert tensor.quant.axis == 0 and not any(tensor.quant.offsets)
    stored = np.frombuffer(net.bytes[net.ops[0].weights["scale"].sha256], np.float32)
    stored = stored.reshape(48, -1)[:, -1]
    assert np.array(tensor.quant.scales, np.float32).tobytes() == stored.tobytes()
    assert all(float(np.float32(s)) == s for s in tensor.quant.scales)


@pytest.mark.parametrize(
    "kind", [Kind("f32"), Kind("i4", blocks=4), Kind("i4", blocks=2, asymmetric=True)]
)
def test_what_has_no_exact_encoding_becomes_float16(kind: Kind) -> None:
    _, tensor = _weight_tensor(kind)
    assert (tensor.dtype, tensor.quant) == ("FLOAT_16", None)


@dataclass(frozen=True)
class Case:
    """A spatial convolution; pads are top, left, bottom, right as MNN has them."""

    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    dilate: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    group: int = 1
    kind: Kind = Kind("f32")  # noqa: RUF009
    same: bool = False
    depthwise: bool = False


CASES = [
    Case(),
    Case(kind=Kind("i8")),
    Case(kind=Kind("i4")),
    Case(stride=(2, 2), pads=(1, 1, 1, 1)),
    Case(kernel=(3, 5), dilate=(2, 2), pads=(2, 4, 2, 4)),
    Case(group=2),
    Case(pads=(0, 1, 2, 1)),
    Case(stride=(2, 2), pads=(0, 0, 1, 1), same=True),
    Case(kernel=(1, 1)),
    Case(kernel=(1, 1), kind=Kind("i8")),
    Case(kernel=(1, 1), stride=(2, 2)),
    Case(depthwise=True, pads=(1, 1, 1, 1)),
    Case(depthwise=True, kind=Kind("i8")),
]


def convolved(x: Array, w: Array, case: Case) -> Array:
    """A plain convolution: x [n, c, h, w], w [o, i, kh, kw]."""
    top, left, bottom, right = case.pads
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    span = [(k - 1) * d + 1 for k, d in zip(case.kernel, case.dilate, strict=True)]
    size = [(n - s) // t + 1 for n, s, t in zip(x.shape[2:], span, case.stride, strict=True)]
    out = np.zeros((len(x), len(w), *size))
    per_group = len(w) // (len(w) if case.depthwise else case.group)
    for o, i, a, b in itertools.product(*map(range, w.shape)):
        ys = slice(a * case.dilate[0], None, case.stride[0])
        xs = slice(b * case.dilate[1], None, case.stride[1])
        seen = x[:, o // per_group * w.shape[1] + i, ys, xs]
        out[:, o] += w[o, i, a, b] * seen[:, : size[0], : size[1]]
    return out


def _spatial(net: Net, case: Case) -> tuple[int, Array]:
    x = RNG.standard_normal((1, 8, 10, 12)).astype(np.float32)
    outputs, inputs = 8, 1 if case.depthwise else 8 // case.group
    real, params, ranges = weights(net, case.kind, outputs, inputs * int(np.prod(case.kernel)))
    want = convolved(half(x), real.reshape(outputs, inputs, *case.kernel), case)
    params["common"] = {
        "kernelY": case.kernel[0],
        "kernelX": case.kernel[1],
        "strideY": case.stride[0],
        "strideX": case.stride[1],
        "dilateY": case.dilate[0],
        "dilateX": case.dilate[1],
        "outputCount": outputs,
        "inputCount": 0 if case.depthwise else 8,
        "group": outputs if case.depthwise else case.group,
        "padMode": "SAME" if case.same else "CAFFE",
    }
    if not case.same:
        params["common"]["pads"] = list(case.pads)
    kind = "ConvolutionDepthwise" if case.depthwise else "Convolution"
    source = net.input(x, format="NC4HW4")
    return net.op(kind, [source], want.shape, params=params, weights=ranges), want


def test_spatial_convolutions() -> None:
    net = Net()
    check(net, dict(_spatial(net, case) for case in CASES), 60)
