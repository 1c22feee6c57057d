"""Convolution weights in MNN's storage forms, for the tests of translate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from translate_graphs import Array, Net

from mnnqnn_tasks.partition.subgraph import ByteRef

RNG = np.random.default_rng(4)


def packed_nibbles(values: Array) -> bytes:
    """MNN's dense form (IDST type 1) of 4-bit ``values`` [rows, columns]."""
    flat = (values.ravel() + 8).astype(np.uint8)
    head = bytes([2]) + np.array(values.shape, "<u2").tobytes()
    samples = bytes([16]) + np.arange(-8, 8, dtype=np.int8).tobytes()
    return head + samples + ((flat[0::2] << 4) | flat[1::2]).astype(np.uint8).tobytes()


@dataclass(frozen=True)
class Kind:
    """``f32``, ``f16``, ``i8`` or ``i4``, blocks of a row, and whether it is asymmetric."""

    store: str
    blocks: int = 1
    asymmetric: bool = False


def weights(
    net: Net, kind: Kind, rows: int, columns: int, gain: float = 1.0
) -> tuple[Array, dict[str, Any], dict[str, ByteRef]]:
    """Random weights: the real values [rows, columns], op parameters and byte ranges."""
    if kind.store == "f32":
        real = (RNG.standard_normal((rows, columns)) * 0.2 * gain).astype(np.float32)
        return real, {}, {"weight": net.blob(real)}
    if kind.store == "f16":
        stored = (RNG.standard_normal((rows, columns)) * 0.2 * gain).astype(np.float16)
        params = {"quanParameter": {"type": 3, "quantScale": 1.0}}
        return stored.astype(np.float32), params, {"weight": net.blob(stored)}
    half = 1 << (int(kind.store[1:]) - 1)
    integers = RNG.integers(-half, half, (rows, columns)).astype(np.int8)
    scales = RNG.uniform(0.1, 0.4, (rows, kind.blocks)).astype(np.float32) * np.float32(gain / half)
    offsets = np.zeros_like(scales)
    if kind.asymmetric:
        offsets = (RNG.standard_normal(scales.shape) * 0.05).astype(np.float32)
    blocks = integers.reshape(rows, kind.blocks, -1)
    real = (blocks * scales[..., None] + offsets[..., None]).reshape(rows, columns)
    alpha = np.stack([offsets, scales], -1) if kind.asymmetric else scales
    params = {
        "quanParameter": {
            "type": 4 if half == 128 else 1,
            "quantScale": 1.0,
            "aMin": 1,
            "readType": rows if kind.asymmetric else 0,
        }
    }
    data = integers.tobytes() if half == 128 else packed_nibbles(integers)
    return real, params, {"weight": net.blob(data), "scale": net.blob(alpha)}
