"""How a run ended: for every task, and for every model and target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from doit.task import Task

from mnnqnn_tasks.tasks import session
from mnnqnn_tasks.tasks.session import GenieJob, Job

#: ``restored``: its result came from the cache.  ``not run``: it waits for a failed one, or
#: the run was interrupted.
TaskOutcome = Literal["run", "restored", "fresh", "failed", "not run"]

_RAN = ("run", "restored")

#: ``skipped``: waits for a failed task that is not its own.  ``not finished``: interrupted.
ExportOutcome = Literal["built", "restored", "up to date", "failed", "skipped", "not finished"]


@dataclass(frozen=True)
class TaskResult:
    """What became of a task.

    Attributes:
        seconds: of its work, without waiting for memory.
        reason: why it ran, its error, or what it waits for; ``None`` if it is fresh.
        values: what it returned, see `mnnqnn_tasks.tasks.actions.run_stage`.
        size: how many files it made, and their bytes; ``None``: ``values`` tell.
    """

    outcome: TaskOutcome
    seconds: float
    reason: str | None
    values: Mapping[str, Any]
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Export:
    """What became of one model for one target.

    Attributes:
        seconds: of the tasks behind the bundle that ran, shared ones included.
        ran: how many these are.
        because: the failed task behind ``failed`` and ``skipped``.
    """

    model: str
    target: str
    outcome: ExportOutcome
    seconds: float
    ran: int
    because: str | None


def wanted(tasks: Mapping[str, Task], selected: Iterable[str]) -> list[str]:
    """Names of the tasks of ours that a selection asks for, groups left out, sorted."""
    here = session.current()
    seen: set[str] = set()
    todo = list(selected)
    while todo:
        name = todo.pop()
        if name not in seen and name in tasks:
            seen.add(name)
            todo += tasks[name].task_dep
    # What follows from a cut is a placeholder before it; bundles are known by name.
    return sorted(
        name
        for name in seen
        if name not in here.groups
        and here.job_of(name)
        and (not tasks[name].loader or _is_bundle(name))
    )


def exports(results: Mapping[str, TaskResult]) -> list[Export]:
    """Every model and target that ``results`` hold a bundle of, in the pipelines' order."""
    here = session.current()
    shared: dict[str, list[str]] = {}
    own: dict[tuple[str, str], list[str]] = {}
    for name in results:
        _, model, part = (*name.split(":"), "")[:3]
        if part and here.is_of_target(name):
            own.setdefault((model, part), []).append(name)
        else:
            shared.setdefault(model, []).append(name)
    return [
        _export(job, target.name, results, shared.get(job.name, []), own[job.name, target.name])
        for job in here.every_job()
        for target in job.model.targets
        if f"bundle:{job.name}:{target.name}" in results
    ]


def _export(
    job: Job | GenieJob,
    target: str,
    results: Mapping[str, TaskResult],
    shared: list[str],
    own: list[str],
) -> Export:
    mine = [*shared, *own]
    ran = [results[n] for n in mine if results[n].outcome in _RAN]
    failed = next((n for n in mine if results[n].outcome == "failed"), None)
    outcome: ExportOutcome = "failed"
    if failed is None and results[f"bundle:{job.name}:{target}"].outcome == "not run":
        failed = next(_failed_of(job.name, results), None)
        outcome = "skipped" if failed else "not finished"
    elif failed is None:
        # Shared work that leaves all of the target's own fresh has changed nothing for it.
        outcome = _made(ran) if any(results[n].outcome in _RAN for n in own) else "up to date"
    return Export(job.name, target, outcome, sum(r.seconds for r in ran), len(ran), failed)


def _made(ran: list[TaskResult]) -> ExportOutcome:
    """``restored`` if the cache had all that it is asked for."""
    asked = [r.values.get("cache", {}).get("outcome") for r in ran]
    return "restored" if "hit" in asked and "miss" not in asked else "built"


def _failed_of(model: str, results: Mapping[str, TaskResult]) -> Iterator[str]:
    return (n for n, r in results.items() if r.outcome == "failed" and n.split(":")[1] == model)


def _is_bundle(name: str) -> bool:
    return name.startswith("bundle:") and name.count(":") == 2


def table(rows: Iterable[Export]) -> list[str]:
    """Lines for a person: what is not up to date, one row each; what is, as a number."""
    told = [row for row in rows if row.outcome != "up to date"]
    cells = [("model", "target", "outcome", "tasks", "time", "")]
    cells += [
        (
            row.model,
            row.target,
            row.outcome,
            str(row.ran),
            f"{row.seconds:.1f} s",
            f"{'waits for ' if row.outcome == 'skipped' else ''}{row.because or ''}",
        )
        for row in told
    ]
    width = [max(len(row[i]) for row in cells) for i in range(5)]
    lines = [
        f"{m:{width[0]}}  {t:{width[1]}}  {o:{width[2]}}  {n:>{width[3]}}  {s:>{width[4]}}  {b}"
        for m, t, o, n, s, b in cells
    ]
    return [line.rstrip() for line in lines]


def counts(rows: Iterable[Export]) -> str:
    """``3 built, 1 failed, 5 up to date``: exports by outcome."""
    found: dict[str, int] = {}
    for row in rows:
        found[row.outcome] = found.get(row.outcome, 0) + 1
    order = ExportOutcome.__args__  # type: ignore[attr-defined]
    return ", ".join(f"{found[outcome]} {outcome}" for outcome in order if outcome in found)
