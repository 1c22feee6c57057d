"""A subgraph: everything that translation needs, and nothing else.

The file ``subgraphs/<graph>.json`` that `partition` writes per graph is a complete,
canonical description of one QNN graph to be: ops, tensors, shapes, folded constants and
the digests of the weight bytes.  It has no path, no offset and no target, so its bytes
change only when the graph changes: its SHA-256 is the subgraph's identity.  Where the
bytes behind a digest lie is written beside it in ``sources.json``, which nothing
depends on, because what is read through it is checked by content.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

DType = Literal["float32", "int32", "int8", "uint8", "int64"]
Format = Literal["NCHW", "NHWC", "NC4HW4"]


@dataclass(frozen=True)
class ByteRef:
    """Bytes of a model file by content: SHA-256 (hex) and length."""

    sha256: str
    size: int


@dataclass(frozen=True)
class QuantInfo:
    """Static activation quantization of a tensor (MNN TensorQuantInfo).

    ``real = scale * (stored - zero)``, ``stored`` clamped to ``min..max``; ``dtype`` is
    MNN's DataType name, for instance ``DT_INT16``.
    """

    scale: float
    zero: float
    min: float
    max: float
    dtype: str


@dataclass(frozen=True)
class SubTensor:
    """A tensor of a subgraph; ids count from 0 in order of first use.

    Attributes:
        dims: shape as MNN sees it (NC4HW4 tensors in NCHW order).
        format: MNN's layout of the tensor.
        boundary: index of the tensor in the original ``llm.mnn`` where it crosses the
            subgraph's border (its QNN name is then ``t<index>``), else ``None``.
        const: folded or literal constant.  Its values, flat in row-major order, where
            they are folded (at most 4096 of them) or the model holds up to 64 of them
            in place; else a `ByteRef` to little-endian values of ``dtype``.  In JSON
            infinities and NaN are the strings ``inf``, ``-inf`` and ``nan``.
        quant: only on float tensors; ``quantInfo`` on integer tensors means nothing
            and is dropped by the partitioner.
    """

    id: int
    dims: tuple[int, ...]
    dtype: DType
    format: Format
    boundary: int | None = None
    const: tuple[float | int, ...] | ByteRef | None = None
    quant: QuantInfo | None = None


@dataclass(frozen=True)
class SubOp:
    """An op of a subgraph.

    Attributes:
        type: MNN OpType name.
        name: the op's name in the model (QNN node and tensor names derive from it).
        inputs, outputs: tensor ids; -1 for an absent optional input.
        params: the op's parameter table, present fields only, as plain JSON values
            (nested tables as dicts with their ``_type``), without ``external`` and
            without vectors of more than 64 numbers (``mnn/params.py``).
        weights: large data by role.  Parts of ``external``: for a Convolution
            ``weight``, ``scale``, ``bias``, ``index``; for a LayerNorm ``gamma``,
            ``beta``.  Long vectors in place: the path of their field.
    """

    type: str
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    params: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, ByteRef] = field(default_factory=dict)


@dataclass(frozen=True)
class Subgraph:
    """One graph to translate.

    ``inputs`` and ``outputs`` are tensor ids, in ascending order of the original tensor
    index: the order of the Plugin op's ``inputs`` and ``outputs``.
    """

    graph: str
    tensors: tuple[SubTensor, ...]
    ops: tuple[SubOp, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
