"""Writes what the partition stage made, and removes what an older cut left behind.

Imports that are large are inside: see `fill`.
"""

from __future__ import annotations

import filecmp
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mnnqnn_tasks.files import atomic_writer, disk_errors, link_or_copy
from mnnqnn_tasks.partition.fill import GRAPHS, Template, fill

if TYPE_CHECKING:
    from mnnqnn_tasks.mnn.index import ModelIndex
    from mnnqnn_tasks.partition.partition import Partition, Supported
    from mnnqnn_tasks.partition.plan import Plan

#: The host model.
HOST = "qnn/llm.mnn"

#: Folders of graphs that translate made, beside `HOST`.
_GRAPH = re.compile(r"graph\d+(_\d+)?")


def partition_model(
    model_dir: Path,
    index: ModelIndex,
    inputs: Mapping[int, Path],
    refused: Collection[str],
    out_dir: Path,
    supported: Supported | None = None,
    outputs: tuple[str, ...] | None = None,
) -> Plan:
    """Divide a model and write the files of the plan into ``out_dir``.

    Writes ``subgraphs/<graph>.json``, ``sources.json``, ``qnn/llm.mnn``,
    ``npu_postreat.json`` and last ``plan.json``, each whole or not at all; a file that
    would not change is left alone.  The same inputs give the same bytes.

    Args:
        model_dir: the model folder.
        index: its digests (``model.json``).
        inputs: sequence length -> ``input.mnn``; the first is decode (1), the others
            the chunk sizes in their order.
        refused: op signatures that QNN refuses on some target, perhaps with its words.
        out_dir: build folder of the model.
        supported: why an op has no translation, or ``None``.
        outputs: names of the model's outputs; ``logits`` if not given.

    Raises:
        PartitionError: when the model cannot be divided.
        ModelFileError: when the model or a sample is damaged.
        StaleInputError: when the model file is not the one that was indexed.
        DiskError: when a file cannot be written.
    """
    from mnnqnn_tasks.partition.partition import load_partition
    from mnnqnn_tasks.partition.template import make_template

    made = load_partition(model_dir, index, inputs, refused, supported, outputs)
    write(out_dir / HOST, host_model(made))
    template = make_template(made)
    write_files(template, fill(template, index.ranges), out_dir)
    return made.plan


def host_model(made: Partition) -> bytes:
    """The content of ``qnn/llm.mnn``."""
    from mnnqnn_tasks.mnn import writer
    from mnnqnn_tasks.partition.host import host_net

    return writer.encode(host_net(made.view, made.pieces, made.folded, made.facts, made.outputs))


def write_files(template: Template, files: Mapping[str, bytes], out_dir: Path) -> None:
    """Write what `fill` made of ``template``; see `partition_model`.

    Raises:
        DiskError: when a file cannot be written.
    """
    *others, plan = files
    for name in others:
        write(out_dir / name, files[name])
    remove_stale(out_dir, template.graphs)
    write(out_dir / plan, files[plan])


def write(path: Path, data: bytes) -> None:
    """Write a file if it would change.

    Without fsync, which for a hundred small files takes longer than the cut.  After a
    power cut such a file can be empty or gone, but not believed: the task database
    compares size and time of all that a task made before it takes the task for done.

    Raises:
        DiskError: when the file cannot be written.
    """
    with disk_errors(path):
        if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
            return
    with atomic_writer(path, durable=False) as stream:
        stream.write(data)


def take_over(source: Path, target: Path) -> None:
    """Make ``target`` the same as ``source`` if its content differs.

    Raises:
        DiskError: when it cannot be written.
    """
    with disk_errors(target):
        if target.is_file() and filecmp.cmp(source, target, shallow=False):
            return
    link_or_copy(source, target)


def remove_stale(out_dir: Path, graphs: Collection[str]) -> None:
    """Delete what an older cut left of graphs that there are no more.

    Raises:
        DiskError: when a file cannot be deleted.
    """
    folder = out_dir / GRAPHS
    with disk_errors(folder):
        for path in folder.glob("graph*.json"):
            if path.stem not in graphs:
                path.unlink()
        for path in (out_dir / HOST).parent.iterdir():
            if path.is_dir() and _GRAPH.fullmatch(path.name) and path.name not in graphs:
                shutil.rmtree(path)
