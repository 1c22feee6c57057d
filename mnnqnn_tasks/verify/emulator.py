"""Translated graphs on the host emulator, arrays in and arrays out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mnnqnn_tasks.errors import VerifyError
from mnnqnn_tasks.qnn import netjson, run
from mnnqnn_tasks.qnn.ir import Graph, Tensor
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.verify.metrics import Array
from mnnqnn_tasks.verify.sides import Arrays
from mnnqnn_tasks.verify.thresholds import Activations, activations

#: How the runtime holds the data types that cross a graph's border.
_NUMPY = {
    "FLOAT_32": "<f4",
    "FLOAT_16": "<f2",
    "INT_8": "<i1",
    "INT_16": "<i2",
    "INT_32": "<i4",
    "INT_64": "<i8",
    "UINT_8": "<u1",
    "UINT_16": "<u2",
    "UINT_32": "<u4",
    "UINT_64": "<u8",
    "BOOL_8": "<u1",
}


@dataclass
class Emulator:
    """The graphs of one build folder, prepared for one target.

    Attributes:
        folder: holds ``<graph>/<graph>_net.json`` for every graph.
        blobs: the content store of static tensors.
    """

    folder: Path
    blobs: Path
    options: TargetOptions
    lib_dir: Path | None = None
    _kinds: dict[str, Activations] = field(default_factory=dict)

    def net(self, graph: str) -> Path:
        """The exact form of a graph."""
        return self.folder / graph / f"{graph}_net.json"

    def activations(self, graph: str) -> Activations:
        """Whether the graph computes in float or in fixed point.

        Raises:
            NetFileError: when its file cannot be used.
        """
        if graph not in self._kinds:
            self._kinds[graph] = activations(netjson.load(self.net(graph)))
        return self._kinds[graph]

    def execute(self, graph: str, sets: Sequence[Arrays]) -> list[dict[str, Array]]:
        """Compile once in a process of its own, then execute every set.

        Raises:
            VerifyError: when an array does not fit the graph's input.
            NetFileError, QnnError, NativeCrash, ToolMissing: from the library's process.
        """
        net = netjson.load(self.net(graph))
        buffers = [
            {tensor.name: _bytes(net, tensor, arrays) for tensor in net.inputs()} for arrays in sets
        ]
        results = run.execute(self.net(graph), self.blobs, self.options, buffers, self.lib_dir)
        return [
            {tensor.name: _array(tensor, result[tensor.name], graph) for tensor in net.outputs()}
            for result in results
        ]


def _bytes(net: Graph, tensor: Tensor, arrays: Arrays) -> bytes:
    array = arrays.get(tensor.name)
    dtype = _dtype(tensor, net.name)
    if array is None or array.size * dtype.itemsize != tensor.size or array.dtype != dtype:
        given = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
        raise VerifyError(
            f"the model does not give graph {net.name} the input that it declares",
            where=f"{net.name}: {tensor.name}",
            why=f"the graph wants {dtype} {list(tensor.dims)}, the model has {given}",
            todo="run the export again; if it stays so, report it with plan.json",
        )
    return np.ascontiguousarray(array).tobytes()


def _array(tensor: Tensor, data: bytes, graph: str) -> Array:
    return np.frombuffer(data, _dtype(tensor, graph)).reshape(tensor.dims)


def _dtype(tensor: Tensor, graph: str) -> np.dtype[Any]:
    if tensor.dtype not in _NUMPY:
        raise VerifyError(
            "a graph's border has a type that the runtime does not pass",
            where=f"{graph}: {tensor.name}",
            why=f"it is {tensor.dtype}; host buffers are float32 or integers",
            todo="run the export again; if it stays so, report it with plan.json",
        )
    return np.dtype(_NUMPY[tensor.dtype])
