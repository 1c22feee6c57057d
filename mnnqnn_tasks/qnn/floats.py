"""Shortest decimals that give a float32 back exactly.

The text is chosen so that parsing it as a double and rounding that to float32 gives the
value that went in: the way every JSON reader and every C compiler takes it.
"""

from __future__ import annotations

import math
import operator
import struct
from array import array
from collections.abc import Sequence

_MIN_NORMAL = 1.1754943508222875e-38


def f32(value: float) -> float:
    """``value`` rounded to float32."""
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)


def f32_tuple(values: Sequence[float]) -> tuple[float, ...]:
    """Every value rounded to float32."""
    return tuple(array("f", values))


def shortest(values: Sequence[float]) -> list[str]:
    """Decimal text of each value (rounded to float32), as few digits as possible.

    Six digits or fewer suffice exactly where ``%.6g`` gives the value back; nine always
    do.  Whole lists are formatted at once because a model has hundreds of thousands of
    scales.

    Raises:
        ValueError: a value is not finite.
        OverflowError: a value is beyond float32's range.
    """
    exact = array("f", values).tolist()
    if not all(map(math.isfinite, exact)):
        raise ValueError("not a finite number")
    best, right = _format(exact, 8)
    rest = [i for i, ok in enumerate(right) if not ok]
    for i, text in zip(rest, _format([exact[i] for i in rest], 9)[0], strict=True):
        best[i] = text
    fewer = [i for i, ok in enumerate(right) if ok]
    for digits in (7, 6):
        texts, right = _format([exact[i] for i in fewer], digits)
        found = [(i, text) for i, text, ok in zip(fewer, texts, right, strict=True) if ok]
        for i, text in found:
            best[i] = text
        fewer = [i for i, _ in found]
    for i, value in enumerate(exact):
        if value and abs(value) < _MIN_NORMAL:
            best[i] = _shortest_denormal(value)
    return best


def _format(values: list[float], digits: int) -> tuple[list[str], list[bool]]:
    """Each value with so many digits, and whether that gives it back."""
    texts = (f"%.{digits}g " * len(values) % tuple(values)).split()
    return texts, list(map(operator.eq, array("f", map(float, texts)), values))


def _shortest_denormal(value: float) -> str:
    """Denormals have fewer than six digits of precision: try them all."""
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if f32(float(text)) == value:
            return text
    raise AssertionError(value)
