"""How one value of a subgraph is held in a QNN graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mnnqnn_tasks.partition.subgraph import QuantInfo
from mnnqnn_tasks.qnn.ir import Quant, ScaleOffset

#: ``float`` FLOAT_16, ``fixed`` UFIXED_POINT_16, ``int`` INT_32, ``bool`` BOOL_8, and
#: ``wide`` FLOAT_32, which exists at the border only.
Form = Literal["float", "fixed", "int", "bool", "wide"]

DTYPE_OF: dict[Form, str] = {
    "float": "FLOAT_16",
    "fixed": "UFIXED_POINT_16",
    "int": "INT_32",
    "bool": "BOOL_8",
    "wide": "FLOAT_32",
}

#: QNN op that turns one form into another; a pair that is absent goes over ``float``.
CONVERSIONS: dict[tuple[Form, Form], str] = {
    ("wide", "float"): "Cast",
    ("float", "wide"): "Cast",
    ("wide", "fixed"): "Quantize",
    ("fixed", "wide"): "Dequantize",
    ("float", "fixed"): "Quantize",
    ("fixed", "float"): "Dequantize",
    # A Cast to bool and back would be optimized away with the comparison to zero.
    ("int", "bool"): "ElementWiseNotEqual",
    ("float", "bool"): "ElementWiseNotEqual",
    ("bool", "int"): "Cast",
    ("int", "float"): "Cast",
    ("bool", "float"): "Cast",
}

#: The largest finite FLOAT_16.
FLOAT16_MAX = 65504.0


@dataclass(frozen=True)
class Stored:
    """A QNN tensor that holds a value: the same elements in row-major order.

    ``dims`` may group them otherwise than MNN's shape of the value does.
    """

    name: str
    form: Form
    dims: tuple[int, ...]
    quant: Quant | None = None

    @property
    def dtype(self) -> str:
        return DTYPE_OF[self.form]


#: How far MNN's integers of a type lie below QNN's unsigned ones.
_UNSIGNED_SHIFT = {"DT_INT16": 32768, "DT_QINT16": 32768, "DT_UINT16": 0, "DT_QUINT16": 0}


def activation_encoding(info: QuantInfo) -> ScaleOffset | None:
    """The UFIXED_POINT_16 encoding of MNN's static 16-bit activation quantization.

    MNN's stored integers are signed for DT_INT16 (range -32767..32767 around ``zero``)
    and unsigned for DT_UINT16; QNN's are unsigned and ``real = scale * (stored +
    offset)``, so a signed zero moves up by 32768.  The scale stays bit for bit.

    ``None`` for what has no such encoding: other widths, a zero that is no integer, a
    scale that is no positive number.  These tensors are computed in fp16, which loses
    less than the quantization that they ask for.
    """
    shift, zero = _UNSIGNED_SHIFT.get(info.dtype), info.zero
    if shift is None or not 0 < np.float32(info.scale) < np.inf:
        return None
    if not abs(zero) <= 65535 or zero != int(zero):
        return None
    return ScaleOffset(float(np.float32(info.scale)), -(int(zero) + shift))


def fit_encoding(values: NDArray[np.float32]) -> ScaleOffset:
    """The tightest 16-bit encoding that holds ``values`` and an exact zero."""
    low = min(float(values.min(initial=0.0)), 0.0)
    high = max(float(values.max(initial=0.0)), 0.0)
    scale = float(np.float32((high - low) / 65535.0)) or 1.0
    return ScaleOffset(scale, -min(65535, max(0, round(-low / scale))))


def quantize(values: NDArray[np.float32], encoding: ScaleOffset) -> NDArray[np.uint16]:
    """``values`` as UFIXED_POINT_16 under ``encoding``, rounded to nearest, clipped."""
    stored = np.rint(values.astype(np.float64) / encoding.scale) - encoding.offset
    clipped: NDArray[np.uint16] = np.clip(stored, 0, 65535).astype(np.uint16)
    return clipped


def to_float16(values: NDArray[np.float32]) -> NDArray[np.float16]:
    """``values`` as FLOAT_16; what is out of range becomes the largest finite value.

    MNN's masks use -3.4e38 or minus infinity; an infinity would give NaN in products.
    """
    clipped = np.clip(values, -FLOAT16_MAX, FLOAT16_MAX)
    return clipped.astype(np.float16)
