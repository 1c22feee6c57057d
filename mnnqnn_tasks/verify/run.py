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
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import TextIO

from mnnqnn_tasks.errors import VerifyError
from mnnqnn_tasks.files import write_json
from mnnqnn_tasks.mnn.cpu import check_model, output_names
from mnnqnn_tasks.mnn.folder import ModelFolder, open_folder
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.verify import hostmodel, prompt, table
from mnnqnn_tasks.verify.job import Job, Walked, weight_file
from mnnqnn_tasks.verify.ranges import calibration
from mnnqnn_tasks.verify.report import Report, to_json
from mnnqnn_tasks.verify.sample import Samples, io_sample, read_text, text_maker
from mnnqnn_tasks.verify.subject import Options, Progress, Subject

__all__ = ["Options", "Subject", "run", "verify"]

#: Packages whose versions a report names.
_PACKAGES = ("MNN", "onnxruntime-qnn")


def run(
    subject: Subject,
    options: Options | None = None,
    *,
    out: TextIO | None = None,
    progress: Progress = lambda _: None,
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


def verify(subject: Subject, options: Options, progress: Progress = lambda _: None) -> Report:
    """Verify and return the report, whatever it says.

    Raises:
        MnnqnnError: the model, the export or a library cannot be used.
    """
    stop = threading.Event()

    def tell(what: str) -> None:
        if stop.is_set():
            raise VerifyError("verification was stopped")
        progress(what)

    folder = open_folder(subject.model_dir)
    net = check_model(folder.path / folder.model, weight_file(folder))
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
        job = Job(
            subject,
            options,
            folder,
            host,
            tuple(output_names(net)),
            calibration(folder.path / folder.model, subject.build / "plan.json"),
            question,
            Path(temp),
            tell,
        )
        for index in shapes:
            tell(f"CPU model, {subject.shapes[index]} tokens")
            job.refer(index, samples[index])
        for graphs, chain, answer in _walks(job, wanted, samples, stop):
            report.graphs += graphs
            report.chains.append(chain)
            report.prompt = answer or report.prompt
    return report


def _walks(
    job: Job, wanted: Sequence[int], samples: Mapping[int, Samples], stop: threading.Event
) -> Iterator[Walked]:
    """Walk the shapes, some at once; an error or Ctrl-C ends all of them."""
    with ThreadPoolExecutor(max_workers=max(1, job.options.jobs)) as pool:
        # The largest shape takes longest, so it starts first.
        order = sorted(wanted, key=lambda i: -job.subject.shapes[i])
        running = {i: pool.submit(job.walk, i, samples[i]) for i in order}
        try:
            for index in wanted:
                yield running[index].result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


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
        question = prompt.ask(
            maker, weight_file(folder), options.prompt, size, options.answer_tokens
        )
        tokens = list(question.tokens)
        report.sample = "prompt and the CPU's answer"
    else:
        tokens = maker.tokens(read_text(options.text or ""))
        report.sample = f"text of {len(tokens)} tokens"
    return {i: maker.inputs(tokens, subject.shapes[i]) for i in shapes}, question
