"""The CPU model: what MNN computes for a model, in a process of its own.

Results are those of 32-bit floats.  They do not depend on how many cores the machine
has: the number of threads is fixed, and MNN splits work so that it does not matter.

An Attention op with a KV cache keeps nothing between runs: without the LLM engine's
bookkeeping MNN clears the cache in every pass (``CPUAttention.cpp``), so a run over n
tokens is a prefill of n tokens from an empty cache, and decode is a run over one token.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mnnqnn_tasks import errors, peak
from mnnqnn_tasks.errors import MnnqnnError, ModelFileError, NativeCrash, ToolMissing
from mnnqnn_tasks.files import disk_errors
from mnnqnn_tasks.mnn import reader, samples
from mnnqnn_tasks.mnn.folder import open_folder
from mnnqnn_tasks.mnn.params import check_range, net_ranges
from mnnqnn_tasks.mnn.samples import Sample
from mnnqnn_tasks.mnn.segments import BUDGET, split
from mnnqnn_tasks.mnn.table import Table

#: Fixed, so that no result and no time depends on the machine's number of cores.
THREADS = 2
_TAIL_LINES = 20

Arrays = Mapping[str, "npt.NDArray[Any] | Sample"]


class CpuWorker:
    """A process that runs MNN models; use it as a context manager.

    Consecutive runs with the same model, inputs and outputs reuse the loaded module.
    """

    def __init__(self, *, precision: str = "high", threads: int = THREADS, nice: int = 0) -> None:
        self.precision = precision
        self.threads = threads
        self.nice = nice  # added to our own niceness
        self._stack = contextlib.ExitStack()
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None
        self._folder = Path()

    def __enter__(self) -> CpuWorker:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory("-mnn")))
        self._log = self._stack.enter_context(tempfile.TemporaryFile())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mnnqnn_tasks.mnn.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=self._folder,
            env=_environment(),
            encoding="utf-8",
        )
        if self.nice:  # before it has threads, which take it over
            with contextlib.suppress(OSError):
                ours = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, self._process.pid, ours + self.nice)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        if process is not None:
            peak.helper_used(peak.resident_peak(process.pid))
            if kind is not None:
                process.kill()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            process.wait()
        self._stack.close()

    def run(
        self,
        model: str | os.PathLike[str],
        weight: str | os.PathLike[str] | None,
        inputs: Arrays,
        outputs: Sequence[str],
    ) -> dict[str, Sample]:
        """Compute the tensors ``outputs`` from the tensors ``inputs``.

        Args:
            model: the ``llm.mnn``; `check_model` it first.
            weight: its weight file, or ``None`` if it needs none.
            inputs: values of the inputs, or of any tensors inside the model, by name.
                A plain array is NCHW; of a tensor inside the model the layout that
                MNN has there must be given (`Sample`), NC4HW4 with values in NCHW order.
            outputs: names of the outputs, or of any tensors inside the model.

        Returns:
            the outputs by name, with MNN's layout; values of NC4HW4 are in NCHW order.
            They are memory-mapped from files without a name, which vanish with them, so
            a great many do not need to fit in memory at once.

        Raises:
            ModelFileError: when MNN cannot load or compute the model.
            NativeCrash: when the process ended.
            ToolMissing: when MNN is not installed or too old.
        """
        folder = self._folder
        listed = []
        for index, (name, value) in enumerate(inputs.items()):
            sample = value if isinstance(value, Sample) else Sample(value)
            with disk_errors(folder):
                np.save(folder / f"in{index}.npy", sample.values, allow_pickle=False)
            listed.append({"name": name, "file": f"in{index}.npy", "format": sample.format})
        request = {
            "model": os.path.abspath(model),
            "weight": None if weight is None else os.path.abspath(weight),
            "precision": self.precision,
            "threads": self.threads,
            "folder": str(folder),
            "inputs": listed,
            "outputs": list(outputs),
        }
        answer = self._ask(request, os.fspath(model))
        return {item["name"]: _load(folder, item) for item in answer["outputs"]}

    def _ask(self, request: dict[str, Any], model: str) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line.endswith("\n"):
            raise self._crash(process.wait(), model)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            error = answer["error"]
            kind: type[MnnqnnError] = getattr(errors, error["kind"])
            about = {} if kind is ToolMissing else {"where": model, "tail": self._tail()}
            raise kind(error["what"], why=error["why"], todo=error["todo"], **about)
        return answer

    def _crash(self, status: int, model: str) -> NativeCrash:
        if status < 0:
            try:
                name = signal.Signals(-status).name
            except ValueError:
                name = str(-status)
            why = f"it was ended by signal {name}"
        else:
            why = f"it ended with exit code {status}"
        return NativeCrash(
            "the process that runs the CPU model ended",
            where=model,
            why=why,
            todo="check that llm.mnn and the weight file come from one export; "
            "a signal KILL means that memory ran out",
            tail=self._tail(),
        )

    def _tail(self) -> str:
        assert self._log is not None
        self._log.seek(0)
        text = self._log.read().decode("utf-8", "replace")
        return "\n".join(text.splitlines()[-_TAIL_LINES:])


def _environment() -> dict[str, str]:
    """Ours, with the folder of this package first where Python looks for modules."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _load(folder: Path, item: Mapping[str, str]) -> Sample:
    path = folder / item["file"]
    values: npt.NDArray[Any]
    try:
        values = np.load(path, allow_pickle=False, mmap_mode="r")
    except ValueError:  # an array without elements cannot be mapped
        values = np.load(path, allow_pickle=False)
    os.unlink(path)
    return Sample(values, item["format"])


def check_model(model: str | os.PathLike[str], weight: str | os.PathLike[str] | None) -> Table:
    """Read a model and make sure that MNN can be trusted with it and its weight file.

    MNN itself reads past the end of a short weight file without a word.

    Raises:
        ModelFileError: when the model is damaged, has an unknown op, or needs more of
            the weight file than there is.
    """
    name = os.fspath(model)
    net = reader.read(name)
    reader.check_ops(net, name)
    needed = list(net_ranges(net))
    if needed:
        size = -1
        with contextlib.suppress(OSError, TypeError):
            size = os.stat(weight).st_size  # type: ignore[arg-type]
        if size < 0:
            raise ModelFileError(
                "the weight file of the model is missing",
                where=str(weight or f"{name}.weight"),
                why=f"op {needed[0].op} reads it",
                todo="copy the whole model folder, or export the model again",
            )
        for item in needed:
            check_range(item, size, str(weight))
    return net


def run_pieces(
    worker: CpuWorker,
    net: Table,
    model: str | os.PathLike[str],
    weight: str | os.PathLike[str] | None,
    inputs: Arrays,
    outputs: Sequence[str],
    budget: int = BUDGET,
) -> Iterator[tuple[str, Sample]]:
    """What `CpuWorker.run` gives, piece by piece of the model (see `segments`).

    Memory is that of the largest piece; each result comes when its piece is done.

    Args:
        net: the model, from `check_model`.
        budget: weights of a piece in bytes of 32-bit floats.

    Raises:
        ModelFileError, NativeCrash, ToolMissing: see `CpuWorker.run`.
    """
    for name, results in run_samples(worker, net, model, weight, [inputs], outputs, budget):
        yield name, results[0]


def run_samples(
    worker: CpuWorker,
    net: Table,
    model: str | os.PathLike[str],
    weight: str | os.PathLike[str] | None,
    samples: Sequence[Arrays],
    outputs: Sequence[str],
    budget: int = BUDGET,
) -> Iterator[tuple[str, list[Sample]]]:
    """Like `run_pieces` for several samples, which have the same names.

    Every piece is loaded once and runs on all of them.

    Raises:
        ModelFileError, NativeCrash, ToolMissing: see `CpuWorker.run`.
    """
    known: list[dict[str, npt.NDArray[Any] | Sample]] = [dict(sample) for sample in samples]
    pieces = split(net, list(samples[0]), outputs, budget)
    for number, piece in enumerate(pieces):
        later = {name for other in pieces[number + 1 :] for name in other.inputs}
        results = []
        for index, values in enumerate(known):
            given = {name: values[name] for name in piece.inputs}
            results.append(worker.run(model, weight, given, piece.outputs))
            values |= results[-1]
            known[index] = {name: value for name, value in values.items() if name in later}
        for name in piece.outputs:
            if name in outputs:
                yield name, [result[name] for result in results]


def run_model(
    model: str | os.PathLike[str],
    weight: str | os.PathLike[str] | None,
    inputs: Arrays,
    outputs: Sequence[str],
    *,
    precision: str = "high",
) -> dict[str, Sample]:
    """Compute the tensors ``outputs`` in a process that ends afterwards.

    Raises:
        ModelFileError, NativeCrash, ToolMissing: see `check_model` and `CpuWorker.run`.
    """
    net = check_model(model, weight)
    with CpuWorker(precision=precision) as worker:
        results = dict(run_pieces(worker, net, model, weight, inputs, outputs))
    return {name: results[name] for name in outputs}


def output_names(net: Table) -> list[str]:
    """What ``output.mnn`` holds: the logits, or every output of a model without any."""
    names = list(net.outputName or ())
    return ["logits"] if "logits" in names else names


def forward(
    model_dir: str | os.PathLike[str],
    files: Mapping[str | os.PathLike[str], str | os.PathLike[str]],
    *,
    nice: int = 0,
) -> None:
    """Run the model in ``model_dir`` on every ``input.mnn`` and write its ``output.mnn``.

    Args:
        files: ``output.mnn`` by ``input.mnn``.
        nice: added to the niceness of the process that computes.

    Raises:
        ModelFileError, NativeCrash, ToolMissing: see `check_model` and `CpuWorker.run`.
        DiskError: when an ``output.mnn`` cannot be written.
    """
    folder = open_folder(model_dir)
    weight = folder.path / folder.weight
    model = folder.path / folder.model
    net = check_model(model, weight)
    names = output_names(net)
    inputs = [op.name for op in net.oplists or () if op.type == "Input"]
    given = [_given(path, inputs, names) for path in files]
    with CpuWorker(nice=nice) as worker:
        used = weight if weight.exists() else None
        results = dict(run_samples(worker, net, model, used, given, names))
        for number, path in enumerate(files.values()):
            samples.write(path, {name: results[name][number] for name in names})


def _given(path: str | os.PathLike[str], inputs: Sequence[str], outputs: Sequence[str]) -> Arrays:
    """The sample in the file ``path``, if it fits a model with these inputs and outputs."""
    given = samples.read(path)
    wrong = [f"the model's input {name} is not in it" for name in inputs if name not in given]
    wrong += [f"the model has no input {name}" for name in given if name not in inputs]
    if not outputs:
        wrong.append("the model has no outputs")
    if wrong:
        raise ModelFileError(
            "the input file does not fit the model",
            where=os.fspath(path),
            why=wrong[0],
            todo="delete it and run again",
        )
    return given
