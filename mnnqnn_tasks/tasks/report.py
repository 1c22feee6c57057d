"""``report.json``: what a run did, for CI and other tools (``schemas/run.schema.json``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import doit

from mnnqnn_tasks.errors import DiskError, MnnqnnError
from mnnqnn_tasks.files import canonical_json, write_bytes
from mnnqnn_tasks.tasks import keys, session
from mnnqnn_tasks.tasks.outcome import Export, TaskResult
from mnnqnn_tasks.tasks.session import Place

#: The report's name in a build folder; no model may be called so.
NAME = "report.json"

VERSION = 1


@dataclass(frozen=True)
class RunResult:
    """A run as a whole: ``ok``, ``failed`` or ``interrupted``; what was asked for."""

    outcome: str
    seconds: float
    selected: Sequence[str]


def write(run: RunResult, results: Mapping[str, TaskResult], rows: Sequence[Export]) -> list[str]:
    """Write the report of every build folder that ``results`` are about.

    Args:
        results: by task, sorted.

    Returns:
        What went wrong; it costs the report only.
    """
    here = session.current()
    troubles = []
    places = {job.name: job.place for job in here.every_job()}
    home = {name: places[name.split(":")[1]] for name in results}
    for place in here.places.values():
        ours = {name: result for name, result in results.items() if home[name] is place}
        if not ours:
            continue
        made = [row for row in rows if places[row.model] is place]
        try:
            # Not durable: a report that a power cut loses is made again by the next run.
            text = "".join(_lines(run, ours, made))
            write_bytes(path(place), text.encode("utf-8", "backslashreplace"), durable=False)
        except DiskError as error:
            troubles.append(str(error))
    return troubles


def path(place: Place) -> str:
    """Where the report of a build folder lies."""
    return os.path.join(place.build_dir, NAME)


def _lines(
    run: RunResult, results: Mapping[str, TaskResult], rows: Sequence[Export]
) -> Iterator[str]:
    """The document, a task or an export per line: it may have ten thousand."""
    head = {
        "version": VERSION,
        "outcome": run.outcome,
        "seconds": round(run.seconds, 3),
        "selected": list(run.selected),
        "versions": _versions(),
        "totals": _totals(results),
    }
    yield "{"
    for key, value in head.items():
        yield f"\n {canonical_json(key)}: {canonical_json(value)},"
    yield '\n "exports": ['
    yield ",".join(f"\n  {canonical_json(_export(row))}" for row in rows)
    yield '\n ],\n "tasks": {'
    yield ",".join(
        f"\n  {canonical_json(name)}: {canonical_json(_task(result))}"
        for name, result in results.items()
    )
    yield "\n }\n}\n"


def _versions() -> dict[str, str | None]:
    return {
        "mnnqnn": _version("mnnqnn"),
        "doit": ".".join(map(str, doit.__version__)),
        "python": ".".join(map(str, sys.version_info[:3])),
        "MNN wheel": _known(keys.mnn_version),
        "QNN library": _known(keys.qnn_identity),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None  # run from a checkout that is not installed


def _known(ask: Any) -> str | None:
    try:
        return str(ask())
    except MnnqnnError:
        return None


def _totals(results: Mapping[str, TaskResult]) -> dict[str, int]:
    found = dict.fromkeys(("run", "restored", "fresh", "failed", "not run"), 0)
    for result in results.values():
        found[result.outcome] += 1
    return found


def _export(row: Export) -> dict[str, Any]:
    return {
        "model": row.model,
        "target": row.target,
        "outcome": row.outcome,
        "seconds": round(row.seconds, 3),
        "tasks": row.ran,
        "because": row.because,
    }


def _task(result: TaskResult) -> dict[str, Any]:
    made = result.values.get("made", {}).values()
    count, size = result.size or (len(made), sum(was[0] for was in made if was))
    ran = result.outcome in ("run", "restored")
    found: dict[str, Any] = {
        "outcome": result.outcome,
        "files": count,
        "bytes": size,
    }
    if result.outcome != "fresh":
        found["reason"] = result.reason
        found["seconds"] = round(result.seconds, 3)
    if ran:
        found["peak_bytes"] = result.values.get("used", {}).get("peak") or None
        found["cache"] = result.values.get("cache")
    return found
