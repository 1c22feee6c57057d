"""Where a stage is done: in this process, or by a Dask worker.

doit decides what is stale and in which order; only the work of the costly stages goes
away, and the process that doit gave the task waits for it.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnnqnn_tasks.errors import MnnqnnError, ToolMissing
from mnnqnn_tasks.files import TEMP_PREFIX, disk_errors, write_bytes
from mnnqnn_tasks.tasks import cached, session
from mnnqnn_tasks.tasks.session import GenieJob, Job, Place

if TYPE_CHECKING:
    from mnnqnn_tasks.cluster.client import Scheduler
    from mnnqnn_tasks.cluster.local import LocalScheduler
    from mnnqnn_tasks.toolchain.work import Work

#: The stages that are worth the way; the others take less time than a message, or read
#: what this machine alone has to look at.
REMOTE = frozenset({"io_output", "cut", "translate", "link"})

DASK = "dask"


def require(jobs: Iterable[Job]) -> None:
    """Make sure that what the pipelines want is installed; nothing is imported.

    Raises:
        ToolMissing: it is not.
    """
    wanting = [job for job in jobs if job.pipeline.executor == DASK]
    if not wanting:
        return
    # It has hooks around forks, and must not be loaded for the first time in one.
    import concurrent.futures.thread  # noqa: F401

    if importlib.util.find_spec("distributed") is None:
        raise ToolMissing(
            "Dask is not installed",
            where=str(wanting[0].pipeline.file),
            why="executor: dask needs it",
            todo="python -m pip install 'mnnqnn[dask]', or executor: local",
        )


class Executor:
    """What the processes of a run share; made before they are forked.

    Args:
        jobs: all that the run may have to do.
        processes: how many tasks doit runs at once.

    Attributes:
        used: processes may have written to the build folders that were lost meanwhile.
    """

    def __init__(self, jobs: Iterable[Job], processes: int) -> None:
        self._jobs = [job for job in jobs if job.pipeline.executor == DASK]
        self._processes = max(1, processes)
        self._schedulers: dict[str | None, Scheduler] = {}
        self._local: LocalScheduler | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._probes: dict[Path, Path] = {}
        self._token = os.urandom(16).hex()
        self._trouble: MnnqnnError | None = None
        self.used = False

    @property
    def elsewhere(self) -> bool:
        """Whether some of them are none of this machine's."""
        return self.used and any(job.pipeline.scheduler for job in self._jobs)

    def start(self) -> int | None:
        """Prepare what the run may need; later calls do nothing.

        A local cluster starts when the first stage is handed to it.

        Returns:
            Process id of the program that will be the local cluster.
        """
        if not self._jobs or self.used:
            return None
        self.used = True
        from mnnqnn_tasks.cluster.client import Scheduler, prepare

        named = {job.pipeline.scheduler for job in self._jobs}
        try:
            for job in self._jobs:
                self._write_probe(job.place)
            self._make_folder(self._jobs[0].place)
            pid = self._start_local() if None in named else None
        except MnnqnnError as error:  # nobody listens before a fork: the tasks tell
            self._trouble = error
            return None
        prepare()
        self._schedulers = {address: Scheduler(address) for address in named if address}
        return pid

    def _write_probe(self, place: Place) -> None:
        """A file by which a worker knows that it sees this build folder, and not another."""
        if place.build_dir not in self._probes:
            path = place.state / "probe"
            write_bytes(path, self._token.encode(), durable=False)
            self._probes[place.build_dir] = path

    def _make_folder(self, place: Place) -> None:
        # In the build folder, where the next run sweeps if this one is killed.
        with disk_errors(place.state):
            self._folder = tempfile.TemporaryDirectory(prefix=TEMP_PREFIX, dir=place.state)

    def _start_local(self) -> int:
        from mnnqnn_tasks.cluster.local import LocalScheduler

        assert self._folder is not None
        self._local = LocalScheduler(self._processes, Path(self._folder.name))
        return self._local.pid

    def perform(
        self,
        task: str,
        job: Job | GenieJob,
        stage: str,
        arguments: Mapping[str, Any],
        goal: cached.Goal | None = None,
    ) -> Work:
        """Do a stage of ``task``, here or there.

        ``goal`` is where its result belongs; through its remote cache go the files of
        workers that do not see ours.

        Raises:
            MnnqnnError: what the stage raises, and `ClusterError`.
        """
        from mnnqnn_tasks.toolchain.memory import needed
        from mnnqnn_tasks.toolchain.work import perform

        # The stages of Genie's pipelines are all local.
        if isinstance(job, GenieJob) or job.pipeline.executor != DASK or stage not in REMOTE:
            with session.current().admitted(task, needed(stage, arguments)):
                return perform(stage, arguments)
        self.start()  # it was, unless this process does everything itself
        if self._trouble is not None:
            raise self._trouble
        here = job.pipeline.scheduler is None
        # Memory of other machines is their scheduler's business.
        with session.current().admitted(task, needed(stage, arguments) if here else 0):
            from mnnqnn_tasks.tasks.courier import courier

            assert self._folder is not None
            way = courier(job, stage, arguments, goal, Path(self._folder.name))
            return self._scheduler(job).run(stage, arguments, self._seen_by_all(job), way)

    def _scheduler(self, job: Job) -> Scheduler:
        from mnnqnn_tasks.cluster.client import Scheduler

        address = job.pipeline.scheduler
        if address not in self._schedulers:
            assert self._local is not None
            self._schedulers[address] = Scheduler(self._local.address())
        return self._schedulers[address]

    def _seen_by_all(self, job: Job) -> dict[str, str | None]:
        return {
            str(self._probes[job.place.build_dir]): self._token,
            _some_file(str(job.model.path)): None,
        }

    def end(self) -> None:
        """End what was started; only the process that did that may call it."""
        for scheduler in self._schedulers.values():
            scheduler.close()
        if self._local is not None:
            self._local.end()
            self._local = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
        while self._probes:  # once: the next run may have written its own
            self._probes.popitem()[1].unlink(missing_ok=True)


def _some_file(folder: str) -> str:
    """The first file of a folder by name; if it has none, the folder."""
    try:
        with os.scandir(folder) as entries:
            return min((entry.path for entry in entries if entry.is_file()), default=folder)
    except OSError:  # whoever reads the model says so
        return folder
