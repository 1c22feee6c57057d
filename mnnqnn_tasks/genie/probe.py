"""What the real loader says of a bundle, next to what our model of that version predicts.

Any disagreement is a finding against `mnnqnn_tasks.genie.rules`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import GenieError, QnnError
from mnnqnn_tasks.genie import config_read, graphs, rules, witness
from mnnqnn_tasks.genie.prediction import Prediction, Variant
from mnnqnn_tasks.genie.testimony import Testimony
from mnnqnn_tasks.genie.versions import parse_version

REPORT_VERSION = 1

#: What the loader prints around its reasons, and errors that it goes on after.
_FRAME = (
    "Model Validation Errors found",
    "Error validating model. Please check your I/O.",
    "Error : Could not find I/O tensors in loaded graphs.",
    "Unable to load backend extensions",
    "Cannot open file",
    "HTP backend extensions failed to parse",
)
#: Outcomes that say nothing of graphs, names and context size.
_SILENT = {
    "config refused": "libGenie refused the config before it looked at a graph",
    "not loaded": "loading stopped for a reason that lies outside graphs and names; binaries with "
    "shared weights, for one, load on a device only",
    "timed out": "the time was up",
}


@dataclass(frozen=True)
class Disagreement:
    """Where the model of the loader is wrong."""

    what: str
    predicted: str
    heard: str


@dataclass(frozen=True)
class Report:
    """A probe.

    Attributes:
        bundle: the config that was asked about.
        prediction: None where the binaries could not be read; ``unread`` says why.
        disagreements: findings against our model.
        silent: why the verdict could not be compared, None where it was.
    """

    bundle: str
    heard: Testimony
    prediction: Prediction | None
    disagreements: tuple[Disagreement, ...]
    silent: str | None = None

    @property
    def exit_code(self) -> int:
        """0: accepted, as predicted; 1: not accepted; 2: the model is wrong."""
        if self.disagreements:
            return 2
        return 0 if self.heard.outcome == "accepted" else 1


def probe(
    bundle: Path,
    lib_dir: Path,
    question: str | None = None,
    tokens: int = witness.TOKENS,
    timeout: float = witness.TIMEOUT,
) -> Report:
    """Ask libGenie about a bundle, and our model as well.

    Raises:
        GenieError: there is no config, or it cannot be read.
        QnnError, NativeCrash, ToolMissing: the library cannot be asked.
    """
    path = config_read.config_file(bundle)
    heard = witness.ask(path, lib_dir, question, tokens, timeout)
    try:
        config = config_read.read_config(path)
        read = [graph for n in config.binaries for graph in graphs.read(config.path(n)).graphs]
        predicted = rules.predict(read, config.loader, parse_version(heard.version))
    except (GenieError, QnnError) as error:
        return Report(str(bundle), heard, None, (), f"there is no prediction: {error}")
    silent = silence(heard)
    return Report(str(bundle), heard, predicted, tuple(compare(predicted, heard)), silent)


def silence(heard: Testimony) -> str | None:
    """Why the loader's verdict cannot be compared, None where it can."""
    if heard.code == -9:
        return "the system ended the process by SIGKILL, most often because memory ran out"
    return _SILENT.get(heard.outcome)


def compare(predicted: Prediction, heard: Testimony) -> Iterator[Disagreement]:
    """Where they differ: the table, the verdict, the reasons."""
    silent = silence(heard) is not None
    if predicted.by_chance and heard.outcome in ("accepted", "crashed"):
        return  # what it had printed when it died depends on the memory's state as well
    if (heard.variants or not silent) and predicted.variants != heard.variants:
        yield Disagreement("table", table(predicted.variants), table(heard.variants))
    if silent:
        return
    ours, theirs = _verdict(predicted), heard.outcome
    if ours != theirs:
        messages = "; ".join(refusal.message for refusal in predicted.refusals)
        said = heard.ending if theirs == "crashed" else "; ".join(heard.reasons)
        yield Disagreement(
            "verdict", ": ".join(filter(None, (ours, messages))), f"{theirs}: {said}".strip(": ")
        )
    elif ours == "refused":
        messages_of = [refusal.message for refusal in predicted.refusals]
        reasons = [text for text in heard.reasons if not text.startswith(_FRAME)]
        for message in messages_of:
            if not any(message in reason for reason in reasons):
                yield Disagreement("reason", message, "not said")
        for reason in reasons:
            if not any(message in reason for message in messages_of):
                yield Disagreement("reason", "not predicted", reason)


def _verdict(predicted: Prediction) -> str:
    if predicted.accepted:
        return "accepted"
    if predicted.by_chance:
        return "by chance"
    return "crashed" if any(refusal.crash for refusal in predicted.refusals) else "refused"


def table(variants: Sequence[Variant]) -> str:
    """A table of graphs in words."""
    return (
        "; ".join(f"(AR {v.ar}, CL {v.cl}): {', '.join(v.graphs)}" for v in variants) or "no table"
    )


def to_json(report: Report) -> dict[str, Any]:
    """``schemas/genie_probe.schema.json``."""
    heard, predicted = report.heard, report.prediction
    return {
        "version": REPORT_VERSION,
        "bundle": report.bundle,
        "qairt": heard.version,
        "genie": heard.api,
        "outcome": heard.outcome,
        "ending": heard.ending,
        "variants": _variants(heard.variants),
        "reasons": list(heard.reasons),
        "prompt": list(heard.prompt),
        "answer": None if heard.answer is None else list(heard.answer),
        "predicted": None
        if predicted is None
        else {
            "outcome": _verdict(predicted),
            "variants": _variants(predicted.variants),
            "refusals": [
                {"rule": r.rule, "message": r.message, "graphs": list(r.graphs)}
                for r in predicted.refusals
            ],
        },
        "not_compared": report.silent,
        "disagreements": [
            {"what": d.what, "predicted": d.predicted, "heard": d.heard}
            for d in report.disagreements
        ],
    }


def _variants(variants: Sequence[Variant]) -> list[dict[str, Any]]:
    return [{"ar": v.ar, "cl": v.cl, "graphs": list(v.graphs)} for v in variants]


def to_text(report: Report) -> Iterator[str]:
    """Lines for a person."""
    heard = report.heard
    yield f"{report.bundle}: libGenie {heard.api} of QAIRT {heard.version}: {heard.outcome}"
    if heard.outcome in ("crashed", "timed out"):
        yield f"  {heard.ending}"
    for variant in heard.variants:
        yield f"  AR {variant.ar}, CL {variant.cl}"
        for index, name in enumerate(variant.graphs):
            yield f"    {index:>3}  {name}"
    for reason in heard.reasons:
        yield f"  it says: {reason}"
    if heard.answer is not None:
        yield f"  prompt, as tokens: {' '.join(map(str, heard.prompt))}"
        yield f"  answer, by token: {' '.join(map(repr, heard.answer)) or 'nothing'}"
    if report.silent:
        yield f"  not compared: {report.silent}"
    for one in report.disagreements:
        yield f"  DISAGREEMENT in the {one.what}: our model of {heard.version} is wrong"
        yield f"    predicted: {one.predicted}"
        yield f"    libGenie:  {one.heard}"
    if not report.disagreements and report.prediction and not report.silent:
        yield "  as predicted"
