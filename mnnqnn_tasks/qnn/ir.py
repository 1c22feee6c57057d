"""The graph IR: what a QNN graph is made of, before any library is loaded.

A `Graph` is what ``graph*_net.json`` holds, what the translator emits and what the
linker composes.  Names of data types, op types and parameters are QNN's own, without
the ``QNN_`` prefixes (``FLOAT_16``, ``ElementWiseAdd``, ``axis``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

TensorKind = Literal["APP_WRITE", "APP_READ", "NATIVE", "STATIC"]

#: Bytes per element of every data type that the IR carries.  4-bit types are stored one
#: value per byte, as QNN's API takes them.
DTYPE_BYTES: dict[str, int] = {
    "FLOAT_32": 4,
    "FLOAT_16": 2,
    "INT_8": 1,
    "INT_16": 2,
    "INT_32": 4,
    "INT_64": 8,
    "UINT_8": 1,
    "UINT_16": 2,
    "UINT_32": 4,
    "UINT_64": 8,
    "BOOL_8": 1,
    "SFIXED_POINT_4": 1,
    "SFIXED_POINT_8": 1,
    "SFIXED_POINT_16": 2,
    "SFIXED_POINT_32": 4,
    "UFIXED_POINT_4": 1,
    "UFIXED_POINT_8": 1,
    "UFIXED_POINT_16": 2,
    "UFIXED_POINT_32": 4,
}


@dataclass(frozen=True)
class ScaleOffset:
    """Per tensor: ``real = scale * (stored + offset)`` (Qnn_ScaleOffset_t)."""

    scale: float
    offset: int


@dataclass(frozen=True)
class AxisScaleOffset:
    """Per channel of ``axis`` (Qnn_AxisScaleOffset_t); ``offsets`` as long as ``scales``."""

    axis: int
    scales: tuple[float, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class BwAxisScaleOffset:
    """Per channel with fewer bits than the storage type (Qnn_BwAxisScaleOffset_t)."""

    axis: int
    bitwidth: int
    scales: tuple[float, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class BlockwiseExpansion:
    """Two-level block scales (Qnn_BlockwiseExpansion_t).

    ``scales``/``offsets`` per channel of ``axis``; ``block_scales`` holds
    ``blocks_per_axis`` small integers per channel, each of ``block_scale_bitwidth`` bits.
    """

    axis: int
    scales: tuple[float, ...]
    offsets: tuple[int, ...]
    blocks_per_axis: int
    block_scale_bitwidth: int
    block_scales: tuple[int, ...]


Quant = ScaleOffset | AxisScaleOffset | BwAxisScaleOffset | BlockwiseExpansion


@dataclass(frozen=True)
class Blob:
    """Where a static tensor's bytes are: content address and length.

    The bytes are in the build folder's blob store under ``sha256``; two graphs that
    share a weight name the same blob.
    """

    sha256: str
    size: int


@dataclass(frozen=True)
class Tensor:
    """A tensor of a graph.

    Attributes:
        name: unique in the graph; graph inputs and outputs are ``t<tensor index>``.
        kind: APP_WRITE (graph input), APP_READ (graph output), NATIVE or STATIC.
        dtype: a key of `DTYPE_BYTES`.
        dims: the shape; empty for a scalar tensor is not allowed by QNN.
        quant: the encoding of fixed-point types, ``None`` for float and plain integer.
        blob: for STATIC only, its bytes in little-endian, row-major order.
    """

    name: str
    kind: TensorKind
    dtype: str
    dims: tuple[int, ...]
    quant: Quant | None = None
    blob: Blob | None = None

    @property
    def size(self) -> int:
        """Bytes of the tensor's data."""
        return math.prod(self.dims) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class ScalarParam:
    """A scalar parameter of a node: ``dtype`` FLOAT_32, INT_32, UINT_32 or BOOL_8."""

    name: str
    dtype: str
    value: float | int | bool


@dataclass(frozen=True)
class TensorParam:
    """A parameter of a node that is a small STATIC tensor, values written out in place.

    ``dtype`` is UINT_32, INT_32 or FLOAT_32; ``values`` in row-major order.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    values: tuple[int | float, ...]


Param = ScalarParam | TensorParam


@dataclass(frozen=True)
class Node:
    """An op: its inputs and outputs are names of tensors of the graph."""

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    params: tuple[Param, ...] = ()
    package: str = "qti.aisw"


@dataclass
class Graph:
    """One QNN graph; ``tensors`` and ``nodes`` in the order in which they are created."""

    name: str
    tensors: list[Tensor] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    def inputs(self) -> list[Tensor]:
        """The APP_WRITE tensors in order."""
        return [t for t in self.tensors if t.kind == "APP_WRITE"]

    def outputs(self) -> list[Tensor]:
        """The APP_READ tensors in order."""
        return [t for t in self.tensors if t.kind == "APP_READ"]

    def blobs(self) -> Iterator[Blob]:
        """Every blob that the graph needs, with repeats."""
        return (t.blob for t in self.tensors if t.blob is not None)


#: Reads a blob's bytes by content address.
BlobReader = Callable[[Blob], bytes | memoryview]
