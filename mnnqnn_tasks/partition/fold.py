"""Which tensors are constants once the input shapes are fixed, and their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnnqnn_tasks.mnn.infer import TensorFact, needs_values
from mnnqnn_tasks.partition.net_view import NetView

#: A folded value has no place in the model's files, so it is written into the subgraph.
#: Longer ones are not folded: their op stays, and computes them on the NPU or the CPU.
MAX_FOLDED = 4096


@dataclass(frozen=True)
class Folded:
    """Constant tensors that no Const op of the file holds.

    Attributes:
        ops: ops all of whose outputs are folded.
        values: per shape, tensor index -> values.
        fixed: tensors whose values are the same for every shape.
        formats: layout of each folded tensor.
    """

    ops: frozenset[int]
    values: tuple[Mapping[int, NDArray[Any]], ...]
    fixed: frozenset[int]
    formats: Mapping[int, str]

    def __contains__(self, tensor: object) -> bool:
        return tensor in self.values[0]


def static_ops(view: NetView, needed: Iterable[int]) -> list[int]:
    """Needed ops whose results depend on shapes and constants alone, in order.

    (compilefornpu.cpp, ``_findAllConstTensorIndex``)
    """
    static = set(view.consts)
    found = []
    for index in needed:
        op = view.ops[index]
        if all(
            t < 0 or t in static or not needs_values(op.table, i) for i, t in enumerate(op.inputs)
        ):
            static.update(op.outputs)
            found.append(index)
    return found


def fold(
    view: NetView, needed: Iterable[int], facts: Sequence[Sequence[TensorFact | None]]
) -> Folded:
    """Fold what can be folded for every shape; ``facts`` are those of each shape."""
    ops: set[int] = set()
    values: list[dict[int, NDArray[Any]]] = [{} for _ in facts]
    fixed: set[int] = set()
    formats: dict[int, str] = {}
    for index in static_ops(view, needed):
        outputs = view.ops[index].outputs
        if not all(_small(shape[t]) for shape in facts for t in outputs):
            continue
        ops.add(index)
        for tensor in outputs:
            found: list[NDArray[Any]] = []
            for shape, into in zip(facts, values, strict=True):
                fact = shape[tensor]
                assert fact is not None and fact.value is not None
                into[tensor] = fact.value
                formats[tensor] = fact.format
                found.append(fact.value)
            if all(_equal(found[0], other) for other in found[1:]):
                fixed.add(tensor)
    return Folded(frozenset(ops), tuple(values), frozenset(fixed), formats)


def _small(fact: TensorFact | None) -> bool:
    return fact is not None and fact.value is not None and fact.size <= MAX_FOLDED


def _equal(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b)
