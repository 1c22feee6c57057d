"""What verification found, as data, as JSON (``schemas/report.schema.json``) and as text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from mnnqnn_tasks.verify.metrics import Comparison, Excursion
from mnnqnn_tasks.verify.thresholds import Activations, Thresholds

Status = Literal["passed", "failed", "not exercised"]

#: Raised when a key changes its meaning or goes away.
REPORT_VERSION = 1


@dataclass(frozen=True)
class OutputResult:
    """One tensor compared.

    Attributes:
        name: the graph's output (``t<tensor index>``) or the model's (``logits``).
        tensor: the tensor's name in the model.
        dims: its shape.
        why: for a status other than passed, the reason; for one that passed, what the
            comparison was limited to, if anything.
    """

    name: str
    tensor: str
    dims: tuple[int, ...]
    found: Comparison
    status: Status
    why: str | None = None


def judge(
    name: str, tensor: str, dims: tuple[int, ...], found: Comparison, miss: str | None
) -> OutputResult:
    """Turn a comparison into a result.

    Args:
        miss: why ``found`` is under the threshold, else ``None``.
    """
    if found.broken:
        return OutputResult(name, tensor, dims, found, "failed", found.broken)
    if found.unusable:
        return OutputResult(name, tensor, dims, found, "not exercised", found.unusable)
    return OutputResult(name, tensor, dims, found, "failed" if miss else "passed", miss)


@dataclass(frozen=True)
class GraphResult:
    """One graph run on the emulator with the CPU model's activations.

    Attributes:
        shape: tokens per call (1 for decode).
        excursions: activations of the sample that no calibrated range covers.
        error: why the graph gave no outputs at all, else ``None``.
    """

    graph: str
    shape: int
    activations: Activations
    outputs: tuple[OutputResult, ...]
    excursions: tuple[Excursion, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class ChainResult:
    """All pieces in order, NPU outputs feeding the next piece.

    Attributes:
        positions: rows of logits; ``agreeing`` of them have the CPU's most likely token.
    """

    shape: int
    activations: Activations
    outputs: tuple[OutputResult, ...]
    agreeing: int = 0
    positions: int = 0
    error: str | None = None


@dataclass(frozen=True)
class PromptResult:
    """The NPU chain's next tokens along the CPU model's greedy answer.

    Attributes:
        prompt: what was asked, before the chat template.
        tokens: tokens of the templated prompt.
        answer: the CPU's answer as text.
        expected, got: next token ids at every position of the answer.
    """

    prompt: str
    shape: int
    tokens: int
    answer: str
    expected: tuple[int, ...]
    got: tuple[int, ...]

    @property
    def agreeing(self) -> int:
        """Positions at which the two sides choose the same token."""
        return sum(a == b for a, b in zip(self.expected, self.got, strict=True))


@dataclass
class Report:
    """Everything about one model and target."""

    model: str
    target: str
    sample: str
    thresholds: Thresholds
    libraries: dict[str, str] = field(default_factory=dict)
    graphs: list[GraphResult] = field(default_factory=list)
    chains: list[ChainResult] = field(default_factory=list)
    prompt: PromptResult | None = None

    def problems(self) -> list[str]:
        """One line per thing that is wrong, worst first."""
        ranked: list[tuple[float, str]] = []
        for where, result in self._results():
            if isinstance(result, str):
                ranked.append((-math.inf, f"{where}: {result}"))
            elif result.status == "failed":
                line = f"{where} {result.name} ({result.tensor}): {result.why}"
                ranked.append((_rank(result.found), line))
        ranked += [(-math.inf, line) for line in self._never_compared()]
        if self.prompt and self.prompt.agreeing < len(self.prompt.expected):
            wrong = [
                i
                for i, pair in enumerate(zip(self.prompt.expected, self.prompt.got, strict=True))
                if pair[0] != pair[1]
            ]
            ranked.append((-math.inf, f"prompt: another next token at answer positions {wrong}"))
        return [line for _, line in sorted(ranked, key=lambda item: item[0])]

    def _never_compared(self) -> Iterator[str]:
        """A graph of which nothing was judged has not been verified."""
        if not any(True for _ in self._results()):
            yield "nothing was compared"
        for graph in self.graphs:
            if graph.outputs and all(o.status == "not exercised" for o in graph.outputs):
                yield f"{graph.graph}: none of its outputs was exercised; verify with --text"

    def not_exercised(self) -> list[str]:
        """Outputs that this sample says nothing about."""
        return [
            f"{where} {result.name} ({result.tensor}): {result.why}"
            for where, result in self._results()
            if not isinstance(result, str) and result.status == "not exercised"
        ]

    def _results(self) -> Iterator[tuple[str, OutputResult | str]]:
        for graph in self.graphs:
            where = graph.graph
            if graph.error is not None:
                yield where, graph.error
            yield from ((where, output) for output in graph.outputs)
        for chain in self.chains:
            where = f"chain of {chain.shape} tokens"
            if chain.error is not None:
                yield where, chain.error
            yield from ((where, output) for output in chain.outputs)

    def passed(self) -> bool:
        """True when nothing is wrong; outputs that were not exercised are listed apart."""
        return not self.problems()


def _rank(found: Comparison) -> float:
    return -math.inf if math.isnan(found.snr_db) else found.snr_db


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain JSON values.

    A measure that cannot be had is ``null``; so is the SNR of two equal tensors, whose
    ``equal`` is true.
    """
    return {
        "version": REPORT_VERSION,
        "model": report.model,
        "target": report.target,
        "sample": report.sample,
        "passed": report.passed(),
        "problems": report.problems(),
        "not_exercised": report.not_exercised(),
        "thresholds": asdict(report.thresholds),
        "libraries": report.libraries,
        "graphs": [
            {
                "graph": g.graph,
                "shape": g.shape,
                "activations": g.activations,
                "error": g.error,
                "outputs": [_output(o) for o in g.outputs],
                "out_of_range": [
                    {f.name: _number(getattr(e, f.name)) for f in fields(e)} for e in g.excursions
                ],
            }
            for g in report.graphs
        ],
        "chains": [
            {
                "shape": c.shape,
                "activations": c.activations,
                "error": c.error,
                "outputs": [_output(o) for o in c.outputs],
                "agreeing": c.agreeing,
                "positions": c.positions,
            }
            for c in report.chains
        ],
        "prompt": _prompt(report.prompt),
    }


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _output(result: OutputResult) -> dict[str, Any]:
    found = result.found
    return {
        "name": result.name,
        "tensor": result.tensor,
        "dims": list(result.dims),
        "status": result.status,
        "why": result.why,
        "equal": found.max_abs_error == 0.0,
        "cosine": _number(found.cosine),
        "snr_db": _number(found.snr_db),
        "max_abs_error": _number(found.max_abs_error),
        "max_abs_reference": _number(found.max_abs_reference),
    }


def _prompt(prompt: PromptResult | None) -> dict[str, Any] | None:
    if prompt is None:
        return None
    return {
        "prompt": prompt.prompt,
        "shape": prompt.shape,
        "tokens": prompt.tokens,
        "answer": prompt.answer,
        "expected": list(prompt.expected),
        "got": list(prompt.got),
        "agreeing": prompt.agreeing,
    }
