"""A stage in a folder of the worker's own, when it does not see the files of the end that asks.

What the stage reads comes from a store that both ends have, each content once a worker; its
result goes there, and the other end takes it like any result in its cache.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from mnnqnn_tasks.cache.entry import Entry
from mnnqnn_tasks.cache.local import measure
from mnnqnn_tasks.cache.pool import on_threads
from mnnqnn_tasks.cache.remote import RemoteStore, RemoteTrouble
from mnnqnn_tasks.cluster.parcel import BUILD, MODEL, STATE, Folders, Parcel, to_paths
from mnnqnn_tasks.cluster.request import Answer, Failed, Kept, Lacking, NoStore
from mnnqnn_tasks.cluster.shelf import Shelf, shelf_in
from mnnqnn_tasks.errors import DiskError, MnnqnnError, ToolMissing
from mnnqnn_tasks.files import disk_errors
from mnnqnn_tasks.toolchain import packing
from mnnqnn_tasks.toolchain.work import perform


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
    shelf = shelf_in(scratch / "store", parcel.max_bytes)
    try:
        try:
            remote = RemoteStore(parcel.url, timeout=parcel.timeout_s)
        except ToolMissing as error:
            return NoStore(error.what)
        remote.open()
        for folder in here.values():
            with disk_errors(folder):
                os.makedirs(folder)
        lacking = shelf.lay_out(remote, parcel, here)
        return Lacking(lacking) if lacking else _do(stage, parcel, remote, shelf, here)
    except RemoteTrouble as error:
        return NoStore(str(error))
    except DiskError as error:  # of this machine, whose user is another one
        shelf.clear()
        return NoStore(f"{error.where}: {error.what}: {error.why}")
    except MnnqnnError as error:
        return Failed(_their_words(error, here, parcel.folders))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _do(stage: str, parcel: Parcel, remote: RemoteStore, shelf: Shelf, here: Folders) -> Answer:
    try:
        done = perform(stage, to_paths(parcel.arguments, here))
    except DiskError:
        raise
    except MnnqnnError:
        damaged = shelf.drop_damaged(parcel, here)
        if damaged:  # on the disk of this machine: the files of the other end may be right
            return Lacking(damaged)
        raise
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
