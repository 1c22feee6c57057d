"""The plan: which piece runs where, and why.  ``plan.json`` and ``npu_postreat.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

VERSION = 1

#: Folder of the NPU binaries in a bundle, and so part of their names (MNN's cache dir).
FOLDER = "qnn"


def binary_name(number: int) -> str:
    """File of NPU piece ``number`` in the bundle: ``qnn/graph<number>.bin``."""
    return f"{FOLDER}/graph{number}.bin"


def graph_name(shape: int, number: int) -> str:
    """Graph of NPU piece ``number`` for shape index ``shape`` (0 is decode)."""
    return f"graph{number}" if shape == 0 else f"graph{shape}_{number}"


@dataclass(frozen=True)
class Port:
    """A tensor that crosses the border of a piece; its QNN name is ``t<tensor>``.

    Attributes:
        dims: the shape for each of the plan's shapes; ``None`` where it is not known
            before the model runs (only at pieces on the CPU).
    """

    tensor: int
    name: str
    dtype: str | None
    format: str | None
    dims: tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True)
class PlannedOp:
    """An op of the model: its index in ``llm.mnn``, type and name."""

    index: int
    type: str
    name: str


@dataclass(frozen=True)
class Weight:
    """A byte range of the weight file that a piece reads, and the digest of its bytes."""

    op: str
    role: str
    offset: int
    size: int
    sha256: str | None


@dataclass(frozen=True)
class PlannedPiece:
    """A piece of the plan, in the order in which they run.

    Attributes:
        place: ``npu`` or ``host``.
        reason: why it runs on the host; ``None`` on the NPU.
        binary: file of the piece on the NPU, else ``None``.
        graphs: its graph of each shape.
        digests: SHA-256 of ``subgraphs/<graph>.json`` of each shape.
        weights: what its ops and their constants read of the weight file.
    """

    place: str
    reason: str | None
    ops: tuple[PlannedOp, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    binary: str | None = None
    graphs: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    weights: tuple[Weight, ...] = ()


@dataclass(frozen=True)
class Plan:
    """How a model is divided.

    Attributes:
        shapes: sequence lengths by shape index; index 0 is decode.
        outputs: names of the model's outputs.
        pieces: all pieces that compute something, in the order in which they run.
        folded: number of ops that became constants.
    """

    shapes: tuple[int, ...]
    outputs: tuple[str, ...]
    pieces: tuple[PlannedPiece, ...]
    folded: int

    def npu_pieces(self) -> list[PlannedPiece]:
        """Pieces on the NPU; the position is the number in their names."""
        return [p for p in self.pieces if p.place == "npu"]

    def graphs(self) -> dict[str, str]:
        """Digest of every subgraph by the name of its graph."""
        return {
            graph: digest
            for p in self.npu_pieces()
            for graph, digest in zip(p.graphs, p.digests, strict=True)
        }

    def merges(self) -> dict[str, list[str]]:
        """Binary -> names of its graphs in order."""
        return {p.binary: list(p.graphs) for p in self.npu_pieces() if p.binary is not None}

    def host_reads_weights(self) -> bool:
        """Whether the host model needs the model's weight file at run time."""
        return any(p.weights for p in self.pieces if p.place == "host")

    def to_json(self) -> dict[str, Any]:
        """The content of ``plan.json`` (``schemas/plan.schema.json``)."""
        return {
            "version": VERSION,
            "shapes": list(self.shapes),
            "outputs": list(self.outputs),
            "folded_ops": self.folded,
            "host_reads_weights": self.host_reads_weights(),
            "pieces": [_piece_json(number, p) for number, p in enumerate(self.pieces)],
        }

    def postreat_json(self) -> dict[str, Any]:
        """The content of ``npu_postreat.json``, the form that MNN's scripts read."""
        merge = {
            binary: [f"{FOLDER}/{graph}" for graph in graphs]
            for binary, graphs in self.merges().items()
        }
        # MNN keeps the merges in a std::map: sorted by name, graph10 before graph2.
        return {"type": "QNN", "merge": dict(sorted(merge.items())), "cache": FOLDER}


def op_ranges(indices: Sequence[int]) -> list[list[int]]:
    """Runs of consecutive indices as ``[first, last]``."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return runs


def _piece_json(number: int, piece: PlannedPiece) -> dict[str, Any]:
    where: dict[str, Any] = {"piece": number, "place": piece.place}
    if piece.place == "host":
        where["reason"] = piece.reason
    else:
        where["binary"] = piece.binary
        where["graphs"] = [
            {"graph": graph, "sha256": digest}
            for graph, digest in zip(piece.graphs, piece.digests, strict=True)
        ]
    return {
        **where,
        "inputs": [_port_json(p) for p in piece.inputs],
        "outputs": [_port_json(p) for p in piece.outputs],
        "op_ranges": op_ranges([op.index for op in piece.ops]),
        "ops": [f"{op.index} {op.type} {_name(op.name)}".rstrip() for op in piece.ops],
        "weights": [{**asdict(w), "op": _name(w.op)} for w in piece.weights],
    }


def _name(name: str) -> str:
    # A name need not be UTF-8 in the model; a JSON file has to be.
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _port_json(port: Port) -> dict[str, Any]:
    return {
        "qnn_name": f"t{port.tensor}",
        "tensor": port.tensor,
        "name": _name(port.name),
        "dtype": port.dtype,
        "format": port.format,
        "dims": [None if d is None else list(d) for d in port.dims],
    }
