"""Makes a dodo file's content: configuration and tasks of every pipeline."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import doit
from doit import doit_cmd
from doit.exceptions import InvalidDodoFile, InvalidTask
from doit.task import DelayedLoader, Task

from mnnqnn_tasks.errors import MnnqnnError, PipelineError
from mnnqnn_tasks.spec.check import nearest
from mnnqnn_tasks.spec.load import check_together, load_any
from mnnqnn_tasks.spec.pipeline import Pipeline, Target
from mnnqnn_tasks.tasks import chains, exports, garbage, graph, names, run, seal, session
from mnnqnn_tasks.tasks.fresh import ContentChecker
from mnnqnn_tasks.tasks.plan import read_plan
from mnnqnn_tasks.tasks.reporter import Reporter
from mnnqnn_tasks.tasks.session import GenieJob, Job

#: Where a dodo file keeps its pipelines, and what else may be set on the command line.
PIPELINES = "pipelines"
VARIABLES = ("pipeline", "why", "live")


def load() -> dict[str, Any]:
    """What a ``dodo.py`` needs in its namespace.

    Raises:
        InvalidDodoFile: when a pipeline is wrong; doit prints its message.
    """
    here = session.reset()
    garbage.rarely()
    try:
        pipelines = [load_any(path) for path in pipeline_files()]
        check_together(pipelines)
        for pipeline in pipelines:
            for warning in pipeline.warnings:
                sys.stderr.write(f"WARNING: {warning}\n")
            if isinstance(pipeline, Pipeline):
                here.add(pipeline)
            else:
                here.add_genie(pipeline)
    except MnnqnnError as error:
        raise InvalidDodoFile(str(error)) from None
    return {
        "DOIT_CONFIG": {
            "backend": "mnnqnn",
            "dep_file": ".doit.jsonl",
            "check_file_uptodate": ContentChecker,
            "reporter": Reporter,
            "default_tasks": _defaults(),
            "continue": True,
            "num_process": len(os.sched_getaffinity(0)),
            "minversion": "0.37.0",
        },
        "task_mnnqnn": task_mnnqnn,
    }


def _defaults() -> list[str]:
    """The exports of the kinds of pipelines that are loaded."""
    here = session.current()
    found = (here.jobs, here.genies)
    return [name for name, jobs in zip(session.EXPORTS, found, strict=True) if jobs]


def pipeline_files() -> list[Path]:
    """The pipelines to load: ``pipeline=FILE``, else all of ``pipelines/``.

    Raises:
        PipelineError: when there are none, or the command line has an unknown variable
            that looks like one of ours.
    """
    for given in doit_cmd._CMDLINE_VARS or ():
        near = nearest(given, VARIABLES)
        if given not in VARIABLES and near:
            raise PipelineError(f"there is no setting {given!r}", todo=f"did you mean {near}=...?")
    chosen = doit.get_var("pipeline")
    if chosen == "":
        raise PipelineError("pipeline= names no file", todo="pipeline=FILE, or leave it out")
    if chosen is not None:
        return [Path(doit.get_initial_workdir() or ".") / chosen]
    folder = Path(PIPELINES)
    files = sorted(p for p in folder.glob("*") if p.suffix in (".yaml", ".yml"))
    if not files:
        raise PipelineError(
            "there is no pipeline",
            where=str(folder.absolute()),
            why="it holds no .yaml file" if folder.is_dir() else "there is no such folder",
            todo="put a pipeline there, or name one with pipeline=FILE",
        )
    return files


def task_mnnqnn() -> Iterator[Task]:
    """Export MNN LLMs to Qualcomm NPUs."""
    yield from make_tasks()  # doit tokenizes the creator's source, so it is short


def make_tasks() -> list[Task]:
    """Every task of the loaded pipelines, for the command that is loading them.

    Raises:
        InvalidTask: when another run is in the way; doit prints its message.
        InvalidCommand: when the command line names a task that there is not.
    """
    command = names.loading_command()
    try:
        executes = run.begin(command)
        looks = command is not None and command.get_name() in _LOOKING
        if looks:
            session.current().open_caches()
        short = executes or looks
        tasks = list(_all_tasks(executes, short, _typed(command), short and _may_seal(command)))
    except MnnqnnError as error:
        raise InvalidTask(str(error)) from None
    if command is not None:
        known = {task.name for task in tasks} | {t for task in tasks for t in task.targets}
        names.check_names(_typed(command), known, _other_creators(command))
    return tasks


def _typed(command: Any) -> list[str]:
    """The task names on the command line, or those of the configuration."""
    if command is None or not getattr(command, "takes_tasks", True):
        return []
    return [name for name in command.sel_tasks or () if not name.startswith("-")]


def _may_seal(command: Any) -> bool:
    """Whether nothing can come of a fresh task's being there.

    A user's own tasks may name ours; ``-a`` runs also what is fresh; with another database
    or checker nothing is.
    """
    option = names.loading_option
    return (
        command is not None
        and not _other_creators(command)
        and not (option("always") or option("single"))
        and option("backend") == "mnnqnn"
        and option("check_file_uptodate") is ContentChecker
    )


def _other_creators(command: Any) -> set[str]:
    space = getattr(command.loader, "namespace", None) or {}
    ours = {"task_mnnqnn"}
    named = {n.removeprefix("task_") for n in space if n.startswith("task_") and n not in ours}
    return named | {n for n, v in space.items() if hasattr(v, "create_doit_tasks")}


#: Commands that tell what a run would do.
_LOOKING = ("why", "ci_plan")


def _all_tasks(executes: bool, short: bool, typed: list[str], seals: bool) -> Iterator[Task]:
    """The tasks of all models.

    Args:
        executes: the command runs tasks.
        short: of a model whose bundles are ready, no other task is of interest.
        typed: the names on the command line.
        seals: a model whose seal holds needs no tasks.
    """
    here = session.current()
    by_stage: dict[str, list[str]] = {s: [] for s in (*session.STAGES, *session.GENIE_STAGES)}
    every = {job.name: job for job in here.every_job()}
    wanted = {n: _only_bundles(j, typed) if short else [] for n, j in every.items()}
    sealed = seal.standing(wanted) if seals else {}
    for name, found in sealed.items():
        here.sealed[name] = found.of(target.name for target in wanted[name])
    pairs = [(every[name], targets) for name, targets in wanted.items() if name not in sealed]
    ready = exports.short_cuts(pairs, restore=executes)
    if not short:
        ready = {name: exports.there(job) for name, job in every.items()}
    genies = _genie_tasks(wanted, ready)
    static = {
        name: list(chains.static_tasks(job))
        for name, job in here.jobs.items()
        if not wanted[name] or (name not in sealed and len(ready.get(name, ())) < len(wanted[name]))
    }
    here.builds = bool(static) or any(task.name.startswith("compile:") for task in genies)
    fixed = [task.name for tasks in (*static.values(), genies) for task in tasks]
    patterns = names.patterns(typed, here.jobs, fixed)
    for name, job in here.jobs.items():
        made, done = static.get(name, []), ready.get(name, {})
        if made:
            made += _later(job, typed, patterns, done) if executes else _planned(job, done)
        made += done.values()
        parts = [t.name for t in job.model.targets] if name in static else list(done)
        if name in sealed:
            parts = [target.name for target in wanted[name]]
            made += _sealed(job, parts)
        if name not in static:
            made.append(chains.bundles(name, parts))
        made += _exports(job, parts)
        for task in made:
            if "*" not in task.name:
                by_stage[task.name.split(":")[0]].append(task.name)
        yield from made
    for task in genies:
        by_stage[task.name.split(":")[0]].append(task.name)
    yield from genies
    for stage, members in by_stage.items():
        needed = here.jobs and stage in session.STAGES and stage != "compile"
        if not (members or needed):
            continue
        yield graph.group(stage, members, _GROUP_DOC[stage])


_GROUP_DOC = {
    "model": "digest the model folders",
    "io": "IO samples of all models",
    "cut": "cut all models as if QNN refused nothing",
    "validate": "ops that QNN refuses",
    "partition": "cut all models",
    "translate": "translate all graphs",
    "compile": "compile the sources of all graphs",
    "link": "link all binaries",
    "bundle": "all bundles",
    "export_qnn": "export every model for every target",
    "name": "give the graphs of Genie models their names",
    "config": "all genie_config.json",
    "lint": "what Genie will make of all models",
    "export_genie": "export every Genie model for every target",
}


def _genie_tasks(
    wanted: Mapping[str, list[Target]], ready: Mapping[str, Mapping[str, Task]]
) -> list[Task]:
    """The tasks of all Genie models; see `_all_tasks`."""
    here = session.current()
    if not here.genies:
        return []
    from mnnqnn_tasks.tasks.geniechain.tasks import tasks, whole_tasks

    made: list[Task] = []
    for name, job in here.genies.items():
        done = ready.get(name, {})
        whole = wanted[name] and len(done) == len(wanted[name])
        made += whole_tasks(job, done) if whole else tasks(job, done)
    return made


def _only_bundles(job: Job | GenieJob, typed: list[str]) -> list[Target]:
    """The targets for which the command line asks for bundles of ``job``.

    None of them where it asks for anything else as well: that may need every task.
    """
    wanted: dict[str, Target] = {}
    for name in typed:
        stage, *rest = name.split(":")
        other = session.current().job_of(name)
        theirs = stage in session.EXPORTS and stage != job.export
        if theirs or (other and type(other) is not type(job)):
            continue  # no model's of this kind
        if stage not in (job.export, "bundle") or "*" in name or len(rest) > 2:
            return []
        model, target = (*rest, "", "")[:2]
        if model in ("", job.name):
            wanted |= {t.name: t for t in job.model.targets if target in ("", t.name)}
    return list(wanted.values())


def _sealed(job: Job, targets: Iterable[str]) -> Iterator[Task]:
    for target in targets:
        doc = f"the bundle of {job.name} for {target}, ready with all that is behind it"
        yield graph.group(f"bundle:{job.name}:{target}", [], doc, "bundle")


def _exports(job: Job, targets: Iterable[str]) -> Iterator[Task]:
    parts = []
    for target in targets:
        name = f"export_qnn:{job.name}:{target}"
        parts.append(name)
        members = [f"bundle:{job.name}:{target}"]
        yield graph.group(name, members, f"export {job.name} for {target}", "export_qnn")
    yield graph.group(
        f"export_qnn:{job.name}", parts, f"export {job.name} for its targets", "export_qnn"
    )


def _planned(job: Job, ready: Mapping[str, Task]) -> list[Task]:
    """The tasks of the last cut, for commands that only look; none without one."""
    plan = read_plan(job.layout)
    if plan is None:
        return list(_placeholders(job, (), (), ready))
    return list(chains.planned_tasks(job, plan, ready))


def _later(
    job: Job, typed: list[str], patterns: list[names.Pattern], ready: Mapping[str, Task]
) -> list[Task]:
    """Placeholders of the tasks that this run's cut will make, under the names known now."""
    wanted = [
        name
        for name in typed
        if session.current().job_of(name) is job and _is_planned(name) and "*" not in name
    ]
    for name in wanted:
        _check_target(job, name)
    waiting = [p for p in patterns if job.name in p.waiting]
    return list(_placeholders(job, wanted, waiting, ready))


def _is_planned(name: str) -> bool:
    return name.split(":")[0] in names.PLANNED


def _check_target(job: Job, name: str) -> None:
    stage, _, *rest = name.split(":")
    targets = [target.name for target in job.model.targets]
    if stage not in ("translate", "compile") and rest and rest[0] not in targets:
        known = [":".join((stage, job.name, t, *rest[1:])) for t in targets]
        raise names.unknown(name, known)


def _placeholders(
    job: Job,
    wanted: Sequence[str],
    patterns: Sequence[names.Pattern],
    ready: Mapping[str, Task],
) -> Iterator[Task]:
    certain = [f"{stage}:{job.name}" for stage in chains.planned_stages(job)]
    certain += [f"link:{job.name}:{target.name}" for target in job.model.targets]
    certain += [name for name in _bundles(job) if name not in {t.name for t in ready.values()}]
    loader = DelayedLoader(
        functools.partial(_after_partition, job, tuple(wanted), tuple(patterns), ready),
        executed=f"partition:{job.name}",
    )
    for name in dict.fromkeys((*certain, *wanted, *(p.placeholder(job.name) for p in patterns))):
        yield Task(name, None, loader=loader, doc="known when the model is cut")


def _after_partition(
    job: Job,
    wanted: tuple[str, ...],
    patterns: tuple[names.Pattern, ...],
    ready: Mapping[str, Task],
) -> Iterator[Task]:
    """The tasks of a fresh cut; doit calls this in the middle of a run."""
    if f"partition:{job.name}" in session.current().failed:
        return
    made: list[Task] = []
    try:
        plan = read_plan(job.layout)
        made = list(chains.planned_tasks(job, plan, ready)) if plan else []
    except MnnqnnError as error:
        yield from (_failing(name, str(error)) for name in (*wanted, *_bundles(job)))
        return
    yield from made
    known = [task.name for task in made]
    for name in wanted:
        if name not in known:
            yield _failing(name, str(names.unknown(name, known)))
    for pattern in patterns:
        name, members = pattern.placeholder(job.name), pattern.members(job.name, known)
        if members is None:
            yield _failing(name, str(names.unknown(pattern.text, known)))
        else:
            yield graph.group(name, members, f"what fits {pattern.text}")


def _bundles(job: Job) -> list[str]:
    return [f"bundle:{job.name}:{target.name}" for target in job.model.targets]


def _failing(name: str, message: str) -> Task:
    return Task(name, [(_fail, [message])])


def _fail(message: str) -> Any:
    from doit.exceptions import TaskFailed

    return TaskFailed(message)
