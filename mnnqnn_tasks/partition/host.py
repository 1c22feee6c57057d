"""The host model ``qnn/llm.mnn``: the pieces on the CPU and one Plugin op per NPU piece.

MNN's runtime reads from a Plugin op of type ``QNN``: ``path`` (the binary, relative to
the config), ``inputs`` and ``outputs`` (QNN names of its tensors, in the order of the
op's), ``allGraphName`` and ``allInputShape`` (all input dimensions one after another)
for every shape in order, and ``o_<shape>_<output>`` with type, layout and dimensions of
each output.  The shape is chosen at run time by comparing input dimensions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnnqnn_tasks.errors import PartitionError
from mnnqnn_tasks.mnn.infer import TensorFact
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.partition.cut import Piece
from mnnqnn_tasks.partition.fold import Folded
from mnnqnn_tasks.partition.net_view import NetView
from mnnqnn_tasks.partition.plan import binary_name, graph_name

Facts = Sequence[Sequence[TensorFact | None]]

#: numpy type -> (MNN DataType, field of Blob with the values).
_BLOB: dict[str, tuple[str, str]] = {
    "float32": ("DT_FLOAT", "float32s"),
    "int32": ("DT_INT32", "int32s"),
    "int8": ("DT_INT8", "int8s"),
    "uint8": ("DT_UINT8", "uint8s"),
}


def blob(dims: Sequence[int], dtype: str, format: str) -> Table:
    """A Blob of a shape without values; fields that equal their default stay absent."""
    fields: dict[str, Any] = {"dims": np.array(dims, np.int32)}
    if format != "NCHW":
        fields["dataFormat"] = format
    if dtype != "float32":
        fields["dataType"] = _BLOB[dtype][0]
    return Table("Blob", fields)


def _attribute(key: str, **fields: Any) -> Table:
    return Table("Attribute", {**fields, "key": key})


def _strings(key: str, values: Sequence[str]) -> Table:
    return _attribute(key, list=Table("ListValue", {"s": list(values)}))


def plugin(piece: Piece, number: int, facts: Facts) -> Table:
    """The parameters of the Plugin op of NPU piece ``number``."""

    def fact(shape: int, tensor: int) -> TensorFact:
        found = facts[shape][tensor]
        assert found is not None, "cut.py leaves tensors of unknown shape on the CPU"
        return found

    shapes = range(len(facts))
    dims = [d for s in shapes for t in piece.inputs for d in fact(s, t).dims]
    return Table(
        "Plugin",
        {
            "type": "QNN",
            "attr": [
                _attribute("path", s=binary_name(number)),
                _strings("inputs", [f"t{t}" for t in piece.inputs]),
                _strings("allGraphName", [graph_name(s, number) for s in shapes]),
                _strings("outputs", [f"t{t}" for t in piece.outputs]),
                _attribute(
                    "allInputShape", list=Table("ListValue", {"i": np.array(dims, np.int32)})
                ),
                *(
                    _attribute(
                        f"o_{s}_{i}",
                        tensor=blob(fact(s, t).dims, fact(s, t).dtype, fact(s, t).format),
                    )
                    for s in shapes
                    for i, t in enumerate(piece.outputs)
                ),
            ],
        },
    )


@dataclass
class _Names:
    """Gives out names that were not used before."""

    used: set[str] = field(default_factory=set)

    def take(self, wanted: str, other: str) -> str:
        name, n = wanted or other, 0
        while name in self.used:
            name = other if n == 0 else f"{other}_{n}"
            n += 1
        self.used.add(name)
        return name


def host_net(
    view: NetView,
    pieces: Sequence[Piece],
    folded: Folded,
    facts: Facts,
    outputs: Sequence[int],
) -> Table:
    """The host model as a ``Net``.

    It has every Input op of the model, the constants that ops on the CPU read, and the
    pieces in order; tensors are numbered anew in their old order.  ``external`` offsets
    stay those of the model's weight file.

    Args:
        view: the model.
        pieces: with borders, in an order that can run.
        folded: constants; only those that are the same for every shape may be read by
            pieces on the CPU.
        facts: of every tensor, per shape.
        outputs: tensors that the model gives.
    """
    read = {t for p in pieces if not p.npu for i in p.ops for t in view.ops[i].inputs if t >= 0}
    read |= set(outputs)
    ops = [_copy(view.ops[view.producer[t]].table) for t in view.inputs]
    ops += [_copy(op.table) for op in view.ops if read & set(op.outputs) & view.consts]
    ops += _folded_ops(view, folded, read)
    number = 0
    for piece in pieces:
        if not piece.npu:
            ops += [_copy(view.ops[i].table) for i in piece.ops]
            continue
        ops.append(
            Table(
                "Op",
                {
                    "inputIndexes": np.array(piece.inputs, np.int32),
                    "main": plugin(piece, number, facts),
                    "name": binary_name(number),
                    "outputIndexes": np.array(piece.outputs, np.int32),
                    "type": "Plugin",
                },
            )
        )
        number += 1
    _check_order(view, ops)
    new = _renumber(ops)
    fields = dict(view.net.fields)
    fields["oplists"] = ops
    fields["tensorName"] = _name_tensors(view, new, (*view.inputs, *outputs))
    fields["outputName"] = [fields["tensorName"][new[t]] for t in outputs]
    describes = _describes(view.net.extraTensorDescribe or (), new)
    fields.pop("extraTensorDescribe", None)
    if describes:
        fields["extraTensorDescribe"] = describes
    _name_ops(ops)
    return Table("Net", fields)


def _copy(op: Table) -> Table:
    return Table("Op", dict(op.fields))


def _folded_ops(view: NetView, folded: Folded, read: Collection[int]) -> list[Table]:
    ops = []
    for tensor in sorted(folded.fixed & set(read)):
        op = view.ops[view.producer[tensor]]
        value: NDArray[Any] = folded.values[0][tensor]
        fact_format = folded.formats[tensor]
        main = blob(value.shape, value.dtype.name, fact_format)
        main.fields[_BLOB[value.dtype.name][1]] = np.ascontiguousarray(value).reshape(-1)
        ops.append(
            Table(
                "Op",
                {
                    "main": main,
                    "name": f"{op.name}_Const",
                    "outputIndexes": np.array([tensor], np.int32),
                    "type": "Const",
                },
            )
        )
    return ops


def _check_order(view: NetView, ops: Sequence[Table]) -> None:
    written: set[int] = set()
    for op in ops:
        for tensor in op.fields.get("inputIndexes", ()):
            if tensor >= 0 and int(tensor) not in written:
                raise PartitionError(
                    f"op {op.name!r} of the host model reads tensor {view.names[tensor]!r}, "
                    "which nothing before it writes",
                    todo="this is a mistake of the partitioner; report it with the model",
                )
        written.update(int(t) for t in op.fields.get("outputIndexes", ()))


def _renumber(ops: Sequence[Table]) -> dict[int, int]:
    """Number the tensors that ``ops`` use anew, in place; returns old -> new."""
    names = ("inputIndexes", "outputIndexes")
    used = {int(t) for op in ops for f in names for t in op.fields.get(f, ()) if t >= 0}
    new = {old: i for i, old in enumerate(sorted(used))}
    for op in ops:
        for name in names:
            if name in op.fields:
                old = [int(t) for t in op.fields[name]]
                op.fields[name] = np.array([new.get(t, -1) for t in old], np.int32)
    return new


def _name_tensors(view: NetView, new: Mapping[int, int], first: Sequence[int]) -> list[str]:
    """Unique names; inputs and outputs keep theirs before any other tensor."""
    names = _Names()
    found = {t: names.take(view.names[t], str(new[t])) for t in dict.fromkeys(first)}
    for tensor in new:
        if tensor not in found:
            found[tensor] = names.take(view.names[tensor], str(new[tensor]))
    return [found[tensor] for tensor in new]


def _name_ops(ops: Sequence[Table]) -> None:
    names = _Names({op.name for op in ops if op.type == "Plugin"})
    for index, op in enumerate(ops):
        if op.type != "Plugin":
            op.fields["name"] = names.take(op.name or "", f"{op.type}{index}")


def _describes(describes: Sequence[Table], new: Mapping[int, int]) -> list[Table]:
    return [
        Table("TensorDescribe", {**item.fields, "index": new[int(item.index)]})
        for item in describes
        if int(item.index) in new
    ]
