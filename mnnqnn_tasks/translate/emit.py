"""Writes the files of a translated graph: source, net.json and raw data."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mnnqnn_tasks.files import (
    TEMP_PREFIX,
    disk_errors,
    link_or_copy,
    write_bytes,
)
from mnnqnn_tasks.qnn import netjson
from mnnqnn_tasks.qnn.ir import Graph
from mnnqnn_tasks.translate import blobstore, emit_cpp


def emit(
    graph: Graph, blobs: Mapping[str, memoryview | bytes], out_dir: Path, blob_store: Path
) -> None:
    """Write ``<graph>.cpp``, ``<graph>_net.json`` and a ``.raw`` per static tensor.

    The raw files are hard links into ``blob_store`` (copies where the file system has
    none).  Everything is made in a folder beside and moved in, ``<graph>_net.json``
    last; until then the folder holds no net.json, so a run that was killed is seen to be
    incomplete.  Raw files of an older translation are removed.

    Raises:
        DiskError: when a file cannot be written; the folder then holds no net.json.
        NetFileError: when the graph breaks a rule of the IR.
    """
    net = netjson.dumps(graph)
    with disk_errors(out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        for old in out_dir.glob(f"{TEMP_PREFIX}*"):
            shutil.rmtree(old, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=TEMP_PREFIX, dir=out_dir))
    try:
        for sha256, data in blobs.items():
            blobstore.put(blob_store, sha256, data)
        names = [f"{graph.name}.cpp"]
        # Nothing is flushed to the disk: what a power cut takes is missed by size, and link
        # checks every blob against its digest.
        write_bytes(work / names[0], emit_cpp.source(graph).encode(), durable=False)
        for tensor in graph.tensors:
            if tensor.blob is None:
                continue
            names.append(f"{tensor.name}.raw")
            link_or_copy(blob_store / tensor.blob.sha256, work / names[-1])
        last = f"{graph.name}_net.json"
        write_bytes(work / last, net.encode(), durable=False)
        with disk_errors(out_dir):
            (out_dir / last).unlink(missing_ok=True)
            for stale in set(_files(out_dir, ".raw")) - set(names):
                (out_dir / stale).unlink()
            for name in (*names, last):
                os.replace(work / name, out_dir / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _files(folder: Path, suffix: str) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.suffix == suffix]
