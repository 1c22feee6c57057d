"""Whole bundles from the cache: nothing else of such a model is made.

A bundle that came from the cache as a whole has no graphs, samples or binaries beside it in
the build folder, and does not need them: its task compares what it was restored for with
the model, the options and the versions of now.  Anything else is exported stage by stage.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from doit.task import Task

from mnnqnn_tasks.cache.entry import check_name
from mnnqnn_tasks.cache.keys import action_key
from mnnqnn_tasks.cache.store import Cache
from mnnqnn_tasks.errors import MnnqnnError
from mnnqnn_tasks.spec.pipeline import Target
from mnnqnn_tasks.tasks import cached, checks, session
from mnnqnn_tasks.tasks.actions import remove
from mnnqnn_tasks.tasks.fresh import Fresh
from mnnqnn_tasks.tasks.keys import ROOMS, STAGE_VERSION, code_version, mnn_version, qnn_identity
from mnnqnn_tasks.tasks.session import GenieJob, Job
from mnnqnn_tasks.toolchain.packing import Record

#: What is done, and the version of the key's form.
_ACTION = {Job: "export/2", GenieJob: "genie.export/1"}

#: The file of a bundle that a runtime reads first.
_FIRST = {Job: "config_qnn.json", GenieJob: "genie_config.json"}

#: In a record of a bundle: it came from the cache as a whole.
_WHOLE = "whole"

#: Why a bundle is stale of which nothing is known.
NOT_HERE = "it was not exported here"


def inputs_of(job: Job, target: Target, files: Mapping[str, str]) -> dict[str, Any]:
    """All that any stage of a bundle's export depends on; flat, to name what changed.

    Args:
        files: SHA-256 by name of the model's files.

    Raises:
        ToolMissing: a wheel is not installed.
    """
    rooms = sorted({room for rooms in ROOMS.values() for room in rooms})
    # An op that QNN refuses for one target of the model stays on the CPU for all.
    targets = sorted(json.dumps(t.identity(), sort_keys=True) for t in job.model.targets)
    return {
        **{f"model/{name}": digest for name, digest in files.items()},
        "chunk sizes": list(job.model.chunk_sizes),
        "runtime": job.pipeline.runtime,
        **{f"target's {k}": v for k, v in asdict(target).items() if k != "where"},
        "targets": targets,
        **{f"code of {room}": code_version(room) for room in rooms},
        "versions of stages": STAGE_VERSION,
        "MNN wheel": mnn_version(),
        "QNN library": qnn_identity(),
    }


def model_files(job: Job) -> dict[str, str]:
    """SHA-256 by name of the files of a model.

    Raises:
        ModelFileError: it cannot be read now.
        StaleInputError: it is being written.
    """
    here = session.current()
    return {name: here.digest(os.path.join(job.model.path, name)) for name in file_names(job)}


def file_names(job: Job) -> tuple[str, ...]:
    """The names of the files of a model, sorted.

    Raises:
        ModelFileError: it cannot be read now.
    """
    from mnnqnn_tasks.mnn.folder import open_folder

    return open_folder(job.model.path).files


def task_of(job: Job | GenieJob, target: Target) -> str:
    """The name of the task of a bundle."""
    return f"bundle:{job.name}:{target.name}"


@dataclass(frozen=True)
class Bundle:
    """A bundle that may be had without building it.

    Attributes:
        inputs: all that it depends on; see `inputs_of`.
        key: the digest of that, hex SHA-256.
        stale: why what is there is not that, ``None`` if it is.
    """

    job: Job | GenieJob
    target: Target
    inputs: Mapping[str, Any]
    key: str
    stale: str | None

    @property
    def task(self) -> str:
        """The name of its task."""
        return task_of(self.job, self.target)


def bundles(job: Job | GenieJob, targets: Iterable[Target]) -> Iterator[Bundle]:
    """The bundles of a model whose keys can be told now: it can be read, and what makes
    them is known."""
    for target, inputs in _inputs(job, targets):
        stale = _stale(job, target, inputs)
        yield Bundle(job, target, inputs, action_key(_ACTION[type(job)], inputs), stale)


def _stale(job: Job | GenieJob, target: Target, inputs: Mapping[str, Any]) -> str | None:
    """Why a bundle that is there is not what its inputs make."""
    if job.name in session.current().sealed:
        return None
    record = _record_of(job, target)
    if is_whole(job, target):
        return _fresh(job, target, inputs).why(record)
    return "the bundle is missing" if record else NOT_HERE


def _inputs(
    job: Job | GenieJob, targets: Iterable[Target]
) -> Iterator[tuple[Target, dict[str, Any]]]:
    """All that bundles depend on; nothing where it cannot be told now."""
    if isinstance(job, GenieJob):
        from mnnqnn_tasks.tasks.geniechain import whole

        yield from whole.planned(job, targets)
        return
    chain = _toolchain(job)
    if chain is None:
        return
    try:
        files = model_files(job)
    except MnnqnnError:
        return
    for target in targets:
        yield target, inputs_of(job, target, files) | chain


def in_cache(found: Iterable[Bundle]) -> set[str]:
    """The keys that the caches have an entry for; each cache is asked once."""
    here = session.current()
    by_cache: dict[int, tuple[Cache, list[str]]] = {}
    for bundle in found:
        cache = here.cache_of(bundle.job)
        if cache is not None:
            by_cache.setdefault(id(cache), (cache, []))[1].append(bundle.key)
    return {key for cache, keys in by_cache.values() for key in cache.contains_many(keys)}


def short_cuts(
    wanted: Iterable[tuple[Job | GenieJob, Iterable[Target]]], *, restore: bool
) -> dict[str, dict[str, Task]]:
    """Tasks of bundles that are there or can be had without any other task.

    Args:
        wanted: models with the targets that are asked for.
        restore: take bundles out of the cache; else only look whether it has them.

    Returns:
        By the names of model and target; without those that have to be exported.
    """
    here = session.current()
    asked = [(job, [t for t in targets if _may_be_whole(job, t)]) for job, targets in wanted]
    found = [b for job, targets in asked if targets for b in bundles(job, targets)]
    held = in_cache(b for b in found if b.stale is not None)
    ready: dict[str, dict[str, Task]] = {}
    for bundle in found:
        task = None
        if bundle.stale is None:
            task = _task(bundle, None, {})
        elif bundle.key in held and not restore:
            task = _task(bundle, f"{bundle.stale}; the cache has it", {})
        elif bundle.key in held:
            made = _restore(here.cache_of(bundle.job), bundle)
            task = _task(bundle, bundle.stale, made) if made else None
        if task is not None:
            ready.setdefault(bundle.job.name, {})[bundle.target.name] = task
    return ready


def there(job: Job | GenieJob) -> dict[str, Task]:
    """Tasks of the bundles that came from the cache as a whole, for commands that neither
    run tasks nor tell what would run: whether they are still right is not asked."""
    return {
        target.name: _task(Bundle(job, target, {}, "", None), None, {})
        for target in job.model.targets
        if is_whole(job, target)
    }


def is_whole(job: Job | GenieJob, target: Target) -> bool:
    """Whether the bundle came from the cache as a whole when it was made last."""
    return bool(_record_of(job, target).get(_WHOLE))


def by_stages(job: Job | GenieJob, target: Target) -> bool:
    """Whether a bundle is there that was made here: its stages know what has changed."""
    there = bool(_record_of(job, target)) and os.path.isdir(job.layout.bundle(target.name))
    return there and not is_whole(job, target)


def _may_be_whole(job: Job | GenieJob, target: Target) -> bool:
    """Whether a bundle came as a whole, or is not there and may come."""
    if by_stages(job, target):
        return False
    return is_whole(job, target) or session.current().cache_of(job) is not None


def keep(
    cache: Cache,
    job: Job | GenieJob,
    arguments: Mapping[str, Any],
    record: Record,
    seconds: float,
) -> None:
    """Add a bundle that was made to the cache, if its key covers all that made it.

    Args:
        arguments: those of the stage ``bundle``.
        record: of every file of the bundle, by path.
    """
    target = next(t for t in job.model.targets if t.name == arguments["target"]["name"])
    base = job.layout.bundle(target.name)
    try:
        for path in record:
            check_name(os.path.relpath(path, base))
    except ValueError:
        return  # a file of the model is called what no other machine may be able to call it
    inputs = _inputs_made(job, target, arguments, record)
    if inputs is not None:
        action = cached.Action(_ACTION[type(job)], {}, {}, base)
        key = action_key(action.stage, inputs)
        cached.keep(cache, job, action, key, record, {}, seconds)


def _inputs_made(
    job: Job | GenieJob, target: Target, arguments: Mapping[str, Any], record: Record
) -> dict[str, Any] | None:
    """All that a bundle depended on when it was made; the model may be another one by now."""
    if isinstance(job, GenieJob):
        from mnnqnn_tasks.tasks.geniechain import whole

        tokenizer = os.path.join(job.layout.bundle(target.name), "tokenizer.json")
        return whole.made(job, target, record[tokenizer][2])
    chain = _toolchain(job)
    if chain is None:
        return None
    index = json.loads(Path(arguments["index"]).read_text("utf-8"))
    files = {name: said["sha256"] for name, said in index["files"].items()}
    return inputs_of(job, target, files) | chain


def _toolchain(job: Job) -> dict[str, Any] | None:
    """What a bundle depends on if a user's own tools made some of it; ``None`` if it cannot
    be told which these are."""
    chain = job.pipeline.toolchain
    if chain.is_native():
        return {}
    from mnnqnn_tasks.tasks import external_graph, tools

    found = tools.chain_tools(job)
    if not found.known:
        return None
    stages = {f"{stage} by": getattr(chain, stage) for stage in ("io", "partition", "link")}
    return stages | external_graph.options(job) | dict(found.key)


def _record_of(job: Job | GenieJob, target: Target) -> dict[str, Any]:
    values = job.place.journal.records.get(task_of(job, target), {})
    said = values.get("_values_:")
    return said if isinstance(said, dict) else {}


class _Fresh(Fresh):
    """Whether a bundle is what its inputs make; ``stale`` if that is known already."""

    stale: str | None = None

    def why(self, values: Mapping[str, Any]) -> str | None:
        return self.stale or super().why(values)


def _fresh(
    job: Job | GenieJob, target: Target, inputs: Mapping[str, Any], stale: str | None = None
) -> Fresh:
    nothing_extra = checks.NothingExtra(job, job.layout.bundle(target.name))
    fresh = _Fresh(inputs, job.path_names, (nothing_extra,))
    fresh.stale = stale
    return fresh


def _task(bundle: Bundle, stale: str | None, values: dict[str, Any]) -> Task:
    """The task of a bundle that is there as a whole.

    Args:
        stale: why it was not, before it was restored.
        values: what its action gives, all that it does.
    """
    job, target = bundle.job, bundle.target
    out = job.layout.bundle(target.name)
    return Task(
        bundle.task,
        [(_give, [values])],
        targets=[os.path.join(out, _FIRST[type(job)])],
        uptodate=[_fresh(job, target, bundle.inputs, stale)],
        clean=[(remove, [[out]])],
        doc=f"the bundle of {job.name} for {target.name}, from the cache",
        subtask_of="bundle",
    )


def _give(values: dict[str, Any]) -> dict[str, Any]:
    return values


def _restore(cache: Cache | None, bundle: Bundle) -> dict[str, Any] | None:
    """Put a bundle from the cache in place.

    Returns:
        What the task's record has of it; ``None`` when the cache does not have it, or it
        cannot be put there: then the stages run, and meet the same trouble if it lasts.
    """
    from mnnqnn_tasks.toolchain.bundlefolder import refuse_foreign_folder
    from mnnqnn_tasks.toolchain.wholefolder import whole_folder

    begin = time.monotonic()
    entry = cache.lookup(bundle.key) if cache else None
    if cache is None or entry is None:
        return None
    job, out = bundle.job, Path(bundle.job.layout.bundle(bundle.target.name))
    try:
        refuse_foreign_folder(out)
        # Not flushed to the disk: what a power cut takes is missed by its size, and is in
        # the cache.
        with whole_folder(out, durable=False) as new:
            if not cache.restore(entry, lambda name: new / name, exclusive=True):
                raise _Lost
        made = {}
        for file in entry.files:
            info = os.stat(out / file.name)
            short = job.path_names.shorten(str(out / file.name))
            made[short] = [info.st_size, info.st_mtime_ns, file.sha256]
    except (MnnqnnError, OSError, _Lost):
        return None
    return {
        "made": made,
        "used": {"seconds": round(time.monotonic() - begin, 3), "peak": 0},
        "cache": {"outcome": "hit", "key": bundle.key},
        _WHOLE: True,
    }


class _Lost(Exception):
    """The cache turned out not to have all that it named."""
