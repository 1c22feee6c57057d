"""Shortest decimals that give a float32 back exactly.

The text is chosen so that parsing it as a double and rounding that to float32 gives the
value that went in: the way every JSON reader and every C compiler takes it.
"""

from __future__ import annotations

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
    exact = array("f", values)
    best = [""] * len(exact)
    todo = range(len(exact))
    for digits in (9, 8, 7, 6):
        chosen = [exact[i] for i in todo]
        texts = (f"%.{digits}g " * len(chosen) % tuple(chosen)).split()
        back = array("f", map(float, texts))
        keep = [k for k, value in enumerate(chosen) if back[k] == value]
        if digits == 9 and len(keep) != len(chosen):
            raise ValueError("not a finite number")
        for k in keep:
            best[todo[k]] = texts[k]
        todo = [todo[k] for k in keep]  # type: ignore[assignment]
    for i, value in enumerate(exact):
        if best[i] in ("inf", "-inf"):
            raise ValueError("not a finite number")
        if value and abs(value) < _MIN_NORMAL:
            best[i] = _shortest_denormal(value)
    return best


def _shortest_denormal(value: float) -> str:
    """Denormals have fewer than six digits of precision: try them all."""
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if f32(float(text)) == value:
            return text
    raise AssertionError(value)
