"""The report as a table for a person."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from mnnqnn_tasks.verify.report import OutputResult, Report

_HEAD = ("graph", "tokens", "output", "tensor", "cosine", "SNR dB", "max error", "result")
_RIGHT = {1, 4, 5, 6}
_LONGEST = 44
_RESULT = {"passed": "ok", "failed": "FAILED", "not exercised": "not exercised"}


def render(report: Report) -> str:
    """Lines of text, ending in one that says whether the model passed."""
    rows = [
        *_rows((g.graph, g.shape, g.outputs, g.error) for g in report.graphs),
        *_rows(("chain", c.shape, c.outputs, c.error) for c in report.chains),
    ]
    lines = [f"{report.model} for {report.target}, sample: {report.sample}", ""]
    lines += _columns([_HEAD, *rows])
    lines += ["", *_notes(report)]
    return "\n".join(lines) + "\n"


def _rows(
    results: Iterable[tuple[str, int, tuple[OutputResult, ...], str | None]],
) -> Iterator[tuple[str, ...]]:
    for where, shape, outputs, error in results:
        if error is not None:
            yield where, str(shape), "-", "", "", "", "", "FAILED: " + error.splitlines()[0]
        for o in outputs:
            found = o.found
            yield (
                where,
                str(shape),
                o.name,
                _shorten(o.tensor),
                _fixed(found.cosine, 6),
                _fixed(found.snr_db, 1),
                _general(found.max_abs_error),
                _RESULT[o.status] + (f": {o.why}" if o.why else ""),
            )


def _notes(report: Report) -> Iterator[str]:
    for c in report.chains:
        if c.positions:
            yield (
                f"chain of {c.shape} tokens: {c.agreeing} of {c.positions} positions have "
                "the CPU's most likely token"
            )
    for g in report.graphs:
        if g.excursions:
            e = max(g.excursions, key=lambda e: e.fraction)
            yield (
                f"{g.graph}: the sample leaves the calibrated ranges of {len(g.excursions)} "
                f"tensors, most with {e.count} values ({e.fraction:.2%}) of {e.tensor}: "
                f"{e.reached_low:.5g}..{e.reached_high:.5g} "
                f"for {e.low:.5g}..{e.high:.5g}; all are in the JSON report"
            )
    if report.prompt:
        p = report.prompt
        yield f"prompt: {p.prompt!r} ({p.tokens} tokens with its template)"
        yield f"CPU's answer: {p.answer!r}"
        yield f"same next token at {p.agreeing} of {len(p.expected)} positions of the answer"
    skipped = len(report.not_exercised())
    if skipped:
        yield f"{skipped} outputs were not exercised by this sample (listed above)"
    problems = report.problems()
    yield f"FAILED: {len(problems)} problems" if problems else "passed"


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD) - 1)]
    return [
        "  ".join(
            [row[i].rjust(w) if i in _RIGHT else row[i].ljust(w) for i, w in enumerate(widths)]
            + [row[-1]]
        ).rstrip()
        for row in rows
    ]


def _shorten(name: str) -> str:
    # The end of a tensor's name tells more than its start.
    return name if len(name) <= _LONGEST else "..." + name[-(_LONGEST - 3) :]


def _fixed(value: float, digits: int) -> str:
    if math.isnan(value):
        return "-"
    return "equal" if value == math.inf else f"{value:.{digits}f}"


def _general(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"
