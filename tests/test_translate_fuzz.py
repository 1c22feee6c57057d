"""Subgraphs that make no sense end in a named error, never in another exception."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from translate_graphs import Net

from mnnqnn_tasks.errors import TranslateError
from mnnqnn_tasks.mnn import schema
from mnnqnn_tasks.qnn import spec
from mnnqnn_tasks.translate.registry import translators, unsupported_reason

#: Parameter table of each op type that has one.
TABLES = {
    "BinaryOp": "BinaryOp",
    "BatchMatMul": "BatchMatMulParam",
    "Cast": "CastParam",
    "Concat": "Axis",
    "ConvertTensor": "TensorConvertInfo",
    "Convolution": "Convolution2D",
    "ConvolutionDepthwise": "Convolution2D",
    "LayerNorm": "LayerNorm",
    "MatMul": "MatMul",
    "Permute": "Permute",
    "ReLU": "Relu",
    "ReLU6": "Relu6",
    "Reduction": "ReductionParam",
    "Slice": "Slice",
    "Softmax": "Axis",
    "StridedSlice": "StridedSliceParam",
    "UnaryOp": "UnaryOp",
}
SHAPES = [(), (1,), (4,), (2, 4), (1, 4, 4), (1, 2, 4, 4), (2, 4, 1, 1), (1, 1, 2, 4, 2)]


def _value(kind: str, pick: random.Random) -> Any:
    known = schema.load()
    if kind in known.enums:
        return pick.choice([*known.enums[kind].values, 99])
    if kind in known.tables:
        return _fields(kind, pick)
    if kind.startswith("["):
        return [pick.randint(-3, 5) for _ in range(pick.randint(0, 4))]
    return {"bool": pick.random() < 0.5, "float": pick.uniform(-2, 2)}.get(
        kind, pick.randint(-3, 5)
    )


def _fields(table: str, pick: random.Random) -> dict[str, Any]:
    fields = [f for f in schema.load().tables[table] if f.type != "string" and f.name != "external"]
    return {f.name: _value(f.type, pick) for f in fields if pick.random() < 0.6}


def _input(net: Net, pick: random.Random) -> int:
    shape = pick.choice(SHAPES)
    size = int(np.prod(shape))
    if pick.random() < 0.5:
        values = np.array([pick.randint(-3, 5) for _ in range(size)], np.int32).reshape(shape)
        return net.const(values) if pick.random() < 0.6 else net.input(values)
    return net.input(np.ones(shape, np.float32))


@pytest.mark.parametrize("type", sorted(translators()))
def test_random_uses_of_an_op(type: str) -> None:
    pick = random.Random(type)
    for _ in range(300):
        net = Net()
        inputs = [_input(net, pick) for _ in range(pick.randint(1, 4))]
        params = _fields(TABLES[type], pick) if type in TABLES else {}
        outputs = [pick.choice(SHAPES) for _ in range(pick.randint(1, 2))]
        first = net.op(type, inputs, outputs, pick.choice(["float32", "int32"]), params=params)
        for number in range(len(outputs)):
            net.output(first + number)
        reason = unsupported_reason(net.ops[-1], net.subgraph())
        assert reason is None or reason
        try:
            spec.check(net.translated().graph)
        except TranslateError as error:
            assert type in str(error) or net.name in str(error)
