"""The partition stage: from a model and its sample inputs to the files of the plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mnnqnn_tasks.errors import PartitionError, StaleInputError
from mnnqnn_tasks.files import sha256_bytes
from mnnqnn_tasks.mnn import reader
from mnnqnn_tasks.mnn.folder import open_folder
from mnnqnn_tasks.mnn.index import ModelIndex
from mnnqnn_tasks.mnn.infer import TensorFact, infer
from mnnqnn_tasks.partition.breaks import mask_ops
from mnnqnn_tasks.partition.build import OpParams, SubgraphBuilder, quant_infos
from mnnqnn_tasks.partition.checks import runtime_reason
from mnnqnn_tasks.partition.cut import Piece, add_borders, cut, keep_for_cpu
from mnnqnn_tasks.partition.fold import Folded, fold
from mnnqnn_tasks.partition.net_view import NetOp, NetView, needed_ops, view_net
from mnnqnn_tasks.partition.plan import Plan, PlannedPiece, graph_name
from mnnqnn_tasks.partition.planned import planned_piece
from mnnqnn_tasks.partition.samples import (
    default_outputs,
    expected_facts,
    find_outputs,
    input_facts,
)
from mnnqnn_tasks.partition.signature import signature
from mnnqnn_tasks.partition.sources import Sources
from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp

#: Why an op has no translation, or ``None``; asked with a subgraph of that op alone.
Supported = Callable[[SubOp, Subgraph], str | None]

#: Layouts that a subgraph's tensors may have.
_FORMATS = frozenset({"NCHW", "NHWC", "NC4HW4"})


@dataclass(frozen=True)
class Partition:
    """Everything that the stage writes, before it is written.

    Attributes:
        subgraphs: of every graph, in plan order.
        sources: where the bytes that subgraphs refer to lie.
        looked_up: where all bytes lie that an op looked at for the NPU reads.
        index: what their digests are taken from.
        view, folded, pieces, facts: what the host model is made of.
    """

    plan: Plan
    subgraphs: tuple[Subgraph, ...]
    sources: Sources
    looked_up: Sources
    index: ModelIndex
    view: NetView
    folded: Folded
    pieces: tuple[Piece, ...]
    facts: tuple[Sequence[TensorFact | None], ...]
    outputs: tuple[int, ...]


def partition(
    view: NetView,
    index: ModelIndex,
    shapes: Sequence[tuple[int, Mapping[int, TensorFact]]],
    outputs: tuple[str, ...],
    refused: Collection[str] = (),
    supported: Supported | None = None,
) -> Partition:
    """Divide a model.

    Args:
        view: the model.
        index: digests of its weight ranges.
        shapes: sequence length and facts of the inputs, by shape index.
        outputs: names of the outputs.
        refused: op signatures that QNN refuses; a mapping gives its words for each.
        supported: see `Supported`; without it every op counts as supported.

    Raises:
        PartitionError: when the model cannot be divided.
        ModelFileError: when the model contradicts itself or its index.
    """
    if not shapes:
        raise PartitionError("there is no shape to partition for")
    targets = find_outputs(view, outputs)
    inputs = set.intersection(*(set(facts) for _, facts in shapes))
    all_ops = needed_ops(view, inputs, targets)
    facts = tuple(infer(view.net, known, view.order) for _, known in shapes)
    folded = fold(view, all_ops, facts)
    needed = needed_ops(view, inputs, targets, folded.ops)
    sources = Sources(index)
    quants = quant_infos(view.net)
    params: OpParams = {}
    builders = [
        SubgraphBuilder(view, of_shape, values, sources, quants, params)
        for of_shape, values in zip(facts, folded.values, strict=True)
    ]

    def other_reason(op: NetOp) -> str | None:
        return _unknown(op, facts, view) or _unsupported(op, builders, refused, supported)

    masks = mask_ops(view, all_ops, inputs)
    pieces, graphs = _served(
        cut(view, needed, folded, masks, other_reason), view, folded, targets, builders
    )
    planned: list[PlannedPiece] = []
    for piece, its_graphs in zip(pieces, graphs, strict=True):
        number = sum(p.place == "npu" for p in planned)
        planned.append(planned_piece(piece, number, its_graphs, view, facts, index))
    subgraphs = [graph for its_graphs in graphs for graph in its_graphs]
    plan = Plan(
        tuple(length for length, _ in shapes),
        tuple(outputs),
        tuple(planned),
        len(folded.ops),
    )
    return Partition(
        plan,
        tuple(subgraphs),
        sources.used_by(subgraphs),
        sources,
        index,
        view,
        folded,
        tuple(pieces),
        facts,
        targets,
    )


def _served(
    pieces: Sequence[Piece],
    view: NetView,
    folded: Folded,
    outputs: Sequence[int],
    builders: Sequence[SubgraphBuilder],
) -> tuple[list[Piece], list[list[Subgraph]]]:
    """Borders and graphs of the pieces; what the runtime cannot serve goes to the CPU.

    A piece that moves changes the borders of the others, so all is made again then.
    """
    while True:
        whole = keep_for_cpu(view, pieces, folded, outputs)
        whole = add_borders(view, whole, folded, set(outputs))
        number = 0
        graphs: list[list[Subgraph]] = []
        moved: dict[tuple[int, ...], str] = {}
        for piece in whole:
            made = _graphs(piece, number, builders)
            number += piece.npu
            graphs.append(made)
            if made and (reason := runtime_reason(made)):
                moved[piece.ops] = reason
        if not moved:
            return whole, graphs
        pieces = [replace(p, reason=moved.get(p.ops, p.reason)) for p in pieces]


def _graphs(piece: Piece, number: int, builders: Sequence[SubgraphBuilder]) -> list[Subgraph]:
    if not piece.npu:
        return []
    return [
        b.build(graph_name(shape, number), piece.ops, piece.inputs, piece.outputs)
        for shape, b in enumerate(builders)
    ]


def _unknown(op: NetOp, facts: Sequence[Sequence[TensorFact | None]], view: NetView) -> str | None:
    for tensor in (*op.inputs, *op.outputs):
        for shape in facts if tensor >= 0 else ():
            fact = shape[tensor]
            if fact is None:
                return f"the shape of {view.names[tensor]!r} is not known before the model runs"
            if fact.format not in _FORMATS:
                return f"{view.names[tensor]!r} has the layout {fact.format}"
    return None


def _unsupported(
    op: NetOp,
    builders: Sequence[SubgraphBuilder],
    refused: Collection[str],
    supported: Supported | None,
) -> str | None:
    if not refused and supported is None:
        return None
    for builder in builders:
        alone = builder.build_op(op.index)
        if refused:
            text = signature(alone.ops[0], alone)
            if text in refused:
                why = f" ({refused[text]})" if isinstance(refused, Mapping) else ""
                return f"QNN refuses {text}{why}"
        reason = None if supported is None else supported(alone.ops[0], alone)
        if reason is not None:
            return f"no translation: {reason}"
    return None


def load_partition(
    model_dir: Path,
    index: ModelIndex,
    inputs: Mapping[int, Path | None],
    refused: Collection[str] = (),
    supported: Supported | None = None,
    outputs: tuple[str, ...] | None = None,
) -> Partition:
    """Read a model and its samples and divide it; see `partition`.

    Args:
        model_dir: the model folder.
        index: its digests.
        inputs: sequence length -> ``input.mnn``, in the order of the shapes; ``None`` for
            the one that `mnn.inputs` makes.
        outputs: names of the outputs; `samples.default_outputs` if not given.

    Raises:
        PartitionError, ModelFileError: see `partition`.
        StaleInputError: when the model file is not the one that was indexed.
    """
    path = model_dir / index.model
    data = reader.load_file(path)
    known = index.files.get(index.model)
    if known is None or sha256_bytes(memoryview(data)) != known.sha256:
        raise StaleInputError(
            "the model changed while it was being exported",
            where=str(path),
            why="its bytes are not those that were indexed",
            todo="run again",
        )
    view = view_net(reader.decode(data, name=str(path)), str(path))
    made = {n: input_facts(view, sample) for n, sample in inputs.items() if sample}
    if len(made) < len(inputs):
        folder = open_folder(model_dir)
        made |= {n: expected_facts(view, folder, n) for n in inputs if n not in made}
    shapes = [(length, made[length]) for length in inputs]
    try:
        return partition(view, index, shapes, outputs or default_outputs(view), refused, supported)
    except PartitionError as error:
        error.where = error.where or str(path)
        raise
