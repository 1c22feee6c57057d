"""What a Dask worker keeps of what it has fetched: weights come once, not once a stage."""

from __future__ import annotations

import contextlib
from pathlib import Path

from mnnqnn_tasks.cache import upkeep
from mnnqnn_tasks.cache.entry import Damaged, Entry, File, is_digest
from mnnqnn_tasks.cache.local import LocalStore, Missing
from mnnqnn_tasks.cache.pool import at_once
from mnnqnn_tasks.cache.remote import RemoteStore
from mnnqnn_tasks.cache.tempfiles import turn
from mnnqnn_tasks.cluster.parcel import BUILD, MODEL, Folders, Input, Parcel, to_paths
from mnnqnn_tasks.errors import DiskError, MnnqnnError
from mnnqnn_tasks.files import link_or_copy, sha256_file
from mnnqnn_tasks.toolchain import packing

#: Whoever reads these files compares what is in them with a digest himself.
_CHECKED = (f"{MODEL}/", f"{BUILD}/blobs/")

#: How often a content is looked for that others delete to make room.
_TRIES = 3

#: What is kept is looked through when a process has added this part of what there may be.
_SLACK = 1 / 20


class Shelf:
    """The contents that a worker has fetched; shared by its processes.

    Args:
        root: a folder; need not exist.
    """

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

        def lay(given: Input) -> str | None:
            file = given.file
            try:
                self._lay(remote, given, Path(to_paths(given.name, here)))
                return None
            except Missing:
                return file.sha256
            except Damaged:
                remote.drop_object(file.sha256)
                return file.sha256

        lacking = tuple(sorted({digest for digest in at_once(lay, parcel.inputs) if digest}))
        if not lacking:
            # What is used together goes together when there is no more room.
            files = sorted({given.file for given in parcel.inputs}, key=lambda file: file.name)
            self.store.write(Entry(parcel.key, "inputs", tuple(files), {}, 0.0))
            self._make_room()
        return lacking

    def drop_damaged(self, parcel: Parcel, here: Folders) -> tuple[str, ...]:
        """Forget those contents of files laid out that are not what they were.

        Returns:
            Their digests.
        """
        damaged = []
        for given in parcel.inputs:
            with contextlib.suppress(OSError):  # one that cannot be read is not what it was
                if sha256_file(to_paths(given.name, here)) == given.file.sha256:
                    continue
            self.store.drop_object(given.file.sha256)
            damaged.append(given.file.sha256)
        return tuple(sorted(set(damaged)))

    def clear(self) -> None:
        """Forget everything: there may be less room on the disk than contents may take."""
        for path in self.store.objects.glob("*/*"):
            if is_digest(path.name):  # and no temporary file of somebody who writes it
                self.store.drop_object(path.name)

    def _lay(self, remote: RemoteStore, given: Input, goal: Path) -> None:
        file = given.file
        for attempt in range(_TRIES):
            self._bring(remote, file)
            try:
                link_or_copy(self.store.object_path(file.sha256), goal)
            except DiskError as error:  # another process needed the room
                if attempt + 1 < _TRIES and isinstance(error.__cause__, FileNotFoundError):
                    continue
                raise
            if given.name.startswith(_CHECKED) or sha256_file(goal) == file.sha256:
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


#: By folder: a process serves one worker, and counts what it adds.
_shelves: dict[Path, Shelf] = {}


def shelf_in(root: Path, max_bytes: int) -> Shelf:
    """The one in the folder ``root``, which keeps up to ``max_bytes``."""
    shelf = _shelves.setdefault(root, Shelf(root))
    shelf.store.max_bytes = max_bytes
    return shelf
