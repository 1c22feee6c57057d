"""The channel axis of matrix multiplication weights.

MNN writes the weight of a ``MatMul`` as [in, out] with one scale per output channel, and
says axis 0.  QNN (2.51, HTP) takes the scales of such a weight per output channel whatever
the axis says: axis 0 and 1 give the same context binary, byte for byte.  The graph IR says
what is meant, axis 1, so that its rule (as many scales as the axis has channels) holds.
"""

from __future__ import annotations

from dataclasses import replace

from mnnqnn_tasks.qnn.ir import AxisScaleOffset, BwAxisScaleOffset, Graph, Node, Tensor


def with_output_axes(graph: Graph) -> Graph:
    """The graph with the axis of such weights as it is meant."""
    meant: dict[str, bool] = {}
    for node in graph.nodes:
        for place, name in enumerate(node.inputs):
            meant[name] = meant.get(name, True) and place == 1 and _plain_matmul(node)
    return Graph(
        graph.name, [_turned(t) if meant.get(t.name) else t for t in graph.tensors], graph.nodes
    )


def _plain_matmul(node: Node) -> bool:
    turned = any(p.name == "transpose_in1" and getattr(p, "value", 1) for p in node.params)
    return node.type == "MatMul" and not turned


def _turned(tensor: Tensor) -> Tensor:
    quant = tensor.quant
    if (
        tensor.kind == "STATIC"
        and isinstance(quant, AxisScaleOffset | BwAxisScaleOffset)
        and len(tensor.dims) == 2
        and quant.axis == 0
        and len(quant.scales) == tensor.dims[1]
    ):
        return replace(tensor, quant=replace(quant, axis=1))
    return tensor
