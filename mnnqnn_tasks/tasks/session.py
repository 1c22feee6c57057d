"""What one doit process knows: pipelines, build folders, and how the run is going.

doit makes the database, the checker, the reporter and the tasks separately and gives
none of them a common context; this is it.  There is one per process.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mnnqnn_tasks.cache.config import cache_settings
from mnnqnn_tasks.cache.statcache import DigestCache
from mnnqnn_tasks.cache.store import Cache, open_cache
from mnnqnn_tasks.errors import MnnqnnError
from mnnqnn_tasks.tasks.admission import Memory, available
from mnnqnn_tasks.tasks.geniechain.layout import GenieLayout
from mnnqnn_tasks.tasks.journal import Journal, PathNames
from mnnqnn_tasks.tasks.layout import Layout
from mnnqnn_tasks.tasks.lock import FolderLock

if TYPE_CHECKING:
    from mnnqnn_tasks.spec.genie import GenieModel, GeniePipeline
    from mnnqnn_tasks.spec.pipeline import Model, Pipeline
    from mnnqnn_tasks.tasks.executor import Executor
    from mnnqnn_tasks.tasks.seal import Sealed
    from mnnqnn_tasks.tasks.tools import Tools

#: Folder in a build folder for what this room keeps there.
STATE_DIR = ".mnnqnn"

#: Base names of our tasks, in the order of the stages.
STAGES = (
    "model",
    "io",
    "cut",
    "validate",
    "partition",
    "translate",
    "compile",
    "link",
    "bundle",
    "export_qnn",
)

#: Those of a Genie pipeline.
GENIE_STAGES = ("name", "compile", "config", "lint", "bundle", "export_genie")

#: Groups that stand for all that an export makes.
EXPORTS = ("export_qnn", "export_genie")

#: Stages whose tasks have a target's name after the model's.
OF_A_TARGET = ("validate", "link", "bundle")
GENIE_OF_A_TARGET = ("compile", "config", "lint", "bundle")


class Place:
    """A build folder: its journal, digests and lock.

    Attributes:
        digests: the memory of digests of what is in it.
        models: that of its models' files.
    """

    def __init__(self, build_dir: Path) -> None:
        self.build_dir = build_dir
        self.state = build_dir / STATE_DIR
        self.journal = Journal(self.state / "tasks.jsonl")
        self.digests = DigestCache(self.state / "digests")
        self.models = self.digests
        self.lock = FolderLock(self.state / "lock")


@dataclass(frozen=True)
class Job:
    """A model of a pipeline, with where its files are.

    Attributes:
        export: first part of the names of the groups that stand for all that is made of it.
    """

    export: ClassVar[str] = EXPORTS[0]

    pipeline: Pipeline
    model: Model
    place: Place
    layout: Layout
    path_names: PathNames

    @property
    def name(self) -> str:
        """The model's name, the second part of its tasks' names."""
        return self.model.name


@dataclass(frozen=True)
class GenieJob:
    """A model of a Genie pipeline, with where its files are; see `Job`."""

    export: ClassVar[str] = EXPORTS[1]

    pipeline: GeniePipeline
    model: GenieModel
    place: Place
    layout: GenieLayout
    path_names: PathNames

    @property
    def name(self) -> str:
        """The model's name, the second part of its tasks' names."""
        return self.model.name


@dataclass
class Session:
    """The state of this process.

    Attributes:
        jobs: by model name.
        genies: those of Genie pipelines.
        places: by build folder.
        running: this command executes tasks (and holds the locks).
        groups: names of tasks that only hold others together.
        reasons: why a task is not fresh, by task name.
        failed: names of tasks that failed or wait for one that did.
        removed: how many files and folders this command deleted, or would.
        problems: messages about what could not be deleted, one per reason.
        builds: there are tasks of stages, not only bundles that are ready.
        only_failures: what went wrong in this run are failed tasks, nothing else.
        seen: files that the task asked about last made, and that are as they were then.
        memory: what the tasks of this run share; ``None`` without a run.
        caches: by pipeline file; none without a run.
        executor: does the work of tasks; ``None`` without a run.
        made: ``[size, time, sha256]`` by path of what this run's tasks made.
        tools: a user's own tools that were looked at, by kind, folder and what else they use.
        sealed: by model whose seal holds, the tasks that are asked for, by name.
        seal_bases: by model, what a seal of it is good for beside the records of its tasks.
    """

    jobs: dict[str, Job] = field(default_factory=dict)
    genies: dict[str, GenieJob] = field(default_factory=dict)
    places: dict[Path, Place] = field(default_factory=dict)
    running: bool = False
    groups: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    removed: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    builds: bool = False
    only_failures: bool = False
    seen: set[str] = field(default_factory=set)
    memory: Memory | None = None
    caches: dict[Path, Cache | None] = field(default_factory=dict)
    executor: Executor | None = None
    made: dict[str, list[Any]] = field(default_factory=dict)
    tools: dict[tuple[str, Path, tuple[str, ...] | None], Tools] = field(default_factory=dict)
    sealed: dict[str, dict[str, Sealed]] = field(default_factory=dict)
    seal_bases: dict[str, str] = field(default_factory=dict)
    _models: dict[str, Place] = field(default_factory=dict)
    # Folders of which only we write the ones called after models, by their path and "/".
    _outputs: dict[str, dict[str, Place]] = field(default_factory=dict)

    def add(self, pipeline: Pipeline) -> None:
        """Make a job of every model of ``pipeline``."""
        place = self.places.setdefault(pipeline.build_dir, Place(pipeline.build_dir))
        for model in pipeline.models:
            layout = Layout(
                str(pipeline.build_dir / model.name), str(pipeline.dist_dir / model.name)
            )
            names = PathNames(
                {"@build": layout.build, "@dist": layout.dist, "@model": str(model.path)}
            )
            self.jobs[model.name] = Job(pipeline, model, place, layout, names)
            self._models[str(model.path)] = place
            for top in (pipeline.build_dir, pipeline.dist_dir):
                self._outputs.setdefault(f"{top}{os.sep}", {})[model.name] = place

    def add_genie(self, pipeline: GeniePipeline) -> None:
        """Make a job of every model of a Genie pipeline."""
        place = self.places.setdefault(pipeline.build_dir, Place(pipeline.build_dir))
        for model in pipeline.models:
            layout = GenieLayout(
                str(pipeline.build_dir / model.name), str(pipeline.dist_dir / model.name)
            )
            names = PathNames(
                {
                    "@build": layout.build,
                    "@dist": layout.dist,
                    "@graphs": os.path.dirname(model.graphs.partition("{")[0]),
                    "@tokenizer": str(model.tokenizer.parent),
                }
            )
            self.genies[model.name] = GenieJob(pipeline, model, place, layout, names)
            for top in (pipeline.build_dir, pipeline.dist_dir):
                self._outputs.setdefault(f"{top}{os.sep}", {})[model.name] = place

    def every_job(self) -> list[Job | GenieJob]:
        """The jobs of all kinds of pipelines."""
        return [*self.jobs.values(), *self.genies.values()]

    def job_of(self, task: str) -> Job | GenieJob | None:
        """The job that a task belongs to; ``None`` for groups and a user's own tasks."""
        stage, _, rest = task.partition(":")
        model = rest.partition(":")[0]
        if stage in STAGES and model in self.jobs:
            return self.jobs[model]
        return self.genies.get(model) if stage in GENIE_STAGES else None

    def is_of_target(self, task: str) -> bool:
        """Whether the name of a task's target stands after the model's."""
        stage = task.partition(":")[0]
        genie = isinstance(self.job_of(task), GenieJob)
        return stage in (GENIE_OF_A_TARGET if genie else OF_A_TARGET)

    def share_memory(self) -> None:
        """Set the limit for the tasks of this run: the smallest that a pipeline names."""
        named = [job.pipeline.max_memory for job in self.every_job()]
        self.memory = Memory(min((m for m in named if m is not None), default=available()))

    def admitted(self, task: str, need: int) -> contextlib.AbstractContextManager[None]:
        """Wait until ``task`` may use ``need`` bytes; 0 means that it is no matter."""
        if self.memory is None or not need:
            return contextlib.nullcontext()
        return self.memory.admitted(task, need)

    def is_group(self, task: str) -> bool:
        """Whether the task only holds others together."""
        return task in self.groups

    def open_caches(self) -> None:
        """Open the cache of every pipeline, before workers fork: they share what it warns of.

        Raises:
            CacheError: settings that cannot be understood.
            ToolMissing: a package for the remote is not installed.
        """
        for job in self.every_job():
            if job.pipeline.file not in self.caches:
                settings = cache_settings(job.pipeline.cache)
                cache = open_cache(settings, warn=_warn)
                self.caches[job.pipeline.file] = cache
                if cache is not None and cache.local is not None:
                    # Of a model that another build folder has read the digests are known.
                    job.place.models = DigestCache(cache.local.root / "digests")

    def cache_of(self, job: Job | GenieJob) -> Cache | None:
        """The cache that the results of ``job`` go through, if its pipeline has one."""
        return self.caches.get(job.pipeline.file)

    def journals(self) -> list[Journal]:
        """The journals of all build folders."""
        return [place.journal for place in self.places.values()]

    def digest(self, path: str) -> str:
        """Hex SHA-256 of a file, remembered in the build folder that it belongs to.

        Raises:
            ModelFileError, StaleInputError: see `DigestCache.digest`.
        """
        return self._digests(path).digest(path)

    def readable_digest(self, path: str) -> str | None:
        """Like `digest`, but ``None`` for a file that cannot be read or is being written.

        It equals no recorded digest, so the task runs and meets the trouble itself.
        """
        try:
            return self.digest(path)
        except MnnqnnError:
            return None

    def remembered(self, path: str) -> tuple[tuple[int, int, int, int], str] | None:
        """What `digest` would tell of a file without reading it; see `DigestCache.remembered`."""
        return self._digests(path).remembered(path)

    def is_output(self, path: str) -> bool:
        """Whether ``path`` is in a folder that only we write to."""
        return self._writer(path) is not None

    def _writer(self, path: str) -> Place | None:
        for top, models in self._outputs.items():
            if path.startswith(top):
                place = models.get(path[len(top) :].partition(os.sep)[0])
                if place is not None:
                    return place
        return None

    def _digests(self, path: str) -> DigestCache:
        place = self._writer(path)
        if place is not None:
            return place.digests
        folder = os.path.dirname(path)
        while folder != os.path.dirname(folder):
            if folder in self._models:
                return self._models[folder].models
            folder = os.path.dirname(folder)
        return next(iter(self.places.values())).models


def _warn(line: str) -> None:
    sys.stderr.write(f"WARNING: {line}\n")


_current = Session()


def current() -> Session:
    """The session of this process."""
    return _current


def reset() -> Session:
    """Start anew; for a dodo file that is loaded."""
    global _current
    _current = Session()
    return _current
