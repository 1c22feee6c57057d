"""What makes two uses of an op the same to QNN, and an op as a subgraph of its own.

The validate stage asks QNN about each signature once; the partition keeps ops with a
refused signature on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from mnnqnn_tasks.files import canonical_json, sha256_bytes
from mnnqnn_tasks.partition.subgraph import ByteRef, Subgraph, SubOp, SubTensor

#: Parameters that say where an op stands in the model and not what it computes.
_PLACE = frozenset({"layer_index", "kv_shared_layer", "kv_shared_layer_index"})


def _const(tensor: SubTensor) -> Any:
    """Integer constants decide how an op is translated; float ones are only data."""
    if tensor.const is None:
        return None
    if isinstance(tensor.const, ByteRef):
        return "bytes"
    return "values" if tensor.dtype == "float32" else list(tensor.const)


def _tensor(tensor: SubTensor) -> dict[str, Any]:
    return {
        "dims": list(tensor.dims),
        "dtype": tensor.dtype,
        "format": tensor.format,
        "const": _const(tensor),
        "quant": None if tensor.quant is None else tensor.quant.dtype,
    }


def _text(tensor: SubTensor) -> str:
    return f"{tensor.dtype}[{','.join(map(str, tensor.dims))}]{tensor.format}"


def signature(op: SubOp, subgraph: Subgraph) -> str:
    """Canonical text of what QNN's verdict on ``op`` can depend on.

    Type, parameters, shapes, data types, layouts, whether inputs are constants (and
    which integers), whether tensors are quantized and how wide, and the kind of weights.
    Readable in front, exact by the digest at its end.
    """
    pick = [None if i < 0 else subgraph.tensors[i] for i in (*op.inputs, *op.outputs)]
    first = {i: n for n, i in reversed(list(enumerate((*op.inputs, *op.outputs))))}
    exact = {
        "type": op.type,
        "inputs": len(op.inputs),
        "tensors": [None if t is None else _tensor(t) for t in pick],
        # Whether two inputs are one tensor can matter, which tensor it is cannot.
        "same": [first[i] for i in (*op.inputs, *op.outputs)],
        "params": {k: v for k, v in op.params.items() if k not in _PLACE},
        "weights": {role: ref.size for role, ref in op.weights.items()},
    }
    ins = ",".join(_text(t) if t else "-" for t in pick[: len(op.inputs)])
    outs = ",".join(_text(t) if t else "-" for t in pick[len(op.inputs) :])
    return f"{op.type}({ins})->({outs})#{sha256_bytes(canonical_json(exact).encode())[:16]}"


def single_op_subgraph(subgraph: Subgraph, op_index: int) -> Subgraph:
    """The op alone: its inputs and outputs become border tensors, constants stay.

    Border tensors are named by their position (``t0``, ``t1``, ...), so two ops with one
    signature give graphs that differ in names and constants' values only.
    """
    op = subgraph.ops[op_index]
    ids: dict[int, int] = {}
    tensors: list[SubTensor] = []
    for index in (*op.inputs, *op.outputs):
        if index < 0 or index in ids:
            continue
        ids[index] = len(ids)
        tensor = subgraph.tensors[index]
        border = None if tensor.const is not None else ids[index]
        tensors.append(replace(tensor, id=ids[index], boundary=border))
    renamed = replace(
        op,
        inputs=tuple(ids.get(i, -1) for i in op.inputs),
        outputs=tuple(ids.get(i, -1) for i in op.outputs),
    )
    outputs = tuple(dict.fromkeys(renamed.outputs))
    inputs = dict.fromkeys(
        i for i in renamed.inputs if i >= 0 and tensors[i].const is None and i not in outputs
    )
    return Subgraph(
        subgraph.graph,
        tuple(tensors),
        (renamed,),
        tuple(sorted(inputs)),
        tuple(sorted(outputs)),
    )


def unique_ops(subgraphs: Iterable[Subgraph]) -> dict[str, Subgraph]:
    """One example, alone in a subgraph, of every op that QNN has to be asked about."""
    found: dict[str, Subgraph] = {}
    for subgraph in subgraphs:
        for index, op in enumerate(subgraph.ops):
            text = signature(op, subgraph)
            if text not in found:
                found[text] = single_op_subgraph(subgraph, index)
    return found
