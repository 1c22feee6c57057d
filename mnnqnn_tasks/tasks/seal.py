"""One look at a model instead of one at each of its tasks.

A seal says under which conditions every task behind the bundles of a model is fresh: what
the files are like, and what is in the folders of bundles.  It is compiled from the records
of the tasks once a run has made all of them or found them fresh, and holds as long as those
records, the model's options, the versions of code and libraries, and the list of its files
are the same.
Then the conditions are all that the ordinary check would ask, so a seal can say "look
closer", but never calls fresh what the ordinary check would not.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import doit
from doit.task import Task

from mnnqnn_tasks.cache.keys import action_key
from mnnqnn_tasks.cache.statcache import Numbers, numbers_of
from mnnqnn_tasks.errors import DiskError, MnnqnnError
from mnnqnn_tasks.files import canonical_json, sha256_bytes, write_bytes
from mnnqnn_tasks.tasks import exports, keys, session
from mnnqnn_tasks.tasks.checks import BlobsPresent, ModelUnchanged, NothingExtra, Wanted
from mnnqnn_tasks.tasks.fresh import Fresh, stamp
from mnnqnn_tasks.tasks.outcome import wanted
from mnnqnn_tasks.tasks.session import Job, Place

#: Version of the file's form and of what the conditions mean.
VERSION = "seal/1"

#: The conditions that a seal can express; a task with another one is never sealed.
_KNOWN = (ModelUnchanged, BlobsPresent, NothingExtra)

#: Rooms whose code decides which tasks there are and when they are fresh.
_DECIDING = ("cache", "spec", "tasks")


@dataclass(frozen=True)
class Sealed:
    """A task behind a sealed bundle.

    Attributes:
        files, bytes: how many files it made, and how large they are together.
        targets: the names of the targets whose bundles need it.
    """

    files: int
    bytes: int
    targets: list[str]


@dataclass(frozen=True)
class Seal:
    """The conditions under which all bundles of a model are fresh.

    Attributes:
        state: digest of what they were compiled for, see `_state`.
        files: by folder and name in it, size and modification time (ns) of a file; where
            the content decided, its change time and inode as well, as `DigestCache` has them.
        folders: by folder the names of all that is in it.
        tasks: those behind the bundles, by name.
    """

    state: str
    files: dict[str, dict[str, list[int]]]
    folders: dict[str, list[str]]
    tasks: dict[str, Sealed]

    def holds(self, job: Job) -> bool:
        """Whether the disk is as the conditions want it."""
        stat = os.stat
        try:
            for folder, files in self.files.items():
                top = job.path_names.expand(folder)
                for name, was in files.items():
                    info = stat(top + name)
                    if was[0] != info.st_size or was[1] != info.st_mtime_ns:
                        return False
                    if len(was) > 2 and was[2:] != [info.st_ctime_ns, info.st_ino]:
                        return False
            for folder, names in self.folders.items():
                if sorted(os.listdir(job.path_names.expand(folder))) != names:
                    return False
        except OSError:
            return False
        return True

    def of(self, targets: Iterable[str]) -> dict[str, Sealed]:
        """The tasks behind the bundles for ``targets``."""
        asked = {*targets}
        return {n: task for n, task in self.tasks.items() if not asked.isdisjoint(task.targets)}


def standing(asked: Mapping[str, Iterable[Any]]) -> dict[str, Seal]:
    """The seals that hold, by model.

    Args:
        asked: by model the targets that are asked for; none where more is asked for than
            bundles.

    Raises:
        ToolMissing: a wheel is not installed.
    """
    here = session.current()
    jobs = [here.jobs[name] for name, targets in asked.items() if targets and name in here.jobs]
    here.seal_bases = _bases(jobs)
    journals = _journals(here.jobs[name].place for name in here.seal_bases)
    found = {}
    for name, base in here.seal_bases.items():
        job = here.jobs[name]
        seal = _read(job)
        if seal and seal.state == _state(base, journals[job.place].get(name)) and seal.holds(job):
            found[name] = seal
    return found


def _journals(places: Iterable[Place]) -> dict[Place, dict[str, str]]:
    return {place: place.journal.digests() for place in dict.fromkeys(places)}


def _state(base: str, journal: str | None) -> str | None:
    """A digest of all that decides which tasks a model has and when they are fresh, but for
    the disk.

    Args:
        base: see `_bases`.
        journal: digest of the records; without them nothing is fresh.
    """
    return action_key(VERSION, {"base": base, "journal": journal}) if journal else None


def _bases(jobs: Iterable[Job]) -> dict[str, str]:
    """By model, a digest of what a state holds beside records; without models that cannot be
    read now or use a user's own tools."""
    native = [job for job in jobs if job.pipeline.toolchain.is_native()]
    if not native:
        return {}
    rooms = {room for rooms in keys.ROOMS.values() for room in rooms}
    versions = {
        **{room: keys.code_version(room) for room in sorted(rooms.union(_DECIDING))},
        "doit": doit.__version__,
        "MNN wheel": keys.mnn_version(),
        "QNN library": keys.qnn_identity(),
    }
    common = sha256_bytes(canonical_json(versions).encode("utf-8"))
    found = {}
    for job in native:
        with contextlib.suppress(MnnqnnError):
            said = {
                "versions": common,
                "files": exports.file_names(job),
                "model": _said(job.model),
                "toolchain": _said(job.pipeline.toolchain),
                "runtime": job.pipeline.runtime,
            }
            found[job.name] = sha256_bytes(canonical_json(said).encode("utf-8"))
    return found


def _said(value: Any) -> Any:
    """A pipeline's values as JSON: every field that counts, also those yet to come."""
    if isinstance(value, tuple):
        return [_said(item) for item in value]
    if is_dataclass(value):
        return [_said(getattr(value, field.name)) for field in fields(value) if field.compare]
    return repr(value)


def keep(tasks: Mapping[str, Task], right: Iterable[str]) -> None:
    """Write the seals of the models all of whose bundles are right after a run.

    The records are as the run has left them; all else that a seal is good for is taken as
    the run met it, because that is what it made them for.

    Args:
        tasks: those of the run.
        right: the names of those that it made or found fresh.
    """
    here, known = session.current(), {*right}
    new = [
        here.jobs[name]
        for name in here.seal_bases
        if name not in here.sealed and known.issuperset(_bundles(here.jobs[name]))
    ]
    journals = _journals(job.place for job in new)
    for job in new:
        state = _state(here.seal_bases[job.name], journals[job.place].get(job.name))
        seal = _compile(job, state, tasks, known) if state else None
        if seal is not None:
            _write(job, seal)
    for place in journals:
        _prune(place)


def _bundles(job: Job) -> Iterator[str]:
    return (f"bundle:{job.name}:{target.name}" for target in job.model.targets)


def _compile(job: Job, state: str, tasks: Mapping[str, Task], right: set[str]) -> Seal | None:
    """The seal of a model; ``None`` where a task is not right, or whether it stays so cannot
    be told from sizes and times."""
    behind: dict[str, list[str]] = {}
    for bundle in _bundles(job):
        for name in wanted(tasks, [bundle]):
            behind.setdefault(name, []).append(bundle.split(":")[2])
    states: dict[str, list[list[Any]]] = {}
    folders: dict[str, list[str]] = {}
    sealed = {}
    for name, targets in behind.items():
        task, record = tasks[name], job.place.journal.records.get(name)
        if name not in right or record is None or not _is_plain(task):
            return None
        values = record.get("_values_:") or {}
        made = {job.path_names.expand(short): was for short, was in values["made"].items()}
        for path, was in (*_reads(job, record), *made.items(), *_asks(task, values)):
            if not isinstance(was, list) or len(was) != 3:
                return None
            states.setdefault(path, []).append(was)
        if not states.keys() >= {*task.targets}:
            return None
        folders |= {f: _under(f, made) for check in _checks(task) for f in check.folders()}
        sealed[name] = Sealed(len(made), sum(was[0] for was in made.values()), targets)
    files: dict[str, dict[str, list[int]]] = {}
    for path, wants in states.items():
        numbers = _numbers(path, wants)
        if numbers is None:
            return None
        folder, name = os.path.split(path)
        files.setdefault(job.path_names.shorten(folder + os.sep), {})[name] = numbers
    listed = {
        job.path_names.shorten(folder + os.sep): names
        for top, inside in folders.items()
        for folder, names in _listing(top, inside).items()
    }
    return Seal(state, files, listed, sealed)


def _is_plain(task: Task) -> bool:
    """Whether `Fresh` with conditions known here is all that decides."""
    entries = [entry for entry, _, _ in task.uptodate]
    return (
        len(entries) == 1
        and type(entries[0]) is Fresh
        and all(isinstance(check, _KNOWN) for check in entries[0].checks)
    )


def _checks(task: Task) -> tuple[Any, ...]:
    checks: tuple[Any, ...] = task.uptodate[0][0].checks
    return checks


def _asks(task: Task, values: Mapping[str, Any]) -> Iterator[Wanted]:
    return (want for check in _checks(task) for want in check.files(values))


def _reads(job: Job, record: Mapping[str, Any]) -> Iterator[Wanted]:
    return ((job.path_names.expand(dep), record.get(dep)) for dep in record.get("deps:", ()))


def _under(folder: str, made: Iterable[str]) -> list[str]:
    return [path for path in made if path.startswith(folder + os.sep)]


def _listing(top: str, files: Iterable[str]) -> dict[str, list[str]]:
    """What ``top`` and every folder in it hold if ``files`` are all that there is."""
    found: dict[str, set[str]] = {top: set()}
    for path in files:
        while path != top:
            folder, name = os.path.split(path)
            found.setdefault(folder, set()).add(name)
            path = folder
    return {folder: sorted(names) for folder, names in found.items()}


def _numbers(path: str, states: list[list[Any]]) -> list[int] | None:
    """What a file's stat must say so that all ``states`` are met; ``None``: no stat tells.

    Of files that only we write, equal size and time settle the matter.  Else it is the
    content, and what is remembered of its digest is good for the same four numbers.  Of a
    file that a run has just written anew, or a copy, nothing is remembered yet: it is read.
    """
    here, first = session.current(), states[0]
    ours = here.is_output(path)
    if ours and all(was[:2] == first[:2] for was in states) and stamp(path) == first[:2]:
        return first[:2]
    numbers, digest = (_now(path) if ours else here.remembered(path)) or ((), None)
    return [*numbers] if all(was[2] == digest for was in states) and numbers else None


def _now(path: str) -> tuple[Numbers, str] | None:
    """A file's numbers and its digest; ``None`` if it cannot be read or is being written."""
    try:
        numbers = numbers_of(os.stat(path))
        digest = session.current().readable_digest(path)
        return (numbers, digest) if digest and numbers_of(os.stat(path)) == numbers else None
    except OSError:
        return None


def _path(job: Job) -> str:
    return os.path.join(_folder(job.place), f"{job.name}.json")


def _folder(place: Place) -> str:
    return os.path.join(place.state, "seals")


def _write(job: Job, seal: Seal) -> None:
    said = vars(seal) | {"tasks": {name: vars(task) for name, task in seal.tasks.items()}}
    body = canonical_json(said).encode("utf-8", "surrogateescape")
    with contextlib.suppress(DiskError):  # without it the next run looks closer
        write_bytes(_path(job), sha256_bytes(body).encode() + b"\n" + body, durable=False)


def _read(job: Job) -> Seal | None:
    """What was written, whole; ``None`` if there is none."""
    try:
        with open(_path(job), "rb") as stream:
            digest, _, body = stream.read().partition(b"\n")
        if sha256_bytes(body).encode() != digest:
            return None
        said = json.loads(body.decode("utf-8", "surrogateescape"))
    except (OSError, ValueError):
        return None
    tasks = {name: Sealed(**task) for name, task in said.pop("tasks").items()}
    return Seal(**said, tasks=tasks)


def _prune(place: Place) -> None:
    """Delete the seals of models that the journal does not know any more."""
    with contextlib.suppress(OSError):
        models = {task.split(":")[1] for task in place.journal.records if ":" in task}
        for name in os.listdir(_folder(place)):
            if name.removesuffix(".json") not in models:
                os.unlink(os.path.join(_folder(place), name))
