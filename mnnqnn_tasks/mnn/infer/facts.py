"""What is known of a tensor before anything runs: shape, type, layout, perhaps values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

from numpy.typing import NDArray

Array = NDArray[Any]

#: Values of tensors larger than this are not computed: folding is meant for shape
#: arithmetic and small tables, and holding the results costs memory.
MAX_VALUES = 1 << 18

#: MNN DataType -> the type that MNN's CPU holds it in (``Tensor::setType``).
DTYPES: dict[str, str] = {
    "DT_FLOAT": "float32",
    "DT_DOUBLE": "float32",
    "DT_INT32": "int32",
    "DT_INT64": "int32",
    "DT_BOOL": "int32",
    "DT_QINT32": "int32",
    "DT_INT8": "int8",
    "DT_QINT8": "int8",
    "DT_UINT8": "uint8",
    "DT_QUINT8": "uint8",
}


@dataclass(frozen=True, eq=False, slots=True)
class TensorFact:
    """Facts of one tensor.

    Attributes:
        dims: the shape as MNN sees it; NC4HW4 tensors in NCHW order; ``()`` a scalar.
        dtype: numpy name of the element type: float32, int32, int8, uint8.
        format: MNN's layout: NCHW, NHWC or NC4HW4.
        value: the elements with shape ``dims``, where all of them are known.
    """

    dims: tuple[int, ...]
    dtype: str
    format: str
    value: Array | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    def ints(self) -> list[int]:
        """The values as Python integers, flat.

        Raises:
            Unknown: when the values are not known.
        """
        if self.value is None:
            raise Unknown("a value that the shape depends on is not known")
        return cast("list[int]", self.value.reshape(-1).tolist())


class Unknown(Exception):
    """Raised by a rule that cannot tell; the outputs of the op are then unknown."""


def require(condition: bool, why: str = "the op's inputs do not fit it") -> None:
    """Raise `Unknown` unless ``condition`` holds."""
    if not condition:
        raise Unknown(why)


def axis_of(axis: int, rank: int) -> int:
    """``axis`` counted from the front.

    Raises:
        Unknown: when there is no such axis.
    """
    front = axis + rank if axis < 0 else axis
    require(0 <= front < rank, f"axis {axis} of a tensor with {rank} dimensions")
    return front


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape, aligned at the last dimension.

    Raises:
        Unknown: when two dimensions differ and neither is 1.
    """
    rank = max(len(s) for s in shapes)
    out = [1] * rank
    for shape in shapes:
        for i, dim in enumerate(shape, rank - len(shape)):
            if dim != out[i]:
                require(dim == 1 or out[i] == 1, "the shapes do not broadcast")
                out[i] = out[i] * dim
    return tuple(out)


def of_value(value: Array, format: str) -> TensorFact:
    """The fact of a tensor whose elements are known."""
    return TensorFact(value.shape, value.dtype.name, format, value)


def known(*facts: TensorFact) -> bool:
    """Whether the values of all ``facts`` are known."""
    return all(f.value is not None for f in facts)
