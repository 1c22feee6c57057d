"""Running a graph on the host: the HTP emulator inside ``libQnnHtp.so``."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import QnnError
from mnnqnn_tasks.qnn import abi
from mnnqnn_tasks.qnn.compose import Composed, compose
from mnnqnn_tasks.qnn.ir import Graph, Tensor
from mnnqnn_tasks.qnn.log import Log
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.qnn.session import Htp

Buffers = dict[str, bytes]


class Executor:
    """A finalized graph in this process, ready to run.

    Raises:
        QnnError: the library refuses the graph.
    """

    def __init__(self, graph: Graph, blobs: Path, options: TargetOptions, lib_dir: Path) -> None:
        self._graph = graph
        self._htp = Htp(lib_dir, Log())
        device = self._htp.device(options)
        context = self._htp.context(self._htp.backend(), device, options)
        self._composed = compose(self._htp, context, graph, options, blobs)

    def run(self, inputs: Mapping[str, bytes]) -> Buffers:
        """One execution: bytes of every input by name, to bytes of every output.

        Raises:
            QnnError: an input is missing or has another size, or the library fails.
        """
        sources = [_source(self._graph, tensor, inputs) for tensor in self._graph.inputs()]
        results = [ctypes.create_string_buffer(t.size) for t in self._graph.outputs()]
        self._htp.log.stage(f"execute {self._graph.name}")
        self._htp.call(
            "graphExecute",
            self._composed.handle,
            *_bound(self._composed, self._graph.inputs(), sources),
            *_bound(self._composed, self._graph.outputs(), results),
            None,
            None,
            what="QNN cannot execute the graph",
            where=self._graph.name,
        )
        outputs = self._graph.outputs()
        return {t.name: bytes(r.raw) for t, r in zip(outputs, results, strict=True)}


def _source(graph: Graph, tensor: Tensor, inputs: Mapping[str, bytes]) -> Any:
    data = inputs.get(tensor.name)
    if data is None or len(data) != tensor.size:
        given = "none" if data is None else f"{len(data)} bytes"
        raise QnnError(
            f"input {tensor.name} needs {tensor.size} bytes ({tensor.dtype} {list(tensor.dims)})",
            where=graph.name,
            why=f"given: {given}",
        )
    return ctypes.create_string_buffer(data, tensor.size)


def _bound(composed: Composed, tensors: list[Tensor], buffers: list[Any]) -> Iterator[Any]:
    """The tensor array bound to buffers, and its length: two arguments of graphExecute."""
    array = (abi.ctype("Qnn_Tensor_t") * len(tensors))(
        *(composed.tensors[tensor.name] for tensor in tensors)
    )
    for item, buffer in zip(array, buffers, strict=True):
        item.v1.clientBuf.data = ctypes.addressof(buffer)
        item.v1.clientBuf.dataSize = len(buffer)
    yield array
    yield len(tensors)
