"""One shape from the first piece to the logits, twice: graph by graph, and as a chain.

Every graph is compiled once and executed on two sets of inputs: the CPU model's own
activations at its border, which judge the graph alone, and what the pieces before it
made, which carries the chain on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mnnqnn_tasks.errors import MnnqnnError, VerifyError
from mnnqnn_tasks.verify.hostmodel import HostModel, HostStep, Plugin
from mnnqnn_tasks.verify.metrics import Array, Excursion, agreement, compare
from mnnqnn_tasks.verify.report import ChainResult, GraphResult, OutputResult, judge
from mnnqnn_tasks.verify.store import Store
from mnnqnn_tasks.verify.thresholds import Activations, Thresholds, strictest

Arrays = Mapping[str, Array]

#: Runs a model on the CPU: input arrays by tensor name, wanted names -> arrays.
Cpu = Callable[[Arrays, Sequence[str]], dict[str, Array]]

#: Tensors of a piece that left their calibrated range, by the names of its borders.
RangeCheck = Callable[[Plugin], Sequence[Excursion]]


class Npu(Protocol):
    """Runs graphs on the host emulator."""

    def activations(self, graph: str) -> Activations:
        """Whether the graph computes in float or in fixed point."""

    def execute(self, graph: str, sets: Sequence[Arrays]) -> list[dict[str, Array]]:
        """Compile once, execute every set; arrays by the graph's own tensor names.

        Raises:
            MnnqnnError: when the library refuses the graph or crashes.
        """


def _feed(plugin: Plugin, store: Store) -> dict[str, Array]:
    arrays = store.get(plugin.inputs)
    return {
        graph: arrays[name] for graph, name in zip(plugin.graph_inputs, plugin.inputs, strict=True)
    }


@dataclass
class Walk:
    """The state of one shape.

    Attributes:
        shape: tokens per call; ``index`` is its number in the Plugin ops.
        rewritten: runs the host ops of ``qnn/llm.mnn``.
        reference: what the CPU model has at every border and at its outputs.
        chain: the same as the pieces made it; starts with the model's inputs.
    """

    shape: int
    index: int
    host: HostModel
    rewritten: Cpu
    npu: Npu
    reference: Store
    chain: Store
    thresholds: Thresholds
    excursions: RangeCheck
    graphs: list[GraphResult] = field(default_factory=list)
    broken: str | None = None

    def run(self, outputs: Sequence[str]) -> tuple[list[GraphResult], ChainResult]:
        """Run all pieces and compare.

        A graph that the library refuses ends the chain; the graphs after it are still
        judged alone.

        Args:
            outputs: the model's outputs, logits ``[..., positions, vocabulary]`` first.
        """
        for step in self.host.schedule(outputs):
            if isinstance(step, HostStep):
                self._host(step)
            else:
                self._graph(step)
        return self.graphs, self._compare_chain(outputs)

    def _host(self, step: HostStep) -> None:
        if self.broken is not None:
            return
        try:
            self.chain.put(self.rewritten(self.chain.get(step.inputs), step.outputs))
        except MnnqnnError as error:
            self.broken = f"not run to its end: {error}"

    def _graph(self, plugin: Plugin) -> None:
        name = plugin.graphs[self.index]
        kind = self.npu.activations(name)
        stores = [self.reference] if self.broken else [self.reference, self.chain]
        try:
            made = [
                self._shaped(plugin, result)
                for result in self.npu.execute(name, [_feed(plugin, store) for store in stores])
            ]
        except MnnqnnError as error:
            self.graphs.append(GraphResult(name, self.shape, kind, (), (), str(error)))
            self.broken = self.broken or f"not run to its end: {name} gave no outputs"
            return
        if len(made) > 1:
            self.chain.put(dict(zip(plugin.outputs, made[1], strict=True)))
        outputs = tuple(
            self._judge(kind, *ports)
            for ports in zip(plugin.graph_outputs, plugin.outputs, made[0], strict=True)
        )
        self.graphs.append(
            GraphResult(name, self.shape, kind, outputs, tuple(self.excursions(plugin)))
        )

    def _shaped(self, plugin: Plugin, result: Arrays) -> list[Array]:
        """The outputs as the runtime sees them: with the dims that the Plugin op declares."""
        made = []
        for name, dims in zip(plugin.graph_outputs, plugin.output_dims[self.index], strict=True):
            if name not in result or result[name].size != math.prod(dims):
                raise VerifyError(
                    f"output {name} of {plugin.graphs[self.index]} is not what the model declares",
                    where=str(self.host.path),
                    why=f"the graph has {list(result[name].shape) if name in result else 'none'}, "
                    f"the Plugin op {list(dims)}",
                    todo="run the export again; if it stays so, report it with this file",
                )
            made.append(result[name].reshape(dims))
        return made

    def _judge(self, kind: Activations, name: str, tensor: str, got: Array) -> OutputResult:
        want = self.reference.get([tensor])[tensor]
        found = compare(want, got)
        return judge(name, tensor, got.shape, found, self.thresholds.graph_miss(kind, found))

    def _compare_chain(self, outputs: Sequence[str]) -> ChainResult:
        kind = strictest(graph.activations for graph in self.graphs)
        if self.broken is not None:
            return ChainResult(self.shape, kind, (), error=self.broken)
        results = []
        for name in outputs:
            got = self.chain.get([name])[name]
            found = compare(self.reference.get([name])[name], got)
            miss = self.thresholds.chain_miss(kind, found)
            results.append(judge(name, name, got.shape, found, miss))
        logits = outputs[0]
        same, positions = agreement(
            self.reference.get([logits])[logits], self.chain.get([logits])[logits]
        )
        return ChainResult(self.shape, kind, tuple(results), same, positions)
