"""Makes `Subgraph`s of pieces: renumbered tensors, constants, digests of weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mnnqnn_tasks.errors import ModelFileError, PartitionError
from mnnqnn_tasks.mnn.infer import TensorFact
from mnnqnn_tasks.mnn.params import params_as_json
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.partition.net_view import NetView
from mnnqnn_tasks.partition.sources import Sources
from mnnqnn_tasks.partition.subgraph import (
    ByteRef,
    DType,
    Format,
    QuantInfo,
    Subgraph,
    SubOp,
    SubTensor,
)

Numbers = tuple[float | int, ...]
#: Parameters and weights of ops by op index.
OpParams = dict[int, tuple[dict[str, Any], dict[str, ByteRef]]]


def quant_infos(net: Table) -> dict[int, QuantInfo]:
    """``quantInfo`` of ``extraTensorDescribe`` by tensor index."""
    found = {}
    for item in net.extraTensorDescribe or ():
        info = item.quantInfo
        if info is not None:
            found[int(item.index)] = QuantInfo(
                info.scale, info.zero, info.min, info.max, str(info.type)
            )
    return found


@dataclass
class SubgraphBuilder:
    """Builds the subgraphs of one shape.

    Attributes:
        view: the model.
        facts: of every tensor, for this shape.
        folded: values of folded tensors, for this shape.
        sources: where bytes are looked up and noted down.
        quants: quantization by tensor.
        params: parameters and weights of ops, found once for all shapes.
    """

    view: NetView
    facts: Sequence[TensorFact | None]
    folded: Mapping[int, NDArray[Any]]
    sources: Sources
    quants: Mapping[int, QuantInfo]
    params: OpParams = field(default_factory=dict)

    def build(
        self,
        graph: str,
        ops: Sequence[int],
        inputs: Collection[int],
        outputs: Collection[int],
    ) -> Subgraph:
        """The subgraph of ``ops`` (indices, in order) with these border tensors.

        Raises:
            PartitionError: when the shape of a tensor is not known.
            ModelFileError: when a constant contradicts its shape.
        """
        ids: dict[int, int] = {}
        tensors: list[SubTensor] = []
        border = {*inputs, *outputs}

        def number(tensor: int) -> int:
            if tensor < 0:
                return -1
            if tensor not in ids:
                ids[tensor] = len(ids)
                tensors.append(self._tensor(ids[tensor], tensor, tensor in border))
            return ids[tensor]

        sub_ops = []
        for index in ops:
            op = self.view.ops[index]
            params, weights = self._params(index)
            ins = tuple(number(t) for t in op.inputs)
            outs = tuple(number(t) for t in op.outputs)
            sub_ops.append(SubOp(op.type, op.name, ins, outs, params, weights))
        return Subgraph(
            graph,
            tuple(tensors),
            tuple(sub_ops),
            tuple(ids[t] for t in sorted(inputs)),
            tuple(ids[t] for t in sorted(outputs)),
        )

    def build_op(self, index: int) -> Subgraph:
        """The subgraph of one op, all its tensors but constants on the border."""
        op = self.view.ops[index]
        inputs = {
            t for t in op.inputs if t >= 0 and t not in self.view.consts and t not in self.folded
        }
        return self.build("op", (index,), inputs, set(op.outputs))

    def _params(self, index: int) -> tuple[dict[str, Any], dict[str, ByteRef]]:
        if index not in self.params:
            table = self.view.ops[index].table
            params = {} if table.main is None else params_as_json(table.main)
            self.params[index] = params, self.sources.of_op(table)
        return self.params[index]

    def _tensor(self, id: int, tensor: int, border: bool) -> SubTensor:
        fact = self.facts[tensor]
        if fact is None:
            raise PartitionError(
                f"the shape of tensor {tensor} ({self.view.names[tensor]}) is not known"
            )
        return SubTensor(
            id,
            fact.dims,
            cast("DType", fact.dtype),
            cast("Format", fact.format),
            boundary=tensor if border else None,
            const=self._const(tensor),
            quant=self.quants.get(tensor) if fact.dtype == "float32" else None,
        )

    def _const(self, tensor: int) -> Numbers | ByteRef | None:
        if tensor in self.folded:
            return numbers(self.folded[tensor])
        if tensor not in self.view.consts:
            return None
        fact = self.facts[tensor]
        assert fact is not None
        op = self.view.ops[self.view.producer[tensor]].table
        refs = list(self.sources.of_op(op).values())
        if not refs and fact.value is not None:
            return numbers(fact.value)
        if len(refs) != 1 or refs[0].size != fact.size * np.dtype(fact.dtype).itemsize:
            raise ModelFileError(
                f"the constant {self.view.names[tensor]!r} is damaged",
                why=f"its shape {list(fact.dims)} of {fact.dtype} does not fit the "
                f"{sum(ref.size for ref in refs)} bytes that it names",
                todo="export the model again with MNN's exporter",
            )
        return refs[0]


def numbers(values: NDArray[Any]) -> Numbers:
    """The elements, flat in row-major order; a float32 as the double that equals it."""
    return tuple(np.ascontiguousarray(values).reshape(-1).tolist())
