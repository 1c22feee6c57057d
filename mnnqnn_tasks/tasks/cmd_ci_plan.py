"""command doit ci_plan - what has to be built, for continuous integration"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from doit.control import TaskControl
from doit.exceptions import InvalidCommand
from doit.task import Task

from mnnqnn_tasks.errors import MnnqnnError
from mnnqnn_tasks.files import canonical_json
from mnnqnn_tasks.spec.pipeline import Target
from mnnqnn_tasks.tasks import exports, names, session
from mnnqnn_tasks.tasks.anywhere import TaskCommand
from mnnqnn_tasks.tasks.exports import task_of
from mnnqnn_tasks.tasks.fresh import explain
from mnnqnn_tasks.tasks.session import GenieJob, Job

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


#: What may be asked about: the tasks of these names.
_EXPORTS = (*session.EXPORTS, "bundle")

#: The stages of a model of either kind come in this order.
_ORDER = ("name", *session.STAGES[:-2], "config", "lint", *session.STAGES[-2:])

#: The states, as the last line of the text counts them.
_WORDS = {"fresh": "fresh", "restorable": "restorable", "build": "to build"}


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
            own tools make it of which not all is known, or the model cannot be read.
        reasons: why it is not fresh: the tasks that are stale by themselves, in the order of
            the stages; only the bundle's own where no stage of it ever ran here.
    """

    model: str
    target: str
    pipeline: str
    task: str
    state: str
    key: str | None
    reasons: tuple[Reason, ...]


class CiPlan(TaskCommand):
    """Looks at every model and target; builds nothing and restores nothing."""

    name = "ci_plan"
    doc_purpose = "say what is fresh, restorable from the cache, or must be built"
    doc_usage = "[export_qnn[:MODEL[:TARGET]] | export_genie[:MODEL[:TARGET]] ...]"
    doc_description = (
        "Tells for every model and target whether its bundle is fresh, can be taken from the "
        "cache, or must be built, and why. Builds nothing."
    )
    cmd_options = (_JSON, _MATRIX)

    def _execute(self, as_json: bool, matrix: bool, pos_args: list[str]) -> int:
        if as_json and matrix:
            raise InvalidCommand("--json and --matrix are two forms of the answer: choose one")
        tasks = TaskControl(self.task_list).tasks  # which finds out who makes whose inputs
        chosen = names.expand(pos_args or [n for n in session.EXPORTS if n in tasks], tasks)
        for name in chosen:
            if name.split(":")[0] not in _EXPORTS:
                raise InvalidCommand(
                    f"{name!r} is no export\n  to do: export_qnn or export_genie, "
                    "export_qnn:MODEL or export_qnn:MODEL:TARGET; `doit why` tells of every "
                    "other task"
                )
        asked = {task.name for task in names.reach(tasks, chosen)}
        parts = list(self._parts(tasks, asked))
        if matrix:
            self.say(canonical_json({"include": [_row(p) for p in parts if p.state == "build"]}))
        elif as_json:
            value = {"version": VERSION, "parts": [asdict(part) for part in parts]}
            self.say(canonical_json(value, indent=1))
        else:
            for part in parts:
                self.say(_line(part))
            count = Counter(part.state for part in parts)
            self.say(", ".join(f"{count[state]} {word}" for state, word in _WORDS.items()))
        return 0

    def _parts(self, tasks: dict[str, Task], asked: set[str]) -> Iterator[Part]:
        """What there is to say of every bundle that is asked for."""
        jobs = session.current().every_job()
        wanted = {j.name: [t for t in j.model.targets if task_of(j, t) in asked] for j in jobs}
        pairs = [(job, target) for job in jobs for target in wanted[job.name]]
        known = {b.task: b for job in jobs for b in exports.bundles(job, wanted[job.name])}
        because = self._reasons(tasks, pairs, known)
        held = exports.in_cache(bundle for name, bundle in known.items() if because[name])
        for job, target in pairs:
            name = task_of(job, target)
            why, bundle = because[name], known.get(name)
            key = bundle.key if bundle else None
            state = "fresh" if not why else "restorable" if key in held else "build"
            task = f"{job.export}:{job.name}:{target.name}"
            file = os.path.relpath(job.pipeline.file)
            yield Part(job.name, target.name, file, task, state, key, why)

    def _reasons(
        self,
        tasks: dict[str, Task],
        pairs: list[tuple[Job | GenieJob, Target]],
        known: dict[str, exports.Bundle],
    ) -> dict[str, tuple[Reason, ...]]:
        """Why bundles are not fresh, by the names of their tasks."""
        sealed = session.current().sealed
        jobs = {job.name: job for job, _ in pairs if job.name not in sealed}
        trouble = {name: _trouble(job) for name, job in jobs.items()}
        stale: dict[str, str | None] = {}
        found: dict[str, tuple[Reason, ...]] = {}
        for job, target in pairs:
            name, first = task_of(job, target), trouble.get(job.name)
            if job.name in sealed:
                found[name] = ()
            elif first is not None:
                found[name] = (first,)
            elif exports.by_stages(job, target):
                found[name] = self._of_stages(tasks, name, stale)
            else:
                why = known[name].stale if name in known else exports.NOT_HERE
                found[name] = (Reason(name, why),) if why else ()
        return found

    def _of_stages(
        self, tasks: dict[str, Task], bundle: str, stale: dict[str, str | None]
    ) -> tuple[Reason, ...]:
        """The stale tasks that a bundle depends on; ``stale`` remembers what was asked."""
        found = []
        for task in names.reach(tasks, [bundle]):
            if session.current().is_group(task.name) or task.loader is not None:
                continue  # the tasks of a cut that is gone follow from the others
            if task.name not in stale:
                stale[task.name] = self._why(tasks, task)
            reason = stale[task.name]
            if reason is not None:
                found.append(Reason(task.name, reason))
        return tuple(sorted(found, key=_by_stage))

    def _why(self, tasks: dict[str, Task], task: Task) -> str | None:
        status = self.dep_manager.get_status(task, tasks)
        if status.status == "up-to-date":
            return None
        return status.get_error_message() or explain(task)


def _trouble(job: Job | GenieJob) -> Reason | None:
    """Why a model cannot be read; every run meets that first."""
    if isinstance(job, GenieJob):
        from mnnqnn_tasks.tasks.geniechain.whole import trouble

        met = trouble(job)
        return Reason(met[0], str(met[1]).splitlines()[0]) if met else None
    try:
        exports.model_files(job)
    except MnnqnnError as error:
        return Reason(f"model:{job.name}", str(error).splitlines()[0])
    return None


def _by_stage(reason: Reason) -> tuple[int, str]:
    stage = reason.task.split(":")[0]  # a user's own task may make what a stage reads
    return _ORDER.index(stage) if stage in _ORDER else -1, reason.task


def _row(part: Part) -> dict[str, Any]:
    return {"model": part.model, "target": part.target, "task": part.task}


def _line(part: Part) -> str:
    line = f"{part.model} {part.target}: {part.state}"
    if not part.reasons:
        return line
    first = part.reasons[0]
    more = f", and {len(part.reasons) - 1} more" if len(part.reasons) > 1 else ""
    return f"{line}; {first.task}: {first.reason}{more}"
