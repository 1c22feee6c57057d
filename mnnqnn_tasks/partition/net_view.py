"""The ops of a decoded model as plain tuples, checked and in an order that can run."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mnnqnn_tasks.errors import ModelFileError, PartitionError
from mnnqnn_tasks.mnn.table import Table

#: Ops that hold data and compute nothing (MNN's ``needComputeOp``).
DATA_OPS = frozenset({"Input", "Const", "TrainableParam"})
CONST_OPS = frozenset({"Const", "TrainableParam"})


@dataclass(frozen=True, slots=True)
class NetOp:
    """One op; ``inputs`` holds -1 where an optional input is absent."""

    index: int
    type: str
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    table: Table


@dataclass(frozen=True)
class NetView:
    """A model's ops and tensors.

    Attributes:
        net: the decoded model.
        names: tensor names by tensor index.
        ops: all ops, by their index in the file.
        order: op indices such that each op follows those that write what it reads.
        producer: tensor index -> index of the op that writes it.
        inputs: tensor indices that Input ops write, in file order.
        consts: tensor indices that Const ops write.
    """

    net: Table
    names: tuple[str, ...]
    ops: tuple[NetOp, ...]
    order: tuple[int, ...]
    producer: dict[int, int]
    inputs: tuple[int, ...]
    consts: frozenset[int]


def _indices(values: Iterable[int] | None) -> tuple[int, ...]:
    return () if values is None else tuple(int(v) for v in values)


def view_net(net: Table, where: str = "") -> NetView:
    """Check the connections of ``net`` and put its ops in order.

    The file's order is kept as far as it can run.

    Raises:
        ModelFileError: when an op names a tensor that is not there, or two ops write
            one tensor.
        PartitionError: when ops wait for each other in a circle.
    """
    names = tuple(net.tensorName or ())
    ops: list[NetOp] = []
    producer: dict[int, int] = {}
    for index, table in enumerate(net.oplists or ()):
        op = NetOp(
            index,
            str(table.type),
            table.name or "",
            _indices(table.inputIndexes),
            _indices(table.outputIndexes),
            table,
        )
        _check_indices(op, len(names), where)
        for tensor in op.outputs:
            if tensor in producer:
                raise ModelFileError(
                    f"two ops write tensor {tensor} ({names[tensor]})",
                    where=where or None,
                    why=f"{ops[producer[tensor]].name!r} and {op.name!r}",
                    todo="export the model again with MNN's exporter",
                )
            producer[tensor] = index
        ops.append(op)
    return NetView(
        net,
        names,
        tuple(ops),
        _order(ops, producer, where),
        producer,
        tuple(op.outputs[0] for op in ops if op.type == "Input" and op.outputs),
        frozenset(t for op in ops if op.type in CONST_OPS for t in op.outputs),
    )


def _check_indices(op: NetOp, count: int, where: str) -> None:
    bad = [t for t in op.inputs if not -1 <= t < count]
    bad += [t for t in op.outputs if not 0 <= t < count]
    if bad:
        raise ModelFileError(
            f"op {op.index} ({op.type} {op.name!r}) names a tensor that is not there",
            where=where or None,
            why=f"tensor {bad[0]}; the file has {count} tensors",
            todo="export the model again with MNN's exporter",
        )


def _order(ops: list[NetOp], producer: dict[int, int], where: str) -> tuple[int, ...]:
    waits: list[int] = []
    readers: dict[int, list[int]] = {}
    for op in ops:
        sources = {producer[t] for t in op.inputs if t in producer}
        waits.append(len(sources))
        for source in sources:
            readers.setdefault(source, []).append(op.index)
    ready = [i for i, n in enumerate(waits) if n == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers.get(index, ()):
            waits[reader] -= 1
            if waits[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(ops):
        done = set(order)
        stuck = next(op for op in ops if op.index not in done)
        raise PartitionError(
            "the ops of the model wait for each other in a circle",
            where=where or None,
            why=f"op {stuck.index} ({stuck.type} {stuck.name!r}) reads what depends on it",
            todo="export the model again with MNN's exporter",
        )
    return tuple(order)


def needed_ops(
    view: NetView, inputs: Collection[int], outputs: Iterable[int], skip: Collection[int] = ()
) -> tuple[int, ...]:
    """Ops that compute something which ``outputs`` depend on, in order.

    The trace back stops at ``inputs`` and at ops in ``skip`` (folded ones), which like
    data ops are left out.

    Raises:
        PartitionError: when a tensor that is needed is written by no op and is no input.
    """
    wanted = set(outputs)
    todo = [t for t in wanted if t not in inputs]
    found: set[int] = set()
    while todo:
        tensor = todo.pop()
        index = view.producer.get(tensor)
        op = None if index is None else view.ops[index]
        if op is None or op.type == "Input":
            raise PartitionError(
                f"tensor {tensor} ({view.names[tensor]}) has no value",
                why="an op reads it, and it is neither an input that the sample gives nor "
                "written by an op"
                if op is None
                else "the sample input.mnn has no tensor of this name",
                todo="make the sample inputs again from this model",
            )
        if op.index in found or op.index in skip or op.type in CONST_OPS:
            continue
        found.add(op.index)
        for source in op.inputs:
            if source >= 0 and source not in wanted:
                wanted.add(source)
                if source not in inputs:
                    todo.append(source)
    return tuple(i for i in view.order if i in found)
