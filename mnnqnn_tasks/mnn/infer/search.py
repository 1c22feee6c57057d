"""Ops that look for elements or put them somewhere: only their shapes are told here."""

from __future__ import annotations

from collections.abc import Sequence

from mnnqnn_tasks.mnn.infer.facts import TensorFact, axis_of, require
from mnnqnn_tasks.mnn.infer.registry import rule
from mnnqnn_tasks.mnn.table import Table


@rule("ArgMax", "ArgMin")
def arg_max(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """The axis goes away (not for packed tensors, where MNN keeps an old rule)."""
    x = ins[0]
    require(x.format != "NC4HW4")
    axis = axis_of(op.main.axis, x.rank)
    return [TensorFact((*x.dims[:axis], *x.dims[axis + 1 :]), "int32", x.format)]


@rule("TopKV2")
def top_k(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """The ``ins[1]`` largest along the last axis or the one in ``ins[2]``, and where."""
    require(len(ins) in (2, 3) and outs == 2)
    x, count = ins[0], ins[1].ints()[0]
    axis = axis_of(ins[2].ints()[0] if len(ins) == 3 else -1, x.rank)
    require(0 <= count <= x.dims[axis])
    dims = (*x.dims[:axis], count, *x.dims[axis + 1 :])
    return [TensorFact(dims, x.dtype, x.format), TensorFact(dims, "int32", ins[1].format)]


@rule("OneHot")
def one_hot(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """A new axis as long as ``ins[1]`` says; values of the type of ``ins[2]``."""
    require(len(ins) == 4)
    x, depth = ins[0], ins[1].ints()[0]
    axis = axis_of(op.main.axis, x.rank + 1)
    require(depth >= 0)
    return [TensorFact((*x.dims[:axis], depth, *x.dims[axis:]), ins[2].dtype, x.format)]


@rule("GatherElements")
def gather_elements(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Has the shape of the indices, ``ins[1]``."""
    require(len(ins) >= 2)
    return [TensorFact(ins[1].dims, ins[0].dtype, ins[0].format)]


@rule("ScatterNd")
def scatter_nd(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Has the shape in ``ins[2]``, the type of the updates."""
    require(len(ins) >= 3)
    dims = tuple(ins[2].ints())
    require(min(dims, default=0) >= 0)
    return [TensorFact(dims, ins[1].dtype, ins[1].format)]
