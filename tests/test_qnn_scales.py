"""What QNN makes of scales whose meaning its headers leave open, asked of its emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from qnn_graphs import NO_TRANSPOSE, put, save
from translate_graphs import TARGET, db

from mnnqnn_tasks.qnn import run
from mnnqnn_tasks.qnn.ir import (
    AxisScaleOffset,
    BlockwiseExpansion,
    BwAxisScaleOffset,
    Graph,
    Node,
    Quant,
    ScalarParam,
    ScaleOffset,
    Tensor,
    TensorParam,
)

PLAIN_CONVOLUTION = (
    TensorParam("stride", "UINT_32", (2,), (1, 1)),
    TensorParam("pad_amount", "UINT_32", (2, 2), (0, 0, 0, 0)),
    TensorParam("dilation", "UINT_32", (2,), (1, 1)),
    ScalarParam("group", "UINT_32", 1),
)


@pytest.mark.parametrize("lowest", [1, 16])
def test_a_block_scale_of_four_bits_goes_up_to_sixteen(lowest: int, tmp_path: Path) -> None:
    random = np.random.default_rng(lowest)
    inner, outer, blocks = 64, 32, 2
    stored = random.integers(-7, 8, (1, 1, inner, outer)).astype(np.int8)
    factors = random.integers(lowest, 17, (outer, blocks))
    factors[:, 0] = 16
    scales = tuple(float(s) for s in random.uniform(0.0005, 0.005, outer).astype(np.float32))
    real = stored[0, 0] * np.repeat(factors.T, inner // blocks, axis=0) * np.array(scales)
    given = random.uniform(-1, 1, inner).astype(np.float32)
    wanted = given.astype(np.float64) @ real
    quant = BlockwiseExpansion(
        3, scales, (0,) * outer, blocks, 4, tuple(int(f) for f in factors.ravel())
    )
    step = ScaleOffset(1.1 / 32767, -32768)
    wide = ScaleOffset(float(np.abs(wanted).max()) * 1.1 / 32767, -32768)
    tensors = [
        Tensor("t0", "APP_WRITE", "FLOAT_32", (1, 1, 1, inner)),
        Tensor("x", "NATIVE", "UFIXED_POINT_16", (1, 1, 1, inner), step),
        Tensor("w", "STATIC", "SFIXED_POINT_8", stored.shape, quant, put(tmp_path / "b", stored)),
        Tensor("y", "NATIVE", "UFIXED_POINT_16", (1, 1, 1, outer), wide),
        Tensor("t1", "APP_READ", "FLOAT_32", (1, 1, 1, outer)),
    ]
    nodes = [
        Node("in", "Quantize", ("t0",), ("x",)),
        Node("conv", "Conv2d", ("x", "w"), ("y",), PLAIN_CONVOLUTION),
        Node("out", "Dequantize", ("y",), ("t1",)),
    ]
    net = save(tmp_path, Graph("g", tensors, nodes))
    (found,) = run.execute(net, tmp_path / "b", TARGET, [{"t0": given.tobytes()}])
    assert db(wanted, np.frombuffer(found["t1"], np.float32)) > 75


@pytest.mark.parametrize("bits", [4, 8])
def test_scales_of_a_matmul_weight_belong_to_its_outputs_whatever_the_axis(
    bits: int, tmp_path: Path
) -> None:
    """MNN says axis 0 of [in, out] and means the outputs; both axes must mean the same."""
    random = np.random.default_rng(bits)
    most = (1 << (bits - 1)) - 1
    stored = random.integers(-most, most + 1, (64, 64)).astype(np.int8)
    scales = tuple(float(s) for s in random.uniform(0.001, 0.1, 64).astype(np.float32))
    given = random.normal(size=64).astype(np.float32)
    wanted = given.astype(np.float64) @ (stored * np.array(scales))
    outputs = []
    for axis in (0, 1):
        quant: Quant = AxisScaleOffset(axis, scales, (0,) * 64)
        if bits == 4:
            quant = BwAxisScaleOffset(axis, 4, scales, (0,) * 64)
        blob = put(tmp_path / "b", stored)
        tensors = [
            Tensor("t0", "APP_WRITE", "FLOAT_32", (1, 64)),
            Tensor("x", "NATIVE", "FLOAT_16", (1, 64)),
            Tensor("w", "STATIC", "SFIXED_POINT_8", (64, 64), quant, blob),
            Tensor("y", "NATIVE", "FLOAT_16", (1, 64)),
            Tensor("t1", "APP_READ", "FLOAT_32", (1, 64)),
        ]
        nodes = [
            Node("in", "Cast", ("t0",), ("x",)),
            Node("mm", "MatMul", ("x", "w"), ("y",), NO_TRANSPOSE),
            Node("out", "Cast", ("y",), ("t1",)),
        ]
        net = save(tmp_path, Graph("g", tensors, nodes))
        (found,) = run.execute(net, tmp_path / "b", TARGET, [{"t0": given.tobytes()}])
        outputs.append(found["t1"])
    assert outputs[0] == outputs[1]
    assert db(wanted, np.frombuffer(outputs[0], np.float32)) > 60
