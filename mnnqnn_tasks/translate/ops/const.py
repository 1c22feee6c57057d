"""Const: a value that the op carries with it."""

from __future__ import annotations

from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.translate.builder import Builder
from mnnqnn_tasks.translate.registry import translates


def _supports(op: SubOp, subgraph: Subgraph) -> str | None:
    # The partitioner puts the value into the tensor, where every reader finds it.
    if subgraph.tensors[op.outputs[0]].const is None:
        return "a constant without a value"
    return None


@translates("Const", "TrainableParam", inputs=(0, 0), supports=_supports)
def translate(builder: Builder, op: SubOp) -> None:
    """Nothing: the constant becomes a static tensor where it is read."""
