"""A stage in a folder of the worker's own, when it does not see the files of the end that asks.

What the stage reads comes from a store that both ends have, each content once a worker; its
result goes there, and the other end takes it like any result in its cache.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

from mnnqnn_tasks.cache import upkeep
from mnnqnn_tasks.cache.entry import Damaged, Entry, File
from mnnqnn_tasks.cache.local import LocalStore, Missing, measure
from mnnqnn_tasks.cache.pool import at_once, on_threads
from mnnqnn_tasks.cache.remote import RemoteStore, RemoteTrouble
from mnnqnn_tasks.cache.tempfiles import turn
from mnnqnn_tasks.cluster.parcel import BUILD, MODEL, STATE, Folders, Parcel, to_paths
from mnnqnn_tasks.cluster.request import Answer, Failed, Kept, Lacking, NoStore
from mnnqnn_tasks.errors import DiskError, MnnqnnError, ToolMissing
from mnnqnn_tasks.files import disk_errors, link_or_copy, sha256_file
from mnnqnn_tasks.toolchain import packing
from mnnqnn_tasks.toolchain.work import perform

#: Whoever reads these files compares what is in them with a digest himself.
_CHECKED = (f"{MODEL}/", f"{BUILD}/blobs/")

#: How often a content is looked for that others delete to make room.
_TRIES = 3

#: What is kept is looked through when a process has added this part of what there may be.
_SLACK = 1 / 20


def work_folder(scratch: Path, pid: int) -> Path:
    """Where the helper process ``pid`` works."""
    return scratch / f"work-{pid}"


def perform_apart(stage: str, parcel: Parcel, scratch: Path) -> Answer:
    """Do a stage whose files are in a store.

    Args:
        scratch: a folder for this worker alone; need not exist.

    Raises:
        MemoryError, Exception: as they come from the stage.
    """
    work = work_folder(scratch, os.getpid())
    here = {name: str(work / name) for name in (BUILD, MODEL, STATE)}
    try:
        try:
            remote = RemoteStore(parcel.url, timeout=parcel.timeout_s)
        except ToolMissing as error:
            return NoStore(error.what)
        remote.open()
        shelf = _shelf(scratch, parcel.max_bytes)
        for folder in here.values():
            with disk_errors(folder):
                os.makedirs(folder)
        lacking = shelf.lay_out(remote, parcel, here)
        return Lacking(lacking) if lacking else _do(stage, parcel, remote, shelf, here)
    except RemoteTrouble as error:
        return NoStore(str(error))
    except MnnqnnError as error:
        return Failed(_their_words(error, here, parcel.folders))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _do(stage: str, parcel: Parcel, remote: RemoteStore, shelf: _Shelf, here: Folders) -> Answer:
    done = perform(stage, to_paths(parcel.arguments, here))
    values = dict(done.values)
    base, blobs = (to_paths(name, here) for name in (parcel.base, parcel.blobs))
    digests = values.pop("digests", {})
    record = packing.record(done.made, digests, blobs, values.get("blobs", {}))
    packed = packing.pack(base, blobs, record, values)
    files = on_threads(
        lambda name: measure(name, packed.files[name], packed.digests.get(name)),
        sorted(packed.files),
        sum(os.path.getsize(path) for path in packed.files.values()),
    )
    entry = Entry(parcel.key, parcel.action, tuple(files), packed.values, done.seconds)
    remote.write(entry, {file.sha256: packed.files[file.name] for file in files})
    shelf.keep_blobs(packed.files, files)
    return Kept(entry, done.seconds, done.peak)


def _their_words(error: MnnqnnError, here: Folders, there: Folders) -> MnnqnnError:
    """The error as if it had happened in the folders of the end that asks."""

    def told(text: str | None) -> str | None:
        for name, folder in here.items():
            text = text and text.replace(folder, there[name])
        return text

    what = told(error.what) or error.what
    parts: dict[str, Any] = {n: told(getattr(error, n)) for n in ("where", "why", "todo", "tail")}
    return type(error)(what, **parts)


#: By folder: a process serves one worker, and counts what it adds.
_shelves: dict[Path, _Shelf] = {}


def _shelf(scratch: Path, max_bytes: int) -> _Shelf:
    shelf = _shelves.setdefault(scratch, _Shelf(scratch / "store"))
    shelf.store.max_bytes = max_bytes
    return shelf


class _Shelf:
    """The contents that a worker has fetched; shared by its processes."""

    def __init__(self, root: Path) -> None:
        self.store = LocalStore(root, 0)
        self._grown = 0

    def lay_out(self, remote: RemoteStore, parcel: Parcel, here: Folders) -> tuple[str, ...]:
        """Put the files of a parcel where the stage will look for them.

        Returns:
            Digests of what the remote store does not have, or has damaged.

        Raises:
            RemoteTrouble: it does not work.
            DiskError: there is no room here.
        """

        def lay(file: File) -> str | None:
            try:
                self._lay(remote, file, Path(to_paths(file.name, here)))
                return None
            except Missing:
                return file.sha256
            except Damaged:
                remote.drop_object(file.sha256)
                return file.sha256

        lacking = tuple(sorted({digest for digest in at_once(lay, parcel.inputs) if digest}))
        if not lacking:
            # What is used together goes together when there is no more room.
            self.store.write(Entry(parcel.key, "inputs", parcel.inputs, {}, 0.0))
            self._make_room()
        return lacking

    def _lay(self, remote: RemoteStore, file: File, goal: Path) -> None:
        for attempt in range(_TRIES):
            self._bring(remote, file)
            try:
                link_or_copy(self.store.object_path(file.sha256), goal)
            except DiskError as error:  # another process needed the room
                if attempt + 1 < _TRIES and isinstance(error.__cause__, FileNotFoundError):
                    continue
                raise
            if file.name.startswith(_CHECKED) or sha256_file(goal) == file.sha256:
                return
            self.store.drop_object(file.sha256)
        raise DiskError(
            "a file is not what was written",
            where=str(self.store.object_path(file.sha256)),
            todo="look at the disk of this worker",
        )

    def _bring(self, remote: RemoteStore, file: File) -> None:
        if self.store.holds(file.sha256, file.size):
            return
        # Processes of one worker that need the same weights wait for one of them.
        with turn(self.store.root / "turns" / file.sha256):
            if not self.store.holds(file.sha256, file.size):
                with self.store.incoming(file) as (stream, path):
                    remote.fetch(file, path)
                    self.store.accept(stream, path, file)
                self._grown += file.size

    def keep_blobs(self, paths: dict[str, Path], files: list[File]) -> None:
        """Keep the blobs of a graph, which is linked next; perhaps here."""
        for file in files:
            if packing.is_blob(file.name):
                with contextlib.suppress(MnnqnnError, OSError):
                    self.store.add(paths[file.name], file)
                    self._grown += file.size

    def _make_room(self) -> None:
        if self._grown > self.store.max_bytes * _SLACK:
            self._grown = 0
            upkeep.gc(self.store, int(self.store.max_bytes * (1 - _SLACK)))
