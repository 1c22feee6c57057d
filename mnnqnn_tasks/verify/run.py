"""Verification of one exported model for one target.

Every graph, of every shape, runs on the host emulator with the activations that the CPU
model has at the graph's border; then the pieces of ``qnn/llm.mnn`` run as a chain, NPU
outputs feeding the next piece, and its logits are compared with the model's.  The CPU
model is MNN's own, in 32-bit floats.  Which values pass, and why, is said in
`mnnqnn_tasks.verify.thresholds`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TextIO

from mnnqnn_tasks.errors import VerifyError
from mnnqnn_tasks.files import write_json
from mnnqnn_tasks.mnn.cpu import CpuWorker, check_model, output_names
from mnnqnn_tasks.mnn.folder import ModelFolder, open_folder
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.verify import hostmodel, prompt, table
from mnnqnn_tasks.verify.cpumodel import CpuModel
from mnnqnn_tasks.verify.emulator import Emulator
from mnnqnn_tasks.verify.ranges import Calibration, calibration
from mnnqnn_tasks.verify.reference import Probe, Reference, own_probe, row_probe
from mnnqnn_tasks.verify.report import ChainResult, GraphResult, PromptResult, Report, to_json
from mnnqnn_tasks.verify.sample import Samples, io_sample, read_text, text_maker
from mnnqnn_tasks.verify.sides import Arrays
from mnnqnn_tasks.verify.store import Store
from mnnqnn_tasks.verify.thresholds import Thresholds
from mnnqnn_tasks.verify.walk import Walk

#: Told what happens next, in a few words.
Progress = Callable[[str], None]

#: Packages whose versions a report names.
_PACKAGES = ("MNN", "onnxruntime-qnn")


def _silent(_: str) -> None:
    pass


@dataclass(frozen=True)
class Options:
    """What a user can choose.

    Attributes:
        text: verify with this text (or the file of this name) instead of the IO samples.
        prompt: verify with this user message and the CPU's greedy answer, and compare
            the next token at every position of the answer.
        answer_tokens: the answer is cut after as many tokens.
        shapes: only these; all if empty.
        jobs: shapes that run at once.
    """

    text: str | None = None
    prompt: str | None = None
    answer_tokens: int = 32
    shapes: tuple[int, ...] = ()
    jobs: int = 2
    thresholds: Thresholds = field(default_factory=Thresholds)


@dataclass(frozen=True)
class Subject:
    """What is verified.

    Attributes:
        name, target: of the model and the target, for the report.
        build: the model's build folder.
        model_dir: the model folder.
        shapes: tokens per call by shape index; the first is 1.
        options: the target's options, which the graphs are prepared with.
    """

    name: str
    target: str
    build: Path
    model_dir: Path
    shapes: tuple[int, ...]
    options: TargetOptions
    lib_dir: Path | None = None

    @property
    def report(self) -> Path:
        """Where the report goes."""
        return self.build / "verify" / f"{self.target}.json"


def run(
    subject: Subject,
    options: Options | None = None,
    *,
    out: TextIO | None = None,
    progress: Progress = _silent,
) -> Report:
    """Verify, write the report, print the table.

    Returns:
        The report of a model that passed; outputs that were not exercised are in it.

    Raises:
        VerifyError: something is under its threshold; the worst offenders are named.
            The report and the table are there all the same.
        MnnqnnError: the model, the export or a library cannot be used.
    """
    report = verify(subject, options or Options(), progress)
    write_json(subject.report, to_json(report))
    (out or sys.stdout).write(table.render(report))
    problems = report.problems()
    if problems:
        shown = problems[:5] + ([f"and {len(problems) - 5} more"] if len(problems) > 5 else [])
        raise VerifyError(
            f"{len(problems)} results are under their threshold",
            where=f"{subject.name} for {subject.target}",
            why="; ".join(shown),
            todo=f"see {subject.report}",
        )
    return report


def verify(subject: Subject, options: Options, progress: Progress = _silent) -> Report:
    """Verify and return the report, whatever it says.

    Raises:
        MnnqnnError: the model, the export or a library cannot be used.
    """
    folder = open_folder(subject.model_dir)
    net = check_model(folder.path / folder.model, _weight(folder))
    host = hostmodel.load(subject.build / "qnn" / "llm.mnn")
    wanted = _shapes(subject, options)
    report = Report(
        subject.name,
        subject.target,
        "IO samples",
        options.thresholds,
        {name: metadata.version(name) for name in _PACKAGES},
    )
    # The CPU always computes decode, which tells the axis of the tokens in every tensor,
    # and a chunk, whose tokens decode graphs are judged by too.
    longest = max(range(len(subject.shapes)), key=lambda i: subject.shapes[i])
    shapes = sorted({0, *wanted, *([] if any(wanted) else [longest])})
    samples, question = _samples(subject, options, folder, net, shapes, report)
    with tempfile.TemporaryDirectory(prefix="mnnqnn-verify-") as temp:
        job = _Job(
            subject,
            options,
            folder,
            host,
            tuple(output_names(net)),
            calibration(folder.path / folder.model, subject.build / "plan.json"),
            question,
            Path(temp),
            progress,
        )
        for index in shapes:
            progress(f"CPU model, {subject.shapes[index]} tokens")
            job.refer(index, samples[index])
        with ThreadPoolExecutor(max_workers=max(1, options.jobs)) as pool:
            # The largest shape takes longest, so it starts first.
            order = sorted(wanted, key=lambda i: -subject.shapes[i])
            running = {i: pool.submit(job.walk, i, samples[i]) for i in order}
            for index in wanted:
                graphs, chain, answer = running[index].result()
                report.graphs += graphs
                report.chains.append(chain)
                report.prompt = answer or report.prompt
    return report


@dataclass(frozen=True)
class _Job:
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

    def walk(
        self, index: int, samples: Samples
    ) -> tuple[list[GraphResult], ChainResult, PromptResult | None]:
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
        return CpuModel(worker, model, _weight(self.folder), self.formats)

    def _probes(self, index: int, plugin: hostmodel.Plugin) -> list[Probe]:
        """What a graph is judged by: for decode, a token inside a text as well.

        The decode call of a text or a prompt is its first token, alone.  Models park
        attention on such a token, with activations in the hundreds that a later layer
        cancels; what is left of them drowns in the rounding of fp16.  That is no
        property of the graph, so there the token inside the text judges it instead.
        """
        own = own_probe(self.references[index], plugin)
        chunks = [r for i, r in self.references.items() if i != 0]
        if index != 0 or not chunks:
            return [own]
        longest = max(chunks, key=lambda r: r.shape)
        row = row_probe(longest, plugin, self.references[0].single)
        if row is None:
            return [own]
        is_text = self.options.text is not None or self.options.prompt is not None
        return [row] if is_text else [own, row]

    def _border(self, inputs: Arrays) -> list[str]:
        """Every tensor at a border that the CPU computes, and the model's outputs."""
        names = dict.fromkeys(self.outputs)
        for plugin in self.host.plugins:
            names |= dict.fromkeys((*plugin.inputs, *plugin.outputs))
        return [name for name in names if name not in inputs]


def _weight(folder: ModelFolder) -> Path | None:
    path = folder.path / folder.weight
    return path if path.exists() else None


def _shapes(subject: Subject, options: Options) -> list[int]:
    """Indices of the shapes to verify."""
    unknown = [shape for shape in options.shapes if shape not in subject.shapes]
    if unknown:
        raise VerifyError(
            f"the model was not exported for {unknown[0]} tokens",
            where=subject.name,
            why=f"its shapes are {', '.join(map(str, subject.shapes))}",
            todo="add it to the model's chunk_sizes and run the export",
        )
    return [i for i, n in enumerate(subject.shapes) if not options.shapes or n in options.shapes]


def _samples(
    subject: Subject,
    options: Options,
    folder: ModelFolder,
    net: Table,
    shapes: Sequence[int],
    report: Report,
) -> tuple[dict[int, Samples], prompt.Question | None]:
    """The inputs of every shape, and the question that they hold, if any."""
    if options.prompt is None and options.text is None:
        testdir = subject.build / "testdir"
        return {i: io_sample(testdir, subject.shapes[i]) for i in shapes}, None
    maker = text_maker(folder, net)
    question = None
    if options.prompt is not None:
        size = max(subject.shapes[i] for i in shapes)
        question = prompt.ask(maker, _weight(folder), options.prompt, size, options.answer_tokens)
        tokens = list(question.tokens)
        report.sample = "prompt and the CPU's answer"
    else:
        tokens = maker.tokens(read_text(options.text or ""))
        report.sample = f"text of {len(tokens)} tokens"
    return {i: maker.inputs(tokens, subject.shapes[i]) for i in shapes}, question
