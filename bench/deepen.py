"""Writes a model with more decoder layers than the one it is made from: more pieces, more tasks.

Every layer that is added is the last one with weights of its own.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mnnqnn_tasks.mnn import reader, writer
from mnnqnn_tasks.mnn.table import Table

#: A layer ends with the op that adds its MLP's result.
_LAST = "/blocks.{}/Add_1_output_0"


def deepen(source: Path, into: Path, layers: int, seed: int = 0) -> None:
    """Write the model in ``source`` with ``layers`` decoder layers to the new folder ``into``.

    Args:
        layers: at least as many as ``source`` has, which are two or more.
        seed: another one gives other weights.
    """
    shutil.copytree(source, into, copy_function=shutil.copyfile)
    into.chmod(0o755)
    config = json.loads((into / "llm_config.json").read_text("utf-8"))
    have = config["layer_nums"]
    net = reader.read(into / "llm.mnn")
    weights = bytearray((into / "llm.mnn.weight").read_bytes())
    at = {op.fields["name"]: i for i, op in enumerate(net.oplists)}
    begin, end = (at[_LAST.format(have - n)] + 1 for n in (2, 1))
    pattern, rest = net.oplists[begin:end], net.oplists[end:]
    enters = net.oplists[begin - 1].fields["outputIndexes"][0]
    leaves = pattern[-1].fields["outputIndexes"][0]
    ops, names, last = net.oplists[:end], list(net.tensorName), leaves
    own = sorted({int(i) for op in pattern for i in op.fields["outputIndexes"]})
    first, size = _span(pattern)
    for layer in range(have, layers):
        moved = {i: len(names) + n for n, i in enumerate(own)} | {int(enters): int(last)}
        names += [_renamed(names[i], have - 1, layer) for i in own]
        shift = len(weights) - first
        weights += weights[first : first + size]
        for op in copy.deepcopy(pattern):
            op.fields["name"] = _renamed(op.fields["name"], have - 1, layer)
            _connect(op, moved)
            if "layer_index" in op.fields.get("main", op).fields:
                op.fields["main"].fields["layer_index"] = layer
            for table, place in _external(op):
                table.fields["external"] = np.array([place[0] + shift, *place[1:]])
            ops.append(op)
        last = moved[int(leaves)]
    for op in rest:
        _connect(op, {int(leaves): int(last)})
    net.fields["oplists"], net.fields["tensorName"] = [*ops, *rest], names
    for i in range(2048, len(weights), 4096):
        weights[i] ^= 1 + (seed + i // 4096) % 3
    writer.write(into / "llm.mnn", net)
    (into / "llm.mnn.weight").write_bytes(weights)
    text = json.dumps(config | {"layer_nums": layers}, indent=1)
    (into / "llm_config.json").write_text(text, "utf-8")


def _span(ops: list[Table]) -> tuple[int, int]:
    """Where the weights of ``ops`` begin, and how many bytes lie from there to their end."""
    places = [place for op in ops for _, place in _external(op)]
    begin = min(place[0] for place in places)
    return begin, max(sum(place) for place in places) - begin


def _external(op: Table) -> Iterator[tuple[Table, list[int]]]:
    """The parameters that lie in the weight file: an offset, then sizes."""
    main = op.fields.get("main")
    if main is not None and "external" in main.fields:
        yield main, [int(number) for number in main.fields["external"]]


def _renamed(name: str, old: int, new: int) -> str:
    """A name for the same part of another layer."""
    for kind in ("layers", "blocks"):
        if name.startswith(f"/{kind}.{old}/"):
            return name.replace(f".{old}/", f".{new}/", 1)
    return f"{name}@{new}"


def _connect(op: Table, moved: dict[int, int]) -> None:
    for key in ("inputIndexes", "outputIndexes"):
        if key in op.fields:
            indexes: Any = [moved.get(int(i), int(i)) for i in op.fields[key]]
            op.fields[key] = np.array(indexes, np.int32)


def main() -> int:
    """Write one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="folder of an MNN LLM")
    parser.add_argument("into", type=Path, help="the new folder")
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    deepen(options.source, options.into, options.layers, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
