"""One verification at work: the CPU's side of every shape, then every shape's walk."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mnnqnn_tasks.mnn.cpu import CpuWorker
from mnnqnn_tasks.mnn.folder import ModelFolder
from mnnqnn_tasks.verify import hostmodel, prompt
from mnnqnn_tasks.verify.cpumodel import CpuModel
from mnnqnn_tasks.verify.emulator import Emulator
from mnnqnn_tasks.verify.ranges import Calibration
from mnnqnn_tasks.verify.reference import Probe, Reference, own_probe, row_probes
from mnnqnn_tasks.verify.report import ChainResult, GraphResult, PromptResult
from mnnqnn_tasks.verify.sample import Samples
from mnnqnn_tasks.verify.sides import Arrays
from mnnqnn_tasks.verify.store import Store
from mnnqnn_tasks.verify.subject import Options, Progress, Subject
from mnnqnn_tasks.verify.walk import Walk

#: Results of one shape.
Walked = tuple[list[GraphResult], ChainResult, PromptResult | None]


@dataclass(frozen=True)
class Job:
    """What all shapes of one verification share.

    Attributes:
        outputs: the model's outputs, logits first.
        question: what the samples hold, if they are a prompt and its answer.
        temp: a folder for tensors.
        references: the CPU's side by shape index.
        formats: MNN's layouts of tensors by name.
    """

    subject: Subject
    options: Options
    folder: ModelFolder
    host: hostmodel.HostModel
    outputs: tuple[str, ...]
    calibration: Calibration
    question: prompt.Question | None
    temp: Path
    progress: Progress
    references: dict[int, Reference] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)

    def refer(self, index: int, samples: Samples) -> None:
        """Compute the CPU's side of one shape; decode, 0, comes first."""
        shape = self.subject.shapes[index]
        made = Reference(shape, Store(self.temp / f"cpu{index}"), self.calibration)
        with CpuWorker() as worker:
            cpu = self._cpu(worker, self.folder.path / self.folder.model)
            inputs = cpu.learn(samples)
            made.store.put(inputs)
            made.store.put(cpu(inputs, self._border(inputs)))
            if index != 0:
                made.single = self.references[0].single
            else:
                made.single |= {name: made.store.dims(name) for name in made.store}
            made.scan(cpu, inputs)
        self.references[index] = made

    def walk(self, index: int, samples: Samples) -> Walked:
        """One shape, in worker processes of its own."""
        subject, reference = self.subject, self.references[index]
        emulator = Emulator(
            subject.build / "qnn", subject.build / "blobs", subject.options, subject.lib_dir
        )
        chain = Store(self.temp / f"chain{index}")
        with CpuWorker() as worker:
            rewritten = self._cpu(worker, self.host.path)
            chain.put(rewritten.learn(samples))
            walk = Walk(
                index,
                self.host,
                rewritten,
                emulator,
                reference,
                lambda plugin: self._probes(index, plugin),
                chain,
                self.options.thresholds,
                self.progress,
            )
            graphs, result = walk.run(self.outputs)
            answer = None
            if self.question is not None and self.question.shape == reference.shape:
                logits = self.outputs[0]
                answer = self.question.judge(None if walk.broken else chain.get([logits])[logits])
            return graphs, result, answer

    def _cpu(self, worker: CpuWorker, model: Path) -> CpuModel:
        return CpuModel(worker, model, weight_file(self.folder), self.formats)

    def _probes(self, index: int, plugin: hostmodel.Plugin) -> list[Probe]:
        """What a graph is judged by: for decode, tokens inside a text."""
        chunks = [r for i, r in self.references.items() if i != 0]
        found: list[Probe] = []
        if index == 0 and chunks:
            longest = max(chunks, key=lambda r: r.shape)
            found = row_probes(longest, plugin, self.references[0].single)
        return found or [own_probe(self.references[index], plugin)]

    def _border(self, inputs: Arrays) -> list[str]:
        """Every tensor at a border that the CPU computes, and the model's outputs."""
        names = dict.fromkeys(self.outputs)
        for plugin in self.host.plugins:
            names |= dict.fromkeys((*plugin.inputs, *plugin.outputs))
        return [name for name in names if name not in inputs]


def weight_file(folder: ModelFolder) -> Path | None:
    """The model's weight file, ``None`` if it has none."""
    path = folder.path / folder.weight
    return path if path.exists() else None
