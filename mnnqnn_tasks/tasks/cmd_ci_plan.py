"""command doit ci_plan - what has to be built, for continuous integration"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from doit.cmd_base import DoitCmdBase, tasks_and_deps_iter
from doit.control import TaskControl
from doit.exceptions import InvalidCommand
from doit.task import Task

from mnnqnn_tasks.files import canonical_json
from mnnqnn_tasks.spec.pipeline import Target
from mnnqnn_tasks.tasks import exports, session
from mnnqnn_tasks.tasks.anywhere import options_first
from mnnqnn_tasks.tasks.fresh import explain
from mnnqnn_tasks.tasks.reporter import unread_output
from mnnqnn_tasks.tasks.session import Job

#: Version of the JSON that is printed; its schema is ``schemas/ci_plan.schema.json``.
VERSION = 1

_JSON = {
    "name": "as_json",
    "long": "json",
    "type": bool,
    "default": False,
    "help": "print JSON (schemas/ci_plan.schema.json)",
}
_MATRIX = {
    "name": "matrix",
    "long": "matrix",
    "type": bool,
    "default": False,
    "help": "print a matrix for GitHub Actions of what must be built, and nothing else",
}


@dataclass(frozen=True)
class Reason:
    """Why a task would run."""

    task: str
    reason: str


@dataclass(frozen=True)
class Part:
    """What a run would do for one model and target.

    Attributes:
        state: ``fresh``: nothing; ``restorable``: take it from the cache; ``build``.
        key: under which the cache has the bundle or will have it; ``None`` where a user's
            own tools make it, or the model cannot be read.
        reasons: why it is not fresh: the tasks that are stale by themselves.
    """

    model: str
    target: str
    pipeline: str
    task: str
    state: str
    key: str | None
    reasons: tuple[Reason, ...]


class CiPlan(DoitCmdBase):  # type: ignore[misc]
    """Looks at every model and target; builds nothing and restores nothing."""

    name = "ci_plan"
    doc_purpose = "say what is fresh, restorable from the cache, or must be built"
    doc_usage = "[export_qnn[:MODEL[:TARGET]] ...]"
    doc_description = (
        "Tells for every model and target whether its bundle is fresh, can be taken from the "
        "cache, or must be built, and why. Builds nothing."
    )
    cmd_options = (_JSON, _MATRIX)

    def parse_execute(self, in_args: list[str]) -> int:
        """Parse options wherever they stand."""
        return int(super().parse_execute(options_first(self.cmdparser, in_args)))

    def _execute(self, as_json: bool, matrix: bool, pos_args: list[str]) -> int:
        if as_json and matrix:
            raise InvalidCommand("--json and --matrix are two forms of the answer: choose one")
        tasks = TaskControl(self.task_list).tasks  # which finds out who makes whose inputs
        chosen = self.sel_tasks or ["export_qnn"]
        asked = {task.name for task in tasks_and_deps_iter(tasks, chosen)}
        parts = [part for part in self._parts(tasks) if part.task in asked]
        if matrix:
            self._say(canonical_json({"include": [_row(p) for p in parts if p.state == "build"]}))
        elif as_json:
            value = {"version": VERSION, "parts": [asdict(part) for part in parts]}
            self._say(canonical_json(value, indent=1))
        else:
            for part in parts:
                self._say(_line(part))
        return 0

    def _parts(self, tasks: dict[str, Task]) -> Iterator[Part]:
        here = session.current()
        known = {b.task: b for job in here.jobs.values() for b in _bundles(job)}
        stale: dict[str, str | None] = {}
        pairs = [(j, t) for j in here.jobs.values() for t in j.model.targets]
        reasons = {
            (job.name, target.name): tuple(self._reasons(tasks, job, target, stale))
            for job, target in pairs
        }
        old = {f"bundle:{model}:{target}" for (model, target), why in reasons.items() if why}
        held = exports.in_cache(bundle for name, bundle in known.items() if name in old)
        for job, target in pairs:
            why, bundle = reasons[job.name, target.name], known.get(_bundle(job, target))
            key = bundle.key if bundle else None
            state = "fresh" if not why else "restorable" if key in held else "build"
            name = f"export_qnn:{job.name}:{target.name}"
            file = os.path.relpath(job.pipeline.file)
            yield Part(job.name, target.name, file, name, state, key, why)

    def _reasons(
        self, tasks: dict[str, Task], job: Job, target: Target, stale: dict[str, str | None]
    ) -> Iterator[Reason]:
        """The stale tasks that a bundle depends on; ``stale`` remembers what was asked."""
        for task in tasks_and_deps_iter(tasks, [_bundle(job, target)]):
            if session.current().is_group(task.name) or task.loader is not None:
                continue  # the tasks of a cut that was never made follow from the others
            if task.name not in stale:
                stale[task.name] = self._why(tasks, task)
            reason = stale[task.name]
            if reason is not None:
                yield Reason(task.name, reason)

    def _why(self, tasks: dict[str, Task], task: Task) -> str | None:
        status = self.dep_manager.get_status(task, tasks)
        if status.status == "up-to-date":
            return None
        return status.get_error_message() or explain(task)

    def _say(self, line: str) -> None:
        with unread_output():
            self.outstream.write(line + "\n")
            self.outstream.flush()


def _bundles(job: Job) -> Iterator[exports.Bundle]:
    return exports.bundles(job, job.model.targets)


def _bundle(job: Job, target: Target) -> str:
    return f"bundle:{job.name}:{target.name}"


def _row(part: Part) -> dict[str, Any]:
    return {"model": part.model, "target": part.target, "task": part.task}


def _line(part: Part) -> str:
    line = f"{part.model} {part.target}: {part.state}"
    if not part.reasons:
        return line
    first = part.reasons[0]
    more = f", and {len(part.reasons) - 1} more" if len(part.reasons) > 1 else ""
    return f"{line}; {first.task}: {first.reason}{more}"
