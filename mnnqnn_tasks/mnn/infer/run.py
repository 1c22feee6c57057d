"""Runs the rules over a whole net, in the order of its ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn.infer import compute, elementwise, fused, moves, search, shapes, strided
from mnnqnn_tasks.mnn.infer.facts import DTYPES, Array, TensorFact, Unknown, require
from mnnqnn_tasks.mnn.infer.registry import RULES, rule
from mnnqnn_tasks.mnn.table import Table

#: Modules whose import fills the table.
_REGISTERED = (compute, elementwise, fused, moves, search, shapes, strided)

#: Field of a Blob that holds its values, by DataType (MNN stores bool as int32).
_BLOB_FIELDS: dict[str, str] = {
    "DT_FLOAT": "float32s",
    "DT_INT32": "int32s",
    "DT_BOOL": "int32s",
    "DT_INT8": "int8s",
    "DT_UINT8": "uint8s",
    "DT_QINT8": "int8s",
    "DT_QUINT8": "uint8s",
}


def blob_fact(blob: Table) -> TensorFact:
    """The fact of a Const op's blob; the value is a view, ``None`` where external.

    Raises:
        Unknown: when the type is not one that MNN's CPU computes with, or when the
            number of values differs from the shape.
    """
    require(blob.dataType in _BLOB_FIELDS, f"a constant of type {blob.dataType}")
    dims = () if blob.dims is None else tuple(int(d) for d in blob.dims)
    require(all(d >= 0 for d in dims), "a constant with a negative dimension")
    dtype = DTYPES[blob.dataType]
    fact = TensorFact(dims, dtype, blob.dataFormat)
    values: Array | None = blob.fields.get(_BLOB_FIELDS[blob.dataType])
    if values is None:
        if fact.size == 0:
            return TensorFact(dims, dtype, fact.format, np.zeros(dims, dtype))
        require(blob.fields.get("external") is not None, "no values")
        return fact
    require(values.size == fact.size, "a constant with more or fewer values than its shape")
    return TensorFact(dims, dtype, fact.format, values.reshape(dims).astype(dtype, copy=False))


@rule("Const", "TrainableParam")
def const(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """The blob in the parameters."""
    require(op.main is not None and op.main.type_name == "Blob" and outs == 1)
    return [blob_fact(op.main)]


def infer(
    net: Table,
    input_facts: Mapping[int, TensorFact],
    order: Sequence[int] | None = None,
) -> list[TensorFact | None]:
    """Facts of every tensor of ``net``.

    Args:
        net: a decoded ``Net``.
        input_facts: facts by tensor index for the graph inputs, and for any other
            tensor that the caller knows better; these are never overwritten.
        order: op indices such that each op comes after those whose results it reads;
            the order of the file if not given.

    Returns:
        One entry per tensor of ``net.tensorName``; ``None`` where a rule is missing or
        an input is not known.  Nothing is ever guessed.

    Raises:
        ModelFileError: when an op names a tensor that the file does not have.
    """
    count = len(net.tensorName or ())
    facts: list[TensorFact | None] = [None] * count
    for index, fact in input_facts.items():
        facts[index] = fact
    ops = net.oplists or ()
    for number in range(len(ops)) if order is None else order:
        op = ops[number]
        outputs = op.fields.get("outputIndexes", ())
        inputs = op.fields.get("inputIndexes", ())
        inputs = inputs.tolist() if isinstance(inputs, np.ndarray) else list(inputs)
        outputs = outputs.tolist() if isinstance(outputs, np.ndarray) else list(outputs)
        _check(op, number, inputs, outputs, count)
        results = _apply(op, [facts[i] if i >= 0 else None for i in inputs], len(outputs))
        for index, result in zip(outputs, results, strict=True):
            if index not in input_facts:
                facts[index] = result
    return facts


def _check(op: Table, number: int, inputs: list[int], outputs: list[int], count: int) -> None:
    for index in (*inputs, *outputs):
        if index >= count or (index < 0 and index in outputs):
            raise ModelFileError(
                "an op names a tensor that the file does not have",
                where=f"op {number} ({op.type} {op.name or ''})",
                why=f"tensor {index} of {count}",
                todo="export the model again with MNN's exporter",
            )


def _apply(op: Table, ins: list[TensorFact | None], outs: int) -> list[TensorFact | None]:
    function = RULES.get(op.type)
    nothing: list[TensorFact | None] = [None] * outs
    if function is None:
        return nothing
    # An optional input that is absent (-1) is no fact; only trailing ones can be dropped.
    given = [x for x in ins if x is not None]
    if len(given) != len(ins) or any(d < 0 for x in given for d in x.dims):
        return nothing
    try:
        results = function(op, given, outs)
    except Unknown:
        return nothing
    except (AttributeError, IndexError, TypeError, ValueError):
        # A parameter table of another kind, or fewer inputs than the op needs: MNN
        # would refuse or crash on it; here the shape is simply not known.
        return nothing
    return list(results) if len(results) == outs else nothing
