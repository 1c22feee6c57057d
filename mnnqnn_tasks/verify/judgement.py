"""From two arrays to a result: what passes, what fails, what cannot be judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from mnnqnn_tasks.verify.metrics import Array, Comparison, compare
from mnnqnn_tasks.verify.report import OutputResult, judge
from mnnqnn_tasks.verify.rows import Mask, rows_where

#: Why a comparison is under the threshold, or ``None``.
Miss = Callable[[Comparison], str | None]

_ORDER = {"failed": 0, "passed": 1, "not exercised": 2}


def judge_output(
    name: str,
    tensor: str,
    want: Array,
    got: Array,
    miss: Miss,
    inside: Mask,
    axis: int | None,
) -> OutputResult:
    """Judge one output of a graph.

    All tokens count as long as they pass.  If they do not, and the CPU's activations
    leave calibrated ranges at some of them, the others decide: there nothing excuses a
    difference.

    Args:
        inside: tokens at which nothing leaves its range.
        axis: axis of the tokens in the output, ``None`` if it has none.
    """
    found = compare(want, got)
    why = miss(found)
    decided = why is None or found.broken or found.unusable
    if decided or inside.all():
        return judge(name, tensor, got.shape, found, why)
    if axis is None or not inside.any():
        text = f"{why}, but no token keeps to the calibrated ranges"
        return OutputResult(name, tensor, got.shape, found, "not exercised", text)
    kept = compare(rows_where(want, axis, inside), rows_where(got, axis, inside))
    where = f"{int(inside.sum())} of {inside.size} tokens keep to the calibrated ranges"
    why = miss(kept)
    if why is None and kept.unusable is None:
        return OutputResult(name, tensor, got.shape, kept, "passed", f"there: {where}")
    return judge(name, tensor, got.shape, kept, f"{why}, where {where}" if why else None)


def judge_logits(
    name: str, want: Array, got: Array, miss: Miss, tensors_outside: int
) -> OutputResult:
    """Judge an output of the chain.

    Every token sees those before it, so none can be taken out: a sample that leaves
    calibrated ranges can show that the chain is right, and not that it is wrong.

    Args:
        tensors_outside: how many tensors leave their calibrated range.
    """
    found = compare(want, got)
    why = miss(found)
    if why is None or found.broken or found.unusable or not tensors_outside:
        return judge(name, name, got.shape, found, why)
    text = f"{why}, but the sample leaves the calibrated ranges of {tensors_outside} tensors"
    return OutputResult(name, name, got.shape, found, "not exercised", text)


def worst(results: Iterable[OutputResult]) -> OutputResult:
    """The result that counts among several of one output: a failure before all else.

    What another input could not decide is told with a result that passed.
    """
    results = list(results)

    def rank(result: OutputResult) -> tuple[int, float]:
        snr = result.found.snr_db
        return _ORDER[result.status], -math.inf if math.isnan(snr) else snr

    chosen = min(results, key=rank)
    aside = [r.why for r in results if r.status == "not exercised" and r.why]
    if chosen.status == "passed" and aside:
        notes = [*([chosen.why] if chosen.why else []), *(f"set aside: {why}" for why in aside)]
        return replace(chosen, why="; ".join(notes))
    return chosen
