"""Brings the inputs of a stage to a worker that does not see our files, and its result back.

Both through the remote cache: contents under their digests, and the result as the entry
that the stage has there anyway.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnnqnn_tasks.cache.config import DEFAULT_MAX_BYTES
from mnnqnn_tasks.cache.entry import File
from mnnqnn_tasks.cache.pool import at_once
from mnnqnn_tasks.cache.remote import RemoteStore, RemoteTrouble
from mnnqnn_tasks.cache.tempfiles import turn
from mnnqnn_tasks.cluster.parcel import (
    BUILD,
    MODEL,
    STATE,
    Folders,
    Input,
    Parcel,
    to_names,
    to_paths,
)
from mnnqnn_tasks.cluster.request import Kept
from mnnqnn_tasks.errors import ClusterError, StaleInputError
from mnnqnn_tasks.files import sha256_bytes, sha256_file
from mnnqnn_tasks.tasks import cached
from mnnqnn_tasks.tasks.session import Job
from mnnqnn_tasks.toolchain.reads import reads
from mnnqnn_tasks.toolchain.work import Work


@dataclass(frozen=True)
class Courier:
    """For one stage of ``job``.

    Attributes:
        goal: where its result belongs.
        remote: the cache's remote store, which takes things in.
        notes: folder that tells the processes of a run what was sent already.
    """

    job: Job
    stage: str
    arguments: Mapping[str, Any]
    goal: cached.Goal
    remote: RemoteStore
    notes: Path

    def pack(self) -> Parcel:
        """Put the inputs into the remote store, as far as they are not there.

        Raises:
            ClusterError: the store does not take them.
            StaleInputError: an input cannot be read.
        """
        inputs = self._inputs()
        self._send(inputs, again=False)
        folders, action = self._folders, self.goal.action
        local = self.goal.cache.local
        return Parcel(
            url=self.remote.url,
            timeout_s=self.remote.timeout,
            max_bytes=DEFAULT_MAX_BYTES if local is None else local.max_bytes,
            inputs=tuple(inputs),
            arguments=to_names(dict(self.arguments), folders),
            base=to_names(action.base, folders),
            blobs=to_names(self.job.layout.blobs, folders),
            action=action.stage,
            key=self.goal.key,
            folders=folders,
        )

    def send_again(self, parcel: Parcel, digests: Iterable[str]) -> None:
        """Put inputs into the store that a worker did not find there.

        Raises:
            StaleInputError: one of them changed meanwhile.
            ClusterError: the store does not take them.
        """
        lacking = set(digests)
        inputs = [given for given in parcel.inputs if given.file.sha256 in lacking]
        for given in inputs:
            if sha256_file(self._path(given)) != given.file.sha256:
                raise StaleInputError(
                    "a file changed while it was used",
                    where=self._path(given),
                    todo="run again when nothing writes to it any more",
                )
        self._send(inputs, again=True)

    def unpack(self, kept: Kept) -> Work | None:
        """Put the result of a worker in place; ``None`` if the store does not give all of it.

        Raises:
            DiskError: it cannot be put in place.
        """
        taken = cached.put(self.goal.cache, self.job, self.goal.action, kept.entry)
        if taken is None:
            return None
        made, values = taken
        return Work(made, values, kept.seconds, kept.peak, kept=True)

    @property
    def _folders(self) -> Folders:
        return {
            BUILD: self.job.layout.build,
            MODEL: str(self.job.model.path),
            STATE: str(self.job.place.state),
        }

    def _path(self, given: Input) -> str:
        path: str = to_paths(given.name, self._folders)
        return path

    def _inputs(self) -> list[Input]:
        """Every file that the stage reads, in the order of their names.

        Raises:
            StaleInputError: one is not there, or not what was written.
        """
        inputs = []
        try:
            with open(self.job.layout.model_json, encoding="utf-8") as stream:
                known = json.load(stream)["files"]
            model = {name: said["sha256"] for name, said in known.items()}
            for read in reads(self.stage, self.arguments, model):
                name = to_names(read.path, self._folders)
                digest = read.sha256 or sha256_file(read.path)
                inputs.append(Input(name, File(digest, digest, os.path.getsize(read.path))))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StaleInputError(
                f"a file that the stage {self.stage} reads cannot be read",
                where=getattr(error, "filename", None) or self.job.layout.build,
                why=getattr(error, "strerror", None) or f"{type(error).__name__}: {error}",
                todo="run again when nothing writes to the folder any more",
            ) from error
        return sorted(inputs, key=lambda given: given.name)

    def _send(self, inputs: Iterable[Input], *, again: bool) -> None:
        store = sha256_bytes(self.remote.url.encode())[:8]

        def send(given: Input) -> None:
            file = given.file
            # Of the processes of a run that need the same weights there, one sends them.
            with turn(self.notes / f"{store}-{file.sha256}") as note:
                if again or note.tell() == 0:
                    self.remote.add(file.sha256, file.size, Path(self._path(given)))
                    note.write(b"sent")

        try:
            self.remote.open()
            at_once(send, {given.file.sha256: given for given in inputs}.values())
        except RemoteTrouble as error:
            self.goal.cache.leave_out(error)
            raise ClusterError(
                "what a Dask worker needs cannot be put into the remote cache",
                where=self.remote.name,
                why=str(error),
                todo="correct its URL or the access to it, or let the workers see the build "
                "folder; or executor: local",
            ) from error


def courier(
    job: Job, stage: str, arguments: Mapping[str, Any], goal: cached.Goal | None, notes: Path
) -> Courier | None:
    """A courier, if there is a remote cache that takes inputs and results."""
    remote = None if goal is None else goal.cache.shared
    if goal is None or remote is None:
        return None
    return Courier(job, stage, arguments, goal, remote, notes)
