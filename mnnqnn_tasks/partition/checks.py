"""Pieces that the NPU could compute but MNN's runtime could not serve right.

The runtime knows a piece by the dimensions of its inputs and by their names alone
(``QNNBackend.cpp``: ``computeIndex``, ``PluginExecuteRaw``); a piece with which that
fails stays on the CPU rather than giving a wrong result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mnnqnn_tasks.partition.subgraph import Subgraph


def _input_dims(graph: Subgraph) -> tuple[tuple[int, ...], ...]:
    return tuple(graph.tensors[i].dims for i in graph.inputs)


def _ranks(graph: Subgraph) -> list[int]:
    return [len(dims) for dims in _input_dims(graph)]


def _same_dims(a: Subgraph, b: Subgraph) -> bool:
    # As the runtime compares: all dimensions one after another, scalars count for nothing.
    left, right = ([d for dims in _input_dims(g) for d in dims] for g in (a, b))
    return left == right


def runtime_reason(graphs: Sequence[Subgraph]) -> str | None:
    """Why a piece with these graphs (one per shape) has to stay on the CPU, or ``None``."""
    first = graphs[0]
    if not first.inputs:
        return "it reads no tensor, so the runtime has nothing to start it with"
    for graph in graphs:
        for index in (*graph.inputs, *graph.outputs):
            tensor = graph.tensors[index]
            if tensor.format == "NHWC" and len(tensor.dims) >= 3:
                return (
                    f"tensor {tensor.boundary} crosses its border in the layout NHWC, "
                    "which the runtime turns into NCHW"
                )
        if _ranks(graph) != _ranks(first):
            return "its inputs have another number of dimensions in another shape"
    for i, one in enumerate(graphs):
        for other in graphs[i + 1 :]:
            if _same_dims(one, other) and replace(other, graph=one.graph) != one:
                return (
                    f"the runtime cannot tell {one.graph} and {other.graph} apart: "
                    "their inputs have the same dimensions"
                )
    return None
