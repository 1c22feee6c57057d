"""The golden record as a folder: what a run of MNN's ``compilefornpu`` leaves.

Raw bytes are found again by their digest, among what the model file and our own translation
of it give.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mnn_source_double import Double, Fields, Params

from mnnqnn_tasks.mnn import reader
from mnnqnn_tasks.mnn.index import index_model
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.qnn.ir import DTYPE_BYTES, Graph


def half_towards_zero(values: Any) -> bytes:
    """float16 as MNN rounds to it: the digits that do not fit are cut off."""
    exact = np.ascontiguousarray(values, np.float32)
    with np.errstate(over="ignore"):
        near = exact.astype(np.float16)
    bits = near.view(np.uint16).copy()
    bits[np.abs(near.astype(np.float64)) > np.abs(exact.astype(np.float64))] -= 1
    return bits.tobytes()


def _float_arrays(table: Any) -> Iterator[Any]:
    if isinstance(table, Table):
        for value in table.fields.values():
            yield from _float_arrays(value)
    elif isinstance(table, list):
        for value in table:
            yield from _float_arrays(value)
    elif isinstance(table, np.ndarray) and table.dtype == np.float32:
        yield table


def _contents(model: Path, graphs: Sequence[Graph], blobs: Path) -> Iterator[bytes]:
    """What a graph of the model may be made of."""
    yield from (struct.pack("<i", i) for i in range(-1, 20000))
    yield from (bytes(n) for n in range(1, 8193))
    weight = np.memmap(model / "llm.mnn.weight", np.uint8, "r")
    ranges = [
        weight[at : at + n].view(np.float32) for at, n in index_model(model).ranges if n % 4 == 0
    ]
    for floats in (*_float_arrays(reader.read(model / "llm.mnn")), *ranges):
        yield half_towards_zero(floats)
    for tensor in (t for graph in graphs for t in graph.tensors if t.blob is not None):
        data = (blobs / tensor.blob.sha256).read_bytes()
        yield data
        if len(tensor.dims) == 2 and len(data) == math.prod(tensor.dims):
            yield np.frombuffer(data, np.int8).reshape(tensor.dims).T.tobytes()  # MNN: [in, out]


def known_contents(model: Path, graphs: Sequence[Graph], blobs: Path) -> dict[str, bytes]:
    """Contents by their digest, from the model file and our own translation of it."""
    return {hashlib.sha256(data).hexdigest(): data for data in _contents(model, graphs, blobs)}


def known_params(graphs: Sequence[Graph]) -> Params:
    """Every parameter of our own translation."""
    return {(g.name, n.name, p.name): p for g in graphs for n in g.nodes for p in n.params}


def compile_double(
    golden: Path, out: Path, known: Mapping[str, bytes], params: Params
) -> dict[str, Fields]:
    """What a run of ``compilefornpu`` leaves in ``out``, from a folder of the golden data.

    Returns:
        The recorded graphs by name.
    """
    record = json.loads((golden / "graphs.json").read_text())
    for graph in record["graphs"]:
        double = Double(graph, params)
        folder = out / "qnn" / graph["graph"]
        folder.mkdir(parents=True)
        (folder / f"{folder.name}.cpp").write_text(double.text())
        for name, data in double.raws(known).items():
            tensor = double.tensors[name]
            assert len(data) == math.prod(tensor["dims"]) * DTYPE_BYTES[tensor["dataType"]]
            (folder / f"{name}.raw").write_bytes(data)
    (out / "npu_postreat.json").write_bytes((golden / "npu_postreat.json").read_bytes())
    return {graph["graph"]: graph for graph in record["graphs"]}
