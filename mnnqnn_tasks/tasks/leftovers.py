"""What was made for models, targets and chunk sizes that the pipelines no longer have.

The journal knows every file that a task made, with its digest, so that nothing is deleted
that is not ours or that somebody changed.  Nothing is deleted unless the user says so: a
bundle of yesterday's target may still be in use, and the target may come back tomorrow.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

import doit

from mnnqnn_tasks.tasks import actions, session
from mnnqnn_tasks.tasks.fresh import difference
from mnnqnn_tasks.tasks.journal import PathNames
from mnnqnn_tasks.tasks.plan import read_plan
from mnnqnn_tasks.tasks.session import Job, Place

#: The file by which a bundle is known.
_CONFIGS = ("config_qnn.json", "genie_config.json")


@dataclass(frozen=True)
class Leftover:
    """The record of a task that there is no more, and where its files are."""

    place: Place
    task: str
    names: PathNames

    def values(self) -> dict[str, Any]:
        """What the task returned."""
        values = self.place.journal.records[self.task].get("_values_:")
        return values if isinstance(values, dict) else {}

    def files(self) -> Iterator[tuple[str, Any]]:
        """The paths that it made, with what was recorded of them."""
        made = self.values().get("made")
        for short, was in (made if isinstance(made, dict) else {}).items():
            top, *parts = short.split("/")
            if top in ("@build", "@dist") and ".." not in parts:
                path = self.names.expand(short)
                if path != short:
                    yield path, was


def find() -> list[Leftover]:
    """The leftovers in this run's build folders.

    None with ``pipeline=FILE``: the pipelines that were not loaded may use the same
    folders.
    """
    if doit.get_var("pipeline") is not None:
        return []
    known = _genie_tasks()
    return [
        Leftover(place, task, _names(place, task))
        for place in session.current().places.values()
        for task in place.journal.records
        if _is_gone(place, task, known)
    ]


def _genie_tasks() -> set[str]:
    """The names of the tasks of all Genie models."""
    genies = session.current().genies
    if not genies:
        return set()
    from mnnqnn_tasks.tasks.geniechain.tasks import task_names

    return {name for job in genies.values() for name in task_names(job)}


def _is_gone(place: Place, task: str, known: Set[str]) -> bool:
    """Whether nothing makes what ``task`` made; ``known`` are the tasks of Genie models."""
    stage, *rest = task.split(":")
    if stage not in (*session.STAGES, *session.GENIE_STAGES) or not rest:
        return False
    here = session.current()
    job = here.job_of(task)
    if job is None or job.place is not place:
        return True
    if isinstance(job, session.GenieJob):
        return task not in known
    part = rest[1] if len(rest) > 1 else ""
    if stage in session.OF_A_TARGET:
        return part != "" and part not in {target.name for target in job.model.targets}
    return stage == "io" and part.isdigit() and int(part) not in job.model.shapes


def _names(place: Place, task: str) -> PathNames:
    model = task.split(":")[1]
    jobs = [job for job in session.current().every_job() if job.place is place]
    same = [job for job in jobs if job.name == model]
    if same:
        return same[0].path_names
    folders = {"@build": str(place.build_dir / model)}
    dist = {str(job.pipeline.dist_dir) for job in jobs}
    if len(dist) == 1:
        folders["@dist"] = os.path.join(dist.pop(), model)
    return PathNames(folders)


def bundles() -> list[str]:
    """The folders of bundles that no target makes any more."""
    found = {
        os.path.dirname(path)
        for left in find()
        if left.task.startswith("bundle:")
        for path, _ in left.files()
        if os.path.basename(path) in _CONFIGS and os.path.exists(path)
    }
    return sorted(os.path.relpath(folder) for folder in found)


def remove(dryrun: bool) -> None:
    """Delete the leftovers, and forget the tasks that made them.

    A file that is not as it was made stays, and is named.
    """
    for left in find():
        ours = []
        kept = False
        for path, was in left.files():
            state = difference(path, was)
            if state is None:
                ours.append(path)
            elif os.path.lexists(path):
                print(f"keeping '{path}', which {state}")
                kept = True
        ours += _unrecorded(left)
        actions.remove(ours, dryrun)
        if dryrun:
            continue
        tops = {left.names.expand(top + "/x")[:-2] for top in ("@build", "@dist")}
        for path in ours:
            _remove_empty(os.path.dirname(path), tops)
        if not kept and not session.current().problems:
            del left.place.journal.records[left.task]
            left.place.journal.save(left.task)


def _unrecorded(left: Leftover) -> list[str]:
    """Files that belong to a task's result without being in its list."""
    stage, model, *rest = left.task.split(":")
    job = session.current().jobs.get(model)
    paths = []
    if stage == "validate" and rest:
        paths.append(left.names.expand(f"@build/verify/{rest[0]}.json"))
    if stage == "io" and rest and rest[0].isdigit():
        paths.append(left.names.expand(f"@build/testdir/{rest[0]}/output.mnn"))
    if stage == "translate" and (job is None or job.place is not left.place):
        blobs = left.values().get("blobs")
        paths += [left.names.expand(f"@build/blobs/{d}") for d in blobs or () if _is_digest(d)]
    return [path for path in paths if os.path.lexists(path)]


def _is_digest(name: str) -> bool:
    return len(name) == 64 and set(name) <= set("0123456789abcdef")


def _remove_empty(folder: str, tops: set[str]) -> None:
    """Remove ``folder`` and its parents, up to the model's folder, as far as they are empty."""
    with contextlib.suppress(OSError):
        while any(folder == top or folder.startswith(top + os.sep) for top in tops):
            os.rmdir(folder)
            folder = os.path.dirname(folder)


def prune_blobs(job: Job) -> int:
    """Delete the blobs that no graph of the model reads any more.

    Returns:
        How many there were.
    """
    plan = read_plan(job.layout)
    if plan is None:
        return 0
    used: set[str] = set()
    for graph in plan.graphs():
        record = job.place.journal.records.get(f"translate:{job.name}:{graph}")
        if record is None:
            return 0  # it may have stored blobs and was killed before it said so
        used.update(record.get("_values_:", {}).get("blobs", ()))
    count = 0
    with contextlib.suppress(OSError), os.scandir(job.layout.blobs) as entries:
        for entry in entries:
            if _is_digest(entry.name) and entry.name not in used:
                os.unlink(entry.path)
                count += 1
    return count
