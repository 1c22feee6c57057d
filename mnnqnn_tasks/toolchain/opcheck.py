"""Asks QNN, op by op, what it can run for a target.

Every different use of an op in the model (`signature`) becomes a graph of its own once;
QNN's ``backendValidateOpConfig`` then judges its nodes for each target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from mnnqnn_tasks.errors import TranslateError
from mnnqnn_tasks.files import sha256_bytes, write_json
from mnnqnn_tasks.mnn.index import ModelIndex
from mnnqnn_tasks.partition.partition import Partition, load_partition
from mnnqnn_tasks.partition.signature import signature, single_op_subgraph
from mnnqnn_tasks.partition.subgraph import Subgraph
from mnnqnn_tasks.qnn import netjson, run
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.translate.files import SourceReader
from mnnqnn_tasks.translate.registry import unsupported_reason
from mnnqnn_tasks.translate.translate import translate


def write_ops(folder: Path, index: ModelIndex, inputs: Mapping[int, Path], out: Path) -> list[Path]:
    """Write the different uses of ops in the model's NPU pieces.

    Args:
        folder: the model folder.
        index: its digests.
        inputs: sequence length -> ``input.mnn``.
        out: file to write: signature -> name of its graph's file in the folder
            ``ops`` beside it, or, after ``!``, why it cannot be translated.

    Returns:
        The files written.

    Raises:
        PartitionError, ModelFileError: when the model cannot be divided.
        StaleInputError: when the model is not the one in ``index``.
    """
    made = load_partition(folder, index, inputs, supported=unsupported_reason)
    graphs = out.parent / "ops"
    read = SourceReader(made.sources.to_json(), folder)
    listed: dict[str, str] = {}
    for text, alone in sorted(_first_uses(made).items()):
        name = f"{sha256_bytes(text.encode())[:16]}_net.json"
        try:
            netjson.save(translate(alone, read).graph, graphs / name)
        except TranslateError as error:
            name = f"!{error.what}: {error.why}"
        listed[text] = name
    write_json(out, listed)
    return [out, *(graphs / name for name in listed.values() if not name.startswith("!"))]


def refused_ops(ops: Path, options: TargetOptions) -> dict[str, str]:
    """Signature -> reason of the uses that QNN refuses.

    Args:
        ops: what `write_ops` wrote.

    Raises:
        QnnError, NativeCrash, ToolMissing: when QNN cannot be asked.
    """
    listed: dict[str, str] = json.loads(ops.read_text("utf-8"))
    refused = {text: name[1:] for text, name in listed.items() if name.startswith("!")}
    asked = [text for text in listed if text not in refused]
    nets = [ops.parent / "ops" / listed[text] for text in asked]
    for text, verdicts in zip(asked, run.validate(nets, options), strict=True):
        bad = next((verdict for verdict in verdicts if not verdict.ok), None)
        if bad is not None:
            refused[text] = f"{bad.type}: {bad.reason}"
    return dict(sorted(refused.items()))


def _first_uses(made: Partition) -> dict[str, Subgraph]:
    uses: dict[str, Subgraph] = {}
    for subgraph in made.subgraphs:
        for position, op in enumerate(subgraph.ops):
            text = signature(op, subgraph)
            if text not in uses:
                uses[text] = single_op_subgraph(subgraph, position)
    return uses
