"""Tiny QNN graphs that tests compose, and a blob store to keep their weights in."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from mnnqnn_tasks.qnn import netjson
from mnnqnn_tasks.qnn.ir import (
    AxisScaleOffset,
    Blob,
    BwAxisScaleOffset,
    Graph,
    Node,
    Quant,
    ScalarParam,
    ScaleOffset,
    Tensor,
    TensorParam,
)

NO_TRANSPOSE = (
    ScalarParam("transpose_in0", "BOOL_8", False),
    ScalarParam("transpose_in1", "BOOL_8", False),
)


def put(blobs: Path, array: np.ndarray) -> Blob:
    """Store an array's bytes."""
    data = np.ascontiguousarray(array).tobytes()
    name = hashlib.sha256(data).hexdigest()
    blobs.mkdir(exist_ok=True)
    (blobs / name).write_bytes(data)
    return Blob(name, len(data))


def save(folder: Path, graph: Graph) -> Path:
    path = folder / f"{graph.name}_net.json"
    netjson.save(graph, path)
    return path


class Weights:
    """int8 weights [k, n] with a scale per output channel; ``real`` is what they mean."""

    def __init__(self, k: int, n: int, bits: int = 8, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        limit = (1 << (bits - 1)) - 1
        self.stored = rng.integers(-limit, limit + 1, (k, n), dtype=np.int8)
        self.scales = (rng.uniform(0.5, 1.5, n) * 0.02).astype(np.float32)
        self.real = self.stored * self.scales
        scales = tuple(map(float, self.scales))
        self.quant: Quant = (
            AxisScaleOffset(1, scales, (0,) * n)
            if bits == 8
            else BwAxisScaleOffset(1, bits, scales, (0,) * n)
        )


def matmul(name: str, rows: int, weights: Weights, blobs: Path) -> Graph:
    """t0 [rows, k] float32 -> fp16 -> times weights -> t1 [rows, n] float32."""
    k, n = weights.stored.shape
    blob = put(blobs, weights.stored)
    return Graph(
        name,
        [
            Tensor("t0", "APP_WRITE", "FLOAT_32", (rows, k)),
            Tensor("w", "STATIC", "SFIXED_POINT_8", (k, n), weights.quant, blob),
            Tensor("x", "NATIVE", "FLOAT_16", (rows, k)),
            Tensor("y", "NATIVE", "FLOAT_16", (rows, n)),
            Tensor("t1", "APP_READ", "FLOAT_32", (rows, n)),
        ],
        [
            Node("in", "Cast", ("t0",), ("x",)),
            Node("mm", "MatMul", ("x", "w"), ("y",), NO_TRANSPOSE),
            Node("out", "Cast", ("y",), ("t1",)),
        ],
    )


def rms_norm(name: str, rows: int, gamma: np.ndarray, epsilon: float, blobs: Path) -> Graph:
    """t0 [1, rows, n] -> one leading dimension -> RmsNorm over the last -> t1 [1, rows, n]."""
    n = len(gamma)
    blob = put(blobs, gamma.astype(np.float16))
    return Graph(
        name,
        [
            Tensor("t0", "APP_WRITE", "FLOAT_32", (1, rows, n)),
            Tensor("gamma", "STATIC", "FLOAT_16", (n,), None, blob),
            Tensor("x", "NATIVE", "FLOAT_16", (1, rows, n)),
            Tensor("flat", "NATIVE", "FLOAT_16", (rows, n)),
            Tensor("normed", "NATIVE", "FLOAT_16", (rows, n)),
            Tensor("y", "NATIVE", "FLOAT_16", (1, rows, n)),
            Tensor("t1", "APP_READ", "FLOAT_32", (1, rows, n)),
        ],
        [
            Node("in", "Cast", ("t0",), ("x",)),
            Node("flatten", "Reshape", ("x",), ("flat",)),
            Node(
                "norm",
                "RmsNorm",
                ("flat", "gamma"),
                ("normed",),
                (
                    ScalarParam("epsilon", "FLOAT_32", epsilon),
                    TensorParam("axes", "UINT_32", (1,), (1,)),
                ),
            ),
            Node("unflatten", "Reshape", ("normed",), ("y",)),
            Node("out", "Cast", ("y",), ("t1",)),
        ],
    )


def fixed16_matmul(
    name: str, weights: Weights, blobs: Path, params: tuple[ScalarParam, ...]
) -> Graph:
    """As `matmul` with 16-bit fixed-point activations in -4..4 and -128..128."""
    k, n = weights.stored.shape
    small = ScaleOffset(float(np.float32(4 / 32767)), -32768)
    large = ScaleOffset(float(np.float32(128 / 32767)), -32768)
    blob = put(blobs, weights.stored)
    return Graph(
        name,
        [
            Tensor("t0", "APP_WRITE", "FLOAT_32", (16, k)),
            Tensor("w", "STATIC", "SFIXED_POINT_8", (k, n), weights.quant, blob),
            Tensor("x", "NATIVE", "UFIXED_POINT_16", (16, k), small),
            Tensor("y", "NATIVE", "UFIXED_POINT_16", (16, n), large),
            Tensor("t1", "APP_READ", "FLOAT_32", (16, n)),
        ],
        [
            Node("in", "Quantize", ("t0",), ("x",)),
            Node("mm", "MatMul", ("x", "w"), ("y",), params),
            Node("out", "Dequantize", ("y",), ("t1",)),
        ],
    )


def snr(reference: np.ndarray, data: bytes) -> float:
    """Signal-to-noise ratio of float32 ``data`` against ``reference``, dB."""
    got = np.frombuffer(data, np.float32).reshape(reference.shape).astype(np.float64)
    noise = float(((reference - got) ** 2).sum())
    return 10 * float(np.log10((reference.astype(np.float64) ** 2).sum() / noise))
