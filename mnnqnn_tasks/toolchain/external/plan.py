"""``plan.json`` of a cut that MNN's ``compilefornpu`` made.

Its Plugin ops keep the names of the tensors at a piece's border and, in the names of the
graphs' tensors (``t<index>``), their indices in the model; the ops between them follow
from the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mnnqnn_tasks.mnn.params import convolution_ranges, net_ops, net_ranges
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.partition.plan import Plan, PlannedOp, PlannedPiece, Port, Weight
from mnnqnn_tasks.toolchain.external.cutting import SOURCES, Cut, attributes_of

_ON_HOST = "compilefornpu left it on the CPU"


def plan_json(
    cut: Cut,
    model: Table,
    shapes: Sequence[int],
    outputs: Sequence[str],
    ranges: Mapping[tuple[int, int], str],
    out: Path,
) -> dict[str, Any]:
    """The content of ``plan.json``.

    Args:
        cut: what ``compilefornpu`` made.
        model: the whole model.
        shapes: sequence lengths by shape index.
        outputs: names of the model's outputs.
        ranges: digests of the byte ranges of the weight file.
        out: build folder of the model.
    """
    view = _View(model)
    graphs = {merge.binary: merge.graph_names() for merge in cut.merges}
    pieces, taken = [], set()
    for op in net_ops(cut.host):
        if op.type != "Plugin":
            continue
        attributes = attributes_of(op)
        binary = str(attributes["path"].s)
        names = graphs[binary]
        inside = view.between(_indices(attributes, "inputs"), _indices(attributes, "outputs"))
        taken.update(inside)
        pieces.append(
            PlannedPiece(
                "npu",
                None,
                view.ops(inside),
                view.ports(_indices(attributes, "inputs"), len(shapes)),
                view.ports(_indices(attributes, "outputs"), len(shapes), attributes),
                binary,
                names,
                tuple(cut.files[out / SOURCES / f"{name}.json"] for name in names),
                view.weights(inside, ranges),
            )
        )
    rest = [i for i, op in enumerate(view.list) if i not in taken and op.type not in _SILENT]
    if rest:
        host = PlannedPiece("host", _ON_HOST, view.ops(rest), (), (), weights=())
        pieces.append(host)
    value = Plan(tuple(shapes), tuple(outputs), tuple(pieces), 0).to_json()
    value["host_reads_weights"] = next(net_ranges(cut.host), None) is not None
    return value


#: Ops that compute nothing at run time.
_SILENT = ("Input", "Const", "TrainableParam")


def _indices(attributes: Mapping[str, Table], key: str) -> list[int]:
    """Indices of tensors from their names in the graphs."""
    value = attributes[key].list if key in attributes else None
    names = value.s or () if value is not None else ()
    return [int(name[1:]) for name in names if name[:1] == "t" and name[1:].isdigit()]


class _View:
    """The ops of a model by the tensors that they make."""

    def __init__(self, model: Table) -> None:
        self.list = list(model.oplists or ())
        self.names = [str(name) for name in model.tensorName or ()]
        self.maker = {
            int(t): i
            for i, op in enumerate(self.list)
            for t in (op.outputIndexes if op.outputIndexes is not None else ())
        }

    def between(self, inputs: Sequence[int], outputs: Sequence[int]) -> list[int]:
        """The ops that ``outputs`` need, up to ``inputs``."""
        border, found, todo = set(inputs), set(), list(outputs)
        while todo:
            tensor = todo.pop()
            op = self.maker.get(tensor)
            if tensor in border or op is None or op in found or self.list[op].type in _SILENT:
                continue
            found.add(op)
            given = self.list[op].inputIndexes
            todo += [int(t) for t in (given if given is not None else ())]
        return sorted(found)

    def ops(self, indices: Sequence[int]) -> tuple[PlannedOp, ...]:
        return tuple(
            PlannedOp(i, str(self.list[i].type), str(self.list[i].name or "")) for i in indices
        )

    def ports(
        self,
        tensors: Sequence[int],
        shapes: int,
        attributes: Mapping[str, Table] | None = None,
    ) -> tuple[Port, ...]:
        return tuple(
            Port(
                tensor,
                self.names[tensor] if tensor < len(self.names) else f"t{tensor}",
                None,
                None,
                tuple(_dims(attributes, f"o_{shape}_{n}") for shape in range(shapes)),
            )
            for n, tensor in enumerate(tensors)
        )

    def weights(
        self, indices: Sequence[int], ranges: Mapping[tuple[int, int], str]
    ) -> tuple[Weight, ...]:
        return tuple(
            Weight(str(self.list[i].name or ""), role, offset, size, ranges.get((offset, size)))
            for i in indices
            for role, (offset, size) in convolution_ranges(self.list[i]).items()
        )


def _dims(attributes: Mapping[str, Table] | None, key: str) -> tuple[int, ...] | None:
    blob = attributes[key].tensor if attributes and key in attributes else None
    return tuple(int(d) for d in blob.dims) if blob is not None and blob.dims is not None else None
