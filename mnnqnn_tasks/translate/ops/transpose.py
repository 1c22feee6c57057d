"""Permute (axes in the op) and Transpose (axes in a constant input)."""

from __future__ import annotations

from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.translate.builder import Builder
from mnnqnn_tasks.translate.consts import const_ints
from mnnqnn_tasks.translate.ops.shape import transpose
from mnnqnn_tasks.translate.params import param
from mnnqnn_tasks.translate.registry import translates


def _perm(op: SubOp, subgraph: Subgraph) -> tuple[int, ...] | None:
    if op.type == "Permute":
        axes = param(op, "Permute", "dims")
        return None if axes is None else tuple(int(a) for a in axes)
    return const_ints(subgraph, op.inputs[1]) if len(op.inputs) > 1 else None


def _supports(op: SubOp, subgraph: Subgraph) -> str | None:
    rank = len(subgraph.tensors[op.inputs[0]].dims)
    perm = _perm(op, subgraph)
    if perm is None:
        return "the order of the axes is not constant"
    if sorted(perm) != list(range(rank)):
        return f"axes {list(perm)} of a tensor with {rank}"
    return None


@translates("Permute", "Transpose", inputs=(1, 2), supports=_supports)
def translate(builder: Builder, op: SubOp) -> None:
    """Axis ``i`` of the output is axis ``perm[i]`` of the input."""
    perm = _perm(op, builder.subgraph)
    assert perm is not None
    transpose(builder, op.inputs[0], op.outputs[0], perm)
