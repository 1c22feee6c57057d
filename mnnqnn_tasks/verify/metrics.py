"""How close two tensors are: cosine, signal-to-noise ratio, largest error.

All sums run in float64, so that a tensor of millions of values adds no error of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        cosine: of the angle between the two tensors as vectors, -1..1; 0 where either
            is all zero and they differ.
        snr_db: ``10 log10(sum(reference^2) / sum((actual - reference)^2))`` in dB;
            infinite where they are equal.
        max_abs_error: largest absolute difference, in the tensor's own unit.
        max_abs_reference: largest absolute reference value, to judge the error by.
        unusable: why the reference cannot judge anything, else ``None``.
        broken: what makes the actual tensor wrong whatever the numbers are, else
            ``None``.
    """

    cosine: float
    snr_db: float
    max_abs_error: float
    max_abs_reference: float
    unusable: str | None = None
    broken: str | None = None


def compare(reference: Array, actual: Array) -> Comparison:
    """Compare ``actual`` with ``reference``.

    Args:
        reference: what the CPU computed; any shape.
        actual: what the NPU computed; as many values, in the same order.

    Returns:
        The three measures; NaN where they cannot be had.  A reference that is all zero
        or has a value that is not finite is ``unusable``: against it, nothing that the
        other side does can be called right.
    """
    want = np.asarray(reference, dtype=np.float64).ravel()
    got = np.asarray(actual, dtype=np.float64).ravel()
    if want.size != got.size:
        return _with(broken=f"{got.size} values instead of {want.size}")
    if want.size == 0:
        return _with(unusable="the tensor is empty")
    if not np.isfinite(want).all():
        bad = int(want.size - np.isfinite(want).sum())
        return _with(unusable=f"{bad} of {want.size} CPU values are not finite")
    peak = float(np.abs(want).max())
    if not np.isfinite(got).all():
        bad = int(got.size - np.isfinite(got).sum())
        return _with(peak, broken=f"{bad} of {got.size} NPU values are not finite")
    error = got - want
    largest = float(np.abs(error).max())
    signal, noise = float(want @ want), float(error @ error)
    if peak == 0.0:
        return Comparison(math.nan, math.nan, largest, 0.0, unusable="all CPU values are zero")
    return Comparison(_cosine(want, got, signal), decibel(signal, noise), largest, peak)


def _with(
    peak: float = math.nan, *, unusable: str | None = None, broken: str | None = None
) -> Comparison:
    return Comparison(math.nan, math.nan, math.nan, peak, unusable, broken)


def _cosine(want: Array, got: Array, signal: float) -> float:
    norm = math.sqrt(signal) * math.sqrt(float(got @ got))
    if norm == 0.0:
        return 0.0
    return max(-1.0, min(1.0, float(want @ got) / norm))


def decibel(signal: float, noise: float) -> float:
    """Power ratio in dB; infinite without noise."""
    if noise == 0.0:
        return math.inf
    if signal == 0.0:
        return -math.inf
    return 10.0 * math.log10(signal / noise)


def agreement(reference: Array, actual: Array) -> tuple[int, int]:
    """How many positions have their largest value at the same index.

    Args:
        reference, actual: logits, ``[..., positions, vocabulary]``.

    Returns:
        Positions that agree, and positions.
    """
    want = np.asarray(reference).reshape(-1, reference.shape[-1])
    got = np.asarray(actual).reshape(want.shape)
    same = want.argmax(axis=1) == got.argmax(axis=1)
    return int(same.sum()), int(same.size)


@dataclass(frozen=True)
class Limits:
    """What a quantized tensor can express: real values ``low..high`` in ``step``s."""

    low: float
    high: float
    step: float


def limits(scale: float, zero: float, lowest: float, highest: float) -> Limits:
    """The limits of ``real = scale * (stored - zero)``, ``stored`` in ``lowest..highest``."""
    ends = sorted((scale * (lowest - zero), scale * (highest - zero)))
    return Limits(ends[0], ends[1], abs(scale))


@dataclass(frozen=True)
class Excursion:
    """Activations that left the range which a tensor was calibrated for.

    Attributes:
        tensor: the tensor's name in the model.
        low, high: the range that its scale can express.
        reached_low, reached_high: the smallest and largest CPU value.
        count: values outside the range.
        fraction: ``count`` over all values, 0..1.
    """

    tensor: str
    low: float
    high: float
    reached_low: float
    reached_high: float
    count: int
    fraction: float


def outside(values: Array, limits: Limits) -> NDArray[np.bool_]:
    """Which values quantization would clip; half a step beyond an end still rounds to it."""
    real = np.asarray(values, dtype=np.float64)
    half = limits.step / 2
    return (real < limits.low - half) | (real > limits.high + half)


def excursion(tensor: str, values: Array, limits: Limits) -> Excursion | None:
    """The part of ``values`` that quantization would clip, or ``None`` if all fit."""
    count = int(outside(values, limits).sum())
    if count == 0:
        return None
    return Excursion(
        tensor,
        limits.low,
        limits.high,
        float(values.min()),
        float(values.max()),
        count,
        count / values.size,
    )
