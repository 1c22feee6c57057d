"""What the lint says: text for people, JSON (``schemas/genie_lint.schema.json``) for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from mnnqnn_tasks.genie.finding import Finding
from mnnqnn_tasks.genie.lint import Lint
from mnnqnn_tasks.genie.prediction import Prediction, Variant
from mnnqnn_tasks.genie.rulebook import RULES
from mnnqnn_tasks.genie.versions import VERSIONS, Version, nearest

_WIDTH = 100


def as_text(result: Lint) -> str:
    """The tables that the loaders build, then every finding, then a sum."""
    files = {graph.name: graph.file for file in result.files for graph in file.graphs}
    lines: list[str] = []
    for predictions in _alike(result.predictions):
        lines += _table(predictions, files)
        lines.append("")
    for findings in _of_one_kind(result.findings):
        lines += _finding(findings, len(result.predictions))
        lines.append("")
    warnings = len(result.findings) - result.errors
    lines.append(f"{_count(result.errors, 'error')}, {_count(warnings, 'warning')}")
    return "\n".join(lines) + "\n"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _alike(predictions: Sequence[Prediction]) -> Iterator[list[Prediction]]:
    """Predictions in groups that have the same table and the same verdict."""
    groups: dict[tuple[tuple[Variant, ...], bool], list[Prediction]] = {}
    for prediction in predictions:
        groups.setdefault((prediction.variants, prediction.accepted), []).append(prediction)
    yield from groups.values()


def _table(predictions: Sequence[Prediction], files: dict[str, str]) -> list[str]:
    first = predictions[0]
    releases = ", ".join(_release(prediction.version) for prediction in predictions)
    verdict = "takes" if first.accepted else "refuses"
    lines = [f"Genie of QAIRT {releases} {verdict} the model:"]
    if not first.variants:
        return [*lines, "  it stops before it has a table of variants"]
    rows = [("AR", "CL", "split", "graph", "file")]
    for variant in first.variants:
        for index, name in enumerate(variant.graphs):
            head = (str(variant.ar), str(variant.cl)) if index == 0 else ("", "")
            rows.append((*head, str(index), clean(name), clean(files.get(name, ""))))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def _release(version: Version) -> str:
    taken = nearest(version)
    return str(version) if taken == version else f"{version} (not known, taken for {taken})"


def _of_one_kind(findings: Sequence[Finding]) -> Iterator[list[Finding]]:
    """Findings in groups of one rule: its advice is given once."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.rule, []).append(finding)
    yield from groups.values()


def _finding(findings: Sequence[Finding], asked: int) -> list[str]:
    advice = findings[0].advice
    lines = []
    for finding in findings:
        where = "" if len(finding.versions) == asked else f" (QAIRT {', '.join(finding.versions)})"
        lines.append(f"{advice.severity}: {finding.rule}{where}: {clean(finding.what)}")
        says = [text for text in finding.says if text != finding.what]
        lines += [f"  loader: {clean(text)}" for text in says]
    parts = [("symptom", advice.symptom), ("cause", advice.cause), ("remedy", advice.remedy)]
    for label, text in parts:
        lines += textwrap.wrap(
            clean(text),
            _WIDTH,
            initial_indent=f"  {label}: ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def clean(text: str) -> str:
    """Text fit for a terminal: names are of foreign origin, and must not steer it."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def as_json(result: Lint) -> dict[str, Any]:
    """The same for programs; the schema says what the keys mean.

    What is no Unicode text in names of foreign origin becomes ``?``.
    """
    made: dict[str, Any] = _plain(_as_json(result))
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _as_json(result: Lint) -> dict[str, Any]:
    files = {graph.name: graph.file for file in result.files for graph in file.graphs}
    return {
        "version": 1,
        "files": [
            {"file": file.file, "soc_id": file.soc_id, "graphs": [g.name for g in file.graphs]}
            for file in result.files
        ],
        "loaders": [_loader(prediction, files) for prediction in result.predictions],
        "findings": [_finding_json(finding) for finding in result.findings],
        "errors": result.errors,
        "warnings": len(result.findings) - result.errors,
    }


def _loader(prediction: Prediction, files: dict[str, str]) -> dict[str, Any]:
    return {
        "qairt": str(prediction.version),
        "known": prediction.version in VERSIONS,
        "accepted": prediction.accepted,
        "says": [refusal.message for refusal in prediction.refusals],
        "variants": [
            {
                "ar": variant.ar,
                "cl": variant.cl,
                "splits": [
                    {"index": index, "graph": name, "file": files.get(name, "")}
                    for index, name in enumerate(variant.graphs)
                ],
            }
            for variant in prediction.variants
        ],
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    advice = finding.advice
    return {
        "rule": finding.rule,
        "severity": advice.severity,
        "what": finding.what,
        "graphs": list(finding.graphs),
        "qairt": list(finding.versions),
        "says": list(finding.says),
        "symptom": advice.symptom,
        "cause": advice.cause,
        "remedy": advice.remedy,
        "mend": advice.mend,
    }


def rules_text(versions: Sequence[Version]) -> str:
    """The rules that some of these releases have."""
    lines = []
    for rule in RULES:
        if any(rule.holds(version) for version in versions):
            lines.append(f"{rule.key} ({rule.span}): {rule.text}")
            lines.append(f"  seen: {rule.source}")
    return "\n".join(lines) + "\n"
