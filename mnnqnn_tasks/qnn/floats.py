"""Shortest decimals that give a float32 back exactly.

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


def shortest(values: Sequence[float]) -> list[str]:
    """Decimal text of each value (rounded to float32), as few digits as possible.

    Raises:
        ValueError: a value is not finite.
        OverflowError: a value is beyond float32's range.
    """
    exact = array("f", values)
    if not all(map(math.isfinite, exact)):
        raise ValueError("not a finite number")
    return list(_texts(exact.tobytes()))


@functools.lru_cache(maxsize=64)  # the graphs of one weight have the same scales
def _texts(data: bytes) -> tuple[str, ...]:
    """The texts of float32s given as bytes."""
    import numpy as np  # the processes that only read graphs do without

    exact = np.frombuffer(data, np.float32)
    texts: list[str] = exact.astype("U").tolist()
    # numpy finds the fewest digits that name a float32; read as a double and rounded, they
    # could in theory name its neighbour.
    for i in np.flatnonzero(np.array(texts, np.float64).astype(np.float32) != exact).tolist():
        texts[i] = f"{exact[i]:.9g}"
    return tuple(texts)
