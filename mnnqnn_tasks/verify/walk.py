"""One shape from the first piece to the logits, twice: graph by graph, and as a chain.

Every graph is compiled once and executed on several sets of inputs: the CPU model's own
activations at its border, which judge the graph alone, and what the pieces before it
made, which carries the chain on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mnnqnn_tasks.errors import MnnqnnError, VerifyError
from mnnqnn_tasks.verify.hostmodel import HostModel, HostStep, Plugin
from mnnqnn_tasks.verify.judgement import judge_logits, judge_output, worst
from mnnqnn_tasks.verify.metrics import Array, agreement
from mnnqnn_tasks.verify.reference import Probe, Reference
from mnnqnn_tasks.verify.report import ChainResult, GraphResult, OutputResult
from mnnqnn_tasks.verify.sides import Arrays, Cpu, Npu
from mnnqnn_tasks.verify.store import Store
from mnnqnn_tasks.verify.thresholds import Activations, Thresholds, strictest


@dataclass
class Walk:
    """The state of one shape.

    Attributes:
        index: number of the shape in the Plugin ops.
        rewritten: runs the host ops of ``qnn/llm.mnn``.
        reference: the CPU's side.
        probes: what a piece is judged by alone.
        chain: border tensors as the pieces made them; starts with the model's inputs.
        progress: is told what happens next.
    """

    index: int
    host: HostModel
    rewritten: Cpu
    npu: Npu
    reference: Reference
    probes: Callable[[Plugin], Sequence[Probe]]
    chain: Store
    thresholds: Thresholds
    progress: Callable[[str], None]
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
        self.progress(name)
        kind = self.npu.activations(name)
        probes = self.probes(plugin)
        sets = [probe.inputs for probe in probes]
        if self.broken is None:
            sets.append(self.chain.get(plugin.inputs))
        try:
            feeds = [_feed(plugin, arrays) for arrays in sets]
            made = [self._shaped(plugin, result) for result in self.npu.execute(name, feeds)]
        except MnnqnnError as error:
            self.graphs.append(GraphResult(name, self.reference.shape, kind, (), (), str(error)))
            self.broken = self.broken or f"not run to its end: {name} gave no outputs"
            return
        if self.broken is None:
            self.chain.put(dict(zip(plugin.outputs, made[-1], strict=True)))
        outputs = tuple(
            worst(
                self._judge(kind, plugin, position, probe, arrays[position])
                for probe, arrays in zip(probes, made, strict=False)
            )
            for position in range(len(plugin.outputs))
        )
        excursions = tuple(self.reference.of_piece(plugin))
        self.graphs.append(GraphResult(name, self.reference.shape, kind, outputs, excursions))

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

    def _judge(
        self, kind: Activations, plugin: Plugin, position: int, probe: Probe, got: Array
    ) -> OutputResult:
        tensor = plugin.outputs[position]
        return judge_output(
            plugin.graph_outputs[position],
            tensor,
            probe.outputs[tensor],
            got,
            lambda found: self.thresholds.graph_miss(kind, found),
            probe.inside,
            probe.axes[tensor],
        )

    def _compare_chain(self, outputs: Sequence[str]) -> ChainResult:
        kind = strictest(graph.activations for graph in self.graphs)
        shape = self.reference.shape
        if self.broken is not None:
            return ChainResult(shape, kind, (), error=self.broken)
        want, got = self.reference.store.get(outputs), self.chain.get(outputs)
        results = tuple(
            judge_logits(
                name,
                want[name],
                got[name],
                lambda found: self.thresholds.chain_miss(kind, found),
                len(self.reference.excursions),
            )
            for name in outputs
        )
        same, positions = agreement(want[outputs[0]], got[outputs[0]])
        return ChainResult(shape, kind, results, same, positions)


def _feed(plugin: Plugin, arrays: Arrays) -> dict[str, Array]:
    return {
        graph: arrays[name] for graph, name in zip(plugin.graph_inputs, plugin.inputs, strict=True)
    }
