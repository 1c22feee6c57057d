"""Decimals that give a float32 back exactly.

The text is chosen so that parsing it as a double and rounding that to float32 gives the
value that went in: the way every JSON reader and every C compiler takes it.
"""

from __future__ import annotations

import functools
import math
import struct
from array import array
from collections.abc import Sequence


def f32(value: float) -> float:
    """``value`` rounded to float32."""
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)


def f32_tuple(values: Sequence[float]) -> tuple[float, ...]:
    """Every value rounded to float32."""
    return tuple(array("f", values))


def decimals(values: Sequence[float]) -> list[str]:
    """Decimal text of each value (rounded to float32) that gives it back exactly.

    Nine significant digits always do, and finding fewer costs more than reading the rest.

    Raises:
        ValueError: a value is not finite.
        OverflowError: a value is beyond float32's range.
    """
    return list(_texts(array("f", values).tobytes()))


@functools.lru_cache(maxsize=64)  # a source and a net.json of one graph say the same scales
def _texts(data: bytes) -> tuple[str, ...]:
    """The texts of float32s given as bytes."""
    exact = array("f", data)
    texts = ("%.9g " * len(exact) % tuple(exact)).split()
    if not all(map(math.isfinite, exact)):
        raise ValueError("not a finite number")
    if "-0" in texts:  # an integer to JSON, and those have no negative zero
        texts = ["-0.0" if text == "-0" else text for text in texts]
    return tuple(texts)
