"""Writes what the partition stage made, and removes what an older cut left behind."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from mnnqnn_tasks.files import atomic_writer, disk_errors
from mnnqnn_tasks.mnn import writer
from mnnqnn_tasks.mnn.index import ModelIndex
from mnnqnn_tasks.partition.host import host_net
from mnnqnn_tasks.partition.partition import Partition, Supported, load_partition
from mnnqnn_tasks.partition.plan import FOLDER, Plan
from mnnqnn_tasks.partition.subgraph_json import to_bytes
from mnnqnn_tasks.partition.text import readable_json

#: Folders of graphs that translate made, under `FOLDER`.
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
    made = load_partition(model_dir, index, inputs, refused, supported, outputs)
    write_partition(made, out_dir)
    return made.plan


def write_partition(made: Partition, out_dir: Path) -> None:
    """Write all files of ``made``; see `partition_model`."""
    for subgraph in made.subgraphs:
        _write(out_dir / "subgraphs" / f"{subgraph.graph}.json", to_bytes(subgraph))
    _write(out_dir / "sources.json", readable_json(made.sources.to_json()).encode())
    net = host_net(made.view, made.pieces, made.folded, made.facts, made.outputs)
    _write(out_dir / FOLDER / "llm.mnn", writer.encode(net))
    # As MNN's tool prints it: four spaces, keys in this order.
    text = json.dumps(made.plan.postreat_json(), indent=4, ensure_ascii=False)
    _write(out_dir / "npu_postreat.json", text.encode())
    _remove_stale(out_dir, {s.graph for s in made.subgraphs})
    _write(out_dir / "plan.json", readable_json(made.plan.to_json()).encode())


def _write(path: Path, data: bytes) -> None:
    with disk_errors(path):
        if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
            return
    with atomic_writer(path) as stream:
        stream.write(data)


def _remove_stale(out_dir: Path, graphs: Collection[str]) -> None:
    folder = out_dir / "subgraphs"
    with disk_errors(folder):
        for path in folder.glob("graph*.json"):
            if path.stem not in graphs:
                path.unlink()
        for path in (out_dir / FOLDER).iterdir():
            if path.is_dir() and _GRAPH.fullmatch(path.name) and path.name not in graphs:
                shutil.rmtree(path)
