"""MNN's packed integer weights (``IDSTQuan.buffer``), dense and sparse.

The layouts are those of ``IDSTEncoder.hpp`` and ``ConvolutionCommon.cpp``:

- shape: one byte with the number of dims, then that many uint16 (uint32 if
  ``shapeInt32``), the first being the number of output channels;
- dense (type 1): one byte with the number of sample values (0 means 256), the samples
  (int8), then one index per weight, ``bits`` wide, most significant bit first;
- sparse (type 2): uint32 count of non-zeros, one byte with the width of a step, the
  steps, one byte with the number of samples (0 means 256), the samples, the indices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mnnqnn_tasks.errors import ModelFileError

Int8s = npt.NDArray[np.int8]
UInt8s = npt.NDArray[np.uint8]
Float32s = npt.NDArray[np.float32]

_NIBBLES = np.array([[(byte >> 4) - 8, (byte & 15) - 8] for byte in range(256)], np.int8)


@dataclass(frozen=True)
class Unpacked:
    """``values`` (flat int8, output channel first), ``bits`` per value, ``shape``."""

    values: Int8s
    bits: int
    shape: tuple[int, ...]


class _Cursor:
    """Reads forward through the bytes of one blob."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.pos = 0

    def take(self, count: int, what: str) -> UInt8s:
        if count > len(self.data) - self.pos:
            raise ModelFileError(
                "damaged quantized weight",
                why=f"its {what} needs {count} bytes, {len(self.data) - self.pos} are left "
                f"of {len(self.data)}",
                todo="copy the whole weight file, or export the model again",
            )
        part = np.frombuffer(self.data, np.uint8, count, self.pos)
        self.pos += count
        return part

    def byte(self, what: str) -> int:
        return int(self.take(1, what)[0])


def _read_shape(cursor: _Cursor, wide: bool) -> tuple[int, ...]:
    dims = cursor.byte("dim count")
    if not 1 <= dims <= 4:
        raise ModelFileError(
            "damaged quantized weight",
            why=f"it claims {dims} dims; 1 to 4 are possible",
            todo="copy the whole weight file, or export the model again",
        )
    kind = "<u4" if wide else "<u2"
    raw = cursor.take(dims * (4 if wide else 2), "shape")
    return tuple(int(size) for size in raw.view(kind))


def _read_samples(cursor: _Cursor) -> Int8s:
    count = cursor.byte("sample count") or 256
    return cursor.take(count, "sample table").view(np.int8)


def split_bits(packed: UInt8s, count: int, bits: int) -> UInt8s:
    """``count`` unsigned numbers of ``bits`` (1 to 8) each, most significant bit first."""
    if bits == 8:
        return packed[:count]
    groups = -(-count // 8)
    padded = np.zeros(groups * bits, np.uint8)
    padded[: len(packed)] = packed
    rows = padded.reshape(groups, bits)
    result = np.empty((groups, 8), np.uint8)
    mask = (1 << bits) - 1
    for index in range(8):
        byte, start = divmod(index * bits, 8)
        shift = 8 - bits - start
        if shift >= 0:
            result[:, index] = (rows[:, byte] >> shift) & mask
        else:
            high = rows[:, byte] << -shift
            result[:, index] = (high | (rows[:, byte + 1] >> (8 + shift))) & mask
    return result.reshape(-1)[:count]


def unpack_dense(data: memoryview, wide_shape: bool) -> Unpacked:
    """Decode a type 1 blob.

    Raises:
        ModelFileError: when the blob is cut short or an index has no sample.
    """
    cursor = _Cursor(data)
    shape = _read_shape(cursor, wide_shape)
    samples = np.sort(_read_samples(cursor))
    count = math.prod(shape)
    bits = max(1, (len(samples) - 1).bit_length())
    packed = cursor.take(-(-bits * count // 8), f"table of {count} {bits}-bit indices")
    half = 1 << (bits - 1)
    linear = len(samples) == 2 * half and bool(np.all(samples == np.arange(-half, half)))
    if linear and bits == 8:
        values = (packed ^ 0x80).view(np.int8)  # index - 128
    elif linear and bits == 4:
        values = _NIBBLES.view(np.int16)[:, 0].take(packed).view(np.int8)[:count]
    else:
        indices = split_bits(packed, count, bits)
        if count and int(indices.max()) >= len(samples):
            raise ModelFileError(
                "damaged quantized weight",
                why=f"index {int(indices.max())} with a table of {len(samples)} samples",
                todo="copy the whole weight file, or export the model again",
            )
        values = samples.take(indices)
    return Unpacked(values, bits, shape)


def _background(alpha: Float32s, channels: int, bits: int) -> Int8s:
    """What the weights that a sparse blob does not list are, per output channel."""
    if len(alpha) != 2 * channels:
        return np.zeros(channels, np.int8)
    low = -(1 << (bits - 1))
    mins, scales = alpha[0::2].astype(np.float64), alpha[1::2].astype(np.float64)
    usable = scales > 1e-6
    ratio = np.divide(-mins, scales, out=np.zeros(channels), where=usable)
    nearest = np.copysign(np.floor(np.abs(ratio) + 0.5), ratio)  # C's round()
    return np.where(usable, nearest + low, low).astype(np.int64).astype(np.int8)


def unpack_sparse(data: memoryview, wide_shape: bool, alpha: Float32s) -> Unpacked:
    """Decode a type 2 blob; ``alpha`` are the scales (and minima) as stored.

    Raises:
        ModelFileError: when the blob is cut short or lists a weight that is not there.
    """
    cursor = _Cursor(data)
    shape = _read_shape(cursor, wide_shape)
    count, channels = math.prod(shape), shape[0]
    listed = int(cursor.take(4, "count of non-zeros").view("<u4")[0])
    step_bits = cursor.byte("step width")
    if step_bits > 8 or listed > count:
        raise ModelFileError(
            "damaged quantized weight",
            why=f"{listed} of {count} weights listed with steps of {step_bits} bits",
            todo="copy the whole weight file, or export the model again",
        )
    steps = np.zeros(listed, np.uint8)
    if step_bits:
        packed = cursor.take(-(-step_bits * listed // 8), "step table")
        steps = split_bits(packed, listed, step_bits)
    raw = _read_samples(cursor)
    samples = np.unique(raw)
    bits = max(1, math.ceil(math.log2(len(raw))))
    packed = cursor.take(-(-bits * listed // 8), f"table of {listed} {bits}-bit indices")
    indices = split_bits(packed, listed, bits)
    places = np.cumsum(steps, dtype=np.int64)
    if listed and (int(indices.max()) >= len(samples) or int(places[-1]) >= count):
        raise ModelFileError(
            "damaged quantized weight",
            why="it lists a weight outside the tensor or without a sample value",
            todo="copy the whole weight file, or export the model again",
        )
    values = np.repeat(_background(alpha, channels, bits), count // max(channels, 1))
    values[places] = samples.take(indices)
    return Unpacked(values, bits, shape)
