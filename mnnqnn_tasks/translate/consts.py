"""Small integer constants that decide how an op is translated."""

from __future__ import annotations

from mnnqnn_tasks.partition.subgraph import ByteRef, Subgraph


def const_ints(subgraph: Subgraph, index: int) -> tuple[int, ...] | None:
    """The values of an integer constant, flat; ``None`` when it is no small constant."""
    if index < 0:
        return None
    const = subgraph.tensors[index].const
    if const is None or isinstance(const, ByteRef):
        return None
    return tuple(int(v) for v in _flat(const))


def _flat(values: object) -> list[float | int]:
    if isinstance(values, (list, tuple)):
        return [number for value in values for number in _flat(value)]
    assert isinstance(values, (int, float))
    return [values]


def positive_axis(axis: int, rank: int) -> int | None:
    """``axis`` counted from the front, ``None`` when it is out of range."""
    front = axis + rank if axis < 0 else axis
    return front if 0 <= front < rank else None
