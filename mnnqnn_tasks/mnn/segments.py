"""Cuts a model into pieces that run one after the other.

MNN turns every weight of a loaded module into 32-bit floats.  Loading a few layers at a
time keeps the memory of a run at the size of those layers.  The pieces compute what the
whole does: between them tensors only move out of MNN and back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn.table import Table

#: Weights of a piece, in bytes of 32-bit floats; a single op may have more.
BUDGET = 256 << 20


@dataclass(frozen=True)
class Segment:
    """One piece: the tensors that it reads from before it, and those that it gives."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def _indexes(values: Iterable[int] | None) -> list[int]:
    return [int(index) for index in values if index >= 0] if values is not None else []


def _weight_bytes(op: Table) -> int:
    common = op.main.common if getattr(op.main, "type_name", "") == "Convolution2D" else None
    if common is None:
        return 0
    sizes = (common.outputCount, common.inputCount, common.kernelX, common.kernelY)
    return 4 * math.prod(max(1, int(size)) for size in sizes)


def _shares_state(op: Table) -> bool:
    """Whether an Attention op reads the KV cache of another one, beside its tensors."""
    main = op.main
    if getattr(main, "type_name", "") != "AttentionParam":
        return False
    return bool(main.kv_shared_layer) or main.kv_shared_layer_index >= 0


def _needed(ops: Sequence[Table], outputs: set[int]) -> list[int]:
    """Places of the ops that ``outputs`` depend on, in order."""
    wanted = set(outputs)
    kept = []
    for place in range(len(ops) - 1, -1, -1):
        made = _indexes(ops[place].outputIndexes)
        if wanted.intersection(made):
            kept.append(place)
            wanted.update(_indexes(ops[place].inputIndexes))
    return kept[::-1]


def split(
    net: Table, inputs: Sequence[str], outputs: Sequence[str], budget: int = BUDGET
) -> list[Segment]:
    """Pieces of ``net`` that compute the tensors ``outputs`` from ``inputs``, in order.

    One piece if the model is small or cannot be cut.

    Raises:
        ModelFileError: when ``net`` does not have one of the tensors.
    """
    names: list[str] = list(net.tensorName or ())
    index = {name: place for place, name in enumerate(names)}
    missing = [name for name in (*inputs, *outputs) if name not in index]
    if missing:
        raise ModelFileError(
            f"the model has no tensor {missing[0]}",
            why=f"{len(missing)} of the tensors asked for are not in it",
            todo="check that the names come from this model",
        )
    ops: list[Table] = list(net.oplists or ())
    whole = [Segment(tuple(inputs), tuple(outputs))]
    given = {index[name] for name in inputs}
    asked = {index[name] for name in outputs}
    places = _needed(ops, asked)
    groups = _groups(ops, places, budget)
    if len(groups) == 1 or len(index) != len(names) or any(_shares_state(op) for op in ops):
        return whole
    home: dict[int, int] = {}  # tensor -> the piece that makes it
    for number, group in enumerate(groups):
        for place in group:
            for tensor in _indexes(ops[place].outputIndexes):
                if ops[place].type not in ("Const", "Input"):
                    home[tensor] = number
    for tensor in given:
        home[tensor] = -1
    reads: list[set[int]] = [set() for _ in groups]
    gives: list[set[int]] = [set() for _ in groups]
    for number, group in enumerate(groups):
        for place in group:
            for tensor in _indexes(ops[place].inputIndexes):
                maker = home.get(tensor)
                if maker is None or maker == number:
                    continue
                if maker > number:
                    return whole  # the ops are not in the order of their data
                reads[number].add(tensor)
                if maker >= 0:
                    gives[maker].add(tensor)
    for tensor in asked:
        if home.get(tensor, -1) < 0:
            return whole  # an input or a constant is asked for: no piece makes it
        gives[home[tensor]].add(tensor)
    return [
        Segment(
            tuple(names[tensor] for tensor in sorted(read)),
            tuple(names[tensor] for tensor in sorted(give)),
        )
        for read, give in zip(reads, gives, strict=True)
        if give
    ]


def _groups(ops: Sequence[Table], places: Sequence[int], budget: int) -> list[list[int]]:
    groups: list[list[int]] = [[]]
    size = 0
    for place in places:
        weight = _weight_bytes(ops[place])
        if size and weight and size + weight > budget:
            groups.append([])
            size = 0
        groups[-1].append(place)
        size += weight
    return groups
