"""What the plan says about a piece."""

from __future__ import annotations

from collections.abc import Sequence

from mnnqnn_tasks.mnn.index import ModelIndex
from mnnqnn_tasks.mnn.infer import TensorFact
from mnnqnn_tasks.mnn.weights import convolution_ranges
from mnnqnn_tasks.partition.cut import Piece
from mnnqnn_tasks.partition.net_view import NetView
from mnnqnn_tasks.partition.plan import (
    PlannedOp,
    PlannedPiece,
    Port,
    Weight,
    binary_name,
)
from mnnqnn_tasks.partition.subgraph import Subgraph
from mnnqnn_tasks.partition.subgraph_json import digest

Facts = Sequence[Sequence[TensorFact | None]]


def planned_piece(
    piece: Piece,
    number: int,
    graphs: Sequence[Subgraph],
    view: NetView,
    facts: Facts,
    index: ModelIndex,
) -> PlannedPiece:
    """The entry of a piece; ``number`` counts pieces on the NPU, ``graphs`` are its own."""
    ops = tuple(PlannedOp(i, view.ops[i].type, view.ops[i].name) for i in piece.ops)
    inputs = tuple(_port(t, view, facts) for t in piece.inputs)
    outputs = tuple(_port(t, view, facts) for t in piece.outputs)
    weights = _weights(piece, view, index)
    if not piece.npu:
        return PlannedPiece("host", piece.reason, ops, inputs, outputs, weights=weights)
    return PlannedPiece(
        "npu",
        None,
        ops,
        inputs,
        outputs,
        binary_name(number),
        tuple(g.graph for g in graphs),
        tuple(digest(g) for g in graphs),
        weights,
    )


def _weights(piece: Piece, view: NetView, index: ModelIndex) -> tuple[Weight, ...]:
    read = {t for i in piece.ops for t in view.ops[i].inputs} & view.consts
    readers = sorted({*piece.ops, *(view.producer[t] for t in read)})
    return tuple(
        Weight(view.ops[i].name, role, offset, size, index.ranges.get((offset, size)))
        for i in readers
        for role, (offset, size) in convolution_ranges(view.ops[i].table).items()
    )


def _port(tensor: int, view: NetView, facts: Facts) -> Port:
    found = [shape[tensor] for shape in facts]
    first = next((f for f in found if f is not None), None)
    return Port(
        tensor,
        view.names[tensor],
        None if first is None else first.dtype,
        None if first is None else first.format,
        tuple(None if f is None else f.dims for f in found),
    )
