"""Writes the files of a translated graph: source, net.json and raw data."""

from __future__ import annotations

import contextlib
import os
import shutil
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
    none).  Everything is made under other names and renamed, ``<graph>_net.json`` last;
    until then the folder holds no net.json, so a run that was killed is seen to be
    incomplete.  Raw files of an older translation are removed.

    Raises:
        DiskError: when a file cannot be written; the folder then holds no net.json.
        NetFileError: when the graph breaks a rule of the IR.
    """
    net = netjson.dumps(graph)
    with disk_errors(out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        _remove_temporary(out_dir)
    try:
        for sha256, data in blobs.items():
            blobstore.put(blob_store, sha256, data)
        made: dict[str, Path] = {}

        def place(name: str) -> Path:
            return made.setdefault(name, out_dir / f"{TEMP_PREFIX}{len(made)}")

        # Nothing is flushed to the disk: what a power cut takes is missed by size, and link
        # checks every blob against its digest.
        source = emit_cpp.source(graph).encode()
        write_bytes(place(f"{graph.name}.cpp"), source, durable=False)
        for tensor in graph.tensors:
            if tensor.blob is not None:
                link_or_copy(blob_store / tensor.blob.sha256, place(f"{tensor.name}.raw"))
        last = f"{graph.name}_net.json"
        write_bytes(place(last), net.encode(), durable=False)
        with disk_errors(out_dir):
            (out_dir / last).unlink(missing_ok=True)
            for old in out_dir.glob("*.raw"):
                if old.name not in made:
                    old.unlink()
            for name, temp in made.items():
                os.replace(temp, out_dir / name)
    except BaseException:
        _remove_temporary(out_dir)
        raise


def _remove_temporary(folder: Path) -> None:
    """Delete what is not finished, also by a run that was killed."""
    for old in folder.glob(f"{TEMP_PREFIX}*"):
        with contextlib.suppress(OSError):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
