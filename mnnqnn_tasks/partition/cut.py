"""Cuts the needed ops into consecutive pieces for the NPU and pieces for the CPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from mnnqnn_tasks.mnn.infer import shape_inputs
from mnnqnn_tasks.partition.breaks import MASK_REASON, break_reason
from mnnqnn_tasks.partition.fold import Folded
from mnnqnn_tasks.partition.net_view import NetOp, NetView

#: Why an op stays on the CPU, or ``None``.
Reason = Callable[[NetOp], str | None]

_KEPT = "an op on the CPU reads its value, which differs between the shapes"


@dataclass(frozen=True)
class Piece:
    """Consecutive ops that run in one place.

    Attributes:
        ops: indices of the ops, in an order that can run.
        reason: why it stays on the CPU; ``None`` for a piece on the NPU.
        inputs, outputs: tensors that cross its border, ascending.
    """

    ops: tuple[int, ...]
    reason: str | None
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    @property
    def npu(self) -> bool:
        """Whether the piece runs on the NPU."""
        return self.reason is None


def shape_content_reason(view: NetView, op: NetOp, folded: Folded) -> str | None:
    """The second cut: ops whose shape depends on a tensor that is no constant."""
    for index in shape_inputs(op.table, len(op.inputs)):
        tensor = op.inputs[index]
        if tensor >= 0 and tensor not in view.consts and tensor not in folded:
            return f"the shape of its result depends on the values of {view.names[tensor]!r}"
    return None


def cut(
    view: NetView,
    needed: Iterable[int],
    folded: Folded,
    masks: Collection[int],
    other_reason: Reason,
) -> list[Piece]:
    """Pieces in order, without borders (see `add_borders`).

    Every op with a reason to stay on the CPU is a piece of its own; what lies between
    goes to the NPU if a Convolution is in it, or if nothing at all was cut.

    Args:
        view: the model.
        needed: ops that are left after folding, in order.
        folded: constants of the shapes.
        masks: ops that make an attention mask (`breaks.mask_ops`).
        other_reason: asked last: no translation, refused by QNN, no known shape.
    """
    pieces: list[Piece] = []
    current: list[int] = []
    for index in needed:
        op = view.ops[index]
        reason = (
            break_reason(op)
            or (MASK_REASON if index in masks else None)
            or shape_content_reason(view, op, folded)
            or other_reason(op)
        )
        if reason is None:
            current.append(index)
            continue
        if current:
            pieces.append(Piece(tuple(current), None))
            current = []
        pieces.append(Piece((index,), reason))
    if current:
        pieces.append(Piece(tuple(current), None))
    if len(pieces) == 1:
        return pieces
    return [_to_cpu_without_convolution(view, p) for p in pieces]


def _to_cpu_without_convolution(view: NetView, piece: Piece) -> Piece:
    if piece.reason or any(view.ops[i].type == "Convolution" for i in piece.ops):
        return piece
    return replace(piece, reason="no Convolution in it")


def keep_for_cpu(
    view: NetView, pieces: Sequence[Piece], folded: Folded, outputs: Iterable[int]
) -> list[Piece]:
    """Put back folded ops that the CPU has to compute for itself.

    The host model is one for all shapes, so a folded value that differs between them
    cannot stand in it as a constant; its op stays, with the folded ops that it reads.
    """
    kept: set[int] = set()
    todo = [t for p in pieces if not p.npu for i in p.ops for t in view.ops[i].inputs]
    todo.extend(outputs)
    while todo:
        tensor = todo.pop()
        if tensor < 0 or tensor not in folded or tensor in folded.fixed:
            continue
        index = view.producer[tensor]
        if index not in kept:
            kept.add(index)
            todo.extend(view.ops[index].inputs)
    rank = {index: i for i, index in enumerate(view.order)}
    result = list(pieces)
    for index in sorted(kept, key=rank.__getitem__):
        _insert(result, index, rank)
    return result


def _insert(pieces: list[Piece], index: int, rank: dict[int, int]) -> None:
    at = len(pieces)
    for i, piece in enumerate(pieces):
        if rank[piece.ops[0]] > rank[index]:
            at = i
            break
        if not piece.npu and rank[index] < rank[piece.ops[-1]]:
            ops = sorted((*piece.ops, index), key=rank.__getitem__)
            pieces[i] = replace(piece, ops=tuple(ops))
            return
    pieces.insert(at, Piece((index,), _KEPT))


def add_borders(
    view: NetView, pieces: Sequence[Piece], folded: Folded, outputs: Collection[int]
) -> list[Piece]:
    """Inputs and outputs of every piece by use.

    An input is read in the piece, not written in it and no constant; an output is
    written in it, and read by another piece or an output of the model.
    """
    reads = [{t for i in p.ops for t in view.ops[i].inputs if t >= 0} for p in pieces]
    writes = [{t for i in p.ops for t in view.ops[i].outputs} for p in pieces]
    readers: dict[int, int] = {}
    for tensors in reads:
        for tensor in tensors:
            readers[tensor] = readers.get(tensor, 0) + 1
    result = []
    for piece, read, written in zip(pieces, reads, writes, strict=True):
        constant = folded.fixed if not piece.npu else folded.values[0].keys()
        inputs = read - written - view.consts - constant
        used = {t for t in written if t in outputs or readers.get(t, 0) > (t in read)}
        result.append(replace(piece, inputs=tuple(sorted(inputs)), outputs=tuple(sorted(used))))
    return result
