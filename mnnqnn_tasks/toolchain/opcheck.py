"""Asks QNN, op by op, what it can run for a target.

Every different use of an op in the model (`signature`) is translated once, all of them
into one graph; QNN's ``backendValidateOpConfig`` then judges its nodes for each target.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import TranslateError
from mnnqnn_tasks.mnn.index import ModelIndex
from mnnqnn_tasks.partition.partition import Partition
from mnnqnn_tasks.partition.signature import unique_ops
from mnnqnn_tasks.partition.subgraph import ByteRef
from mnnqnn_tasks.qnn import netjson, run
from mnnqnn_tasks.qnn.ir import Graph, Tensor
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.translate.builder import ByteReader
from mnnqnn_tasks.translate.files import SourceReader
from mnnqnn_tasks.translate.translate import translate

#: Signature -> the numbers of its nodes in the graph of all uses, or why it has none.
Uses = dict[str, list[int] | str]


def op_uses(made: Partition, index: ModelIndex, folder: Path) -> tuple[Uses, str]:
    """The different uses of ops in the pieces on the NPU.

    Args:
        made: a cut, with the digests of weights or with stand-ins.
        index: the digests of the model.
        folder: the model folder.

    Returns:
        the uses, and the text of the graph that they are in.

    Raises:
        StaleInputError: when the model is not the one in ``index``.
        ModelFileError: when its weights cannot be read.
    """
    read = _reader(made, index, folder)
    uses: Uses = {}
    graph = UseGraph()
    for text, alone in sorted(unique_ops(made.subgraphs).items()):
        try:
            uses[text] = graph.add(translate(alone, read).graph)
        except TranslateError as error:
            uses[text] = f"{error.what}: {error.why}"
    return uses, netjson.dumps(graph.graph) if graph.graph.nodes else ""


def refused_ops(uses: Path, net: Path, options: TargetOptions) -> dict[str, str]:
    """Signature -> reason of the uses that QNN refuses.

    Args:
        uses, net: files with the two results of `op_uses`.

    Raises:
        QnnError, NativeCrash, ToolMissing: when QNN cannot be asked.
    """
    listed: Uses = json.loads(uses.read_text("utf-8"))
    refused = {text: why for text, why in listed.items() if isinstance(why, str)}
    verdicts = run.validate([net], options)[0] if len(refused) < len(listed) else []
    for text, nodes in listed.items():
        judged = () if isinstance(nodes, str) else (verdicts[node] for node in nodes)
        bad = next((verdict for verdict in judged if not verdict.ok), None)
        if bad is not None:
            refused[text] = f"{bad.type}: {bad.reason}"
    return dict(sorted(refused.items()))


def _reader(made: Partition, index: ModelIndex, folder: Path) -> ByteReader:
    """Reads and checks bytes by the digests or stand-ins of ``made``."""
    digests = {made.index.ranges[span]: sha256 for span, sha256 in index.ranges.items()}
    places = {digests.get(key, key): at for key, at in made.sources.to_json().items()}
    read = SourceReader(places, folder)

    def checked(ref: ByteRef) -> memoryview:
        return read(ByteRef(digests.get(ref.sha256, ref.sha256), ref.size))

    return checked


@dataclass
class UseGraph:
    """One graph of many that have nothing to do with each other.

    Static tensors that are equal but for their names are one: a weight with an encoding
    of many channels is long.  So are graphs that are equal but for the names in them.
    """

    graph: Graph = field(default_factory=lambda: Graph("ops"))
    _static: dict[Tensor, str] = field(default_factory=dict)
    _known: dict[Any, list[int]] = field(default_factory=dict)

    def add(self, other: Graph) -> list[int]:
        """Take in ``other``; gives the numbers of its nodes."""
        plain = [replace(t, name="") for t in other.tensors]
        number = {t.name: i for i, t in enumerate(other.tensors)}
        shape = (
            tuple(plain),
            tuple(
                (
                    node.package,
                    node.type,
                    node.params,
                    _numbers(number, node.inputs),
                    _numbers(number, node.outputs),
                )
                for node in other.nodes
            ),
        )
        if shape not in self._known:
            self._known[shape] = self._append(other, plain)
        return self._known[shape]

    def _append(self, other: Graph, plain: list[Tensor]) -> list[int]:
        graph, first = self.graph, len(self.graph.nodes)
        names: dict[str, str] = {}
        for tensor, nameless in zip(other.tensors, plain, strict=True):
            known = self._static.get(nameless)
            name = names[tensor.name] = known or f"t{len(graph.tensors)}"
            if known is None:
                graph.tensors.append(replace(nameless, name=name))
                if tensor.kind == "STATIC":
                    self._static[nameless] = name
        for node in other.nodes:
            graph.nodes.append(
                replace(
                    node,
                    name=f"{len(graph.nodes)} {node.name}",
                    inputs=tuple(names[n] for n in node.inputs),
                    outputs=tuple(names[n] for n in node.outputs),
                )
            )
        return list(range(first, len(graph.nodes)))


def _numbers(number: Mapping[str, int], names: Iterable[str]) -> tuple[int, ...]:
    return tuple(number[name] for name in names)
