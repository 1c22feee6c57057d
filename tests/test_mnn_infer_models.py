"""Inference over whole models against what MNN computes for every single tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn import reader
from mnnqnn_tasks.mnn.infer import TensorFact, infer
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.partition.net_view import view_net
from mnnqnn_tasks.partition.samples import input_facts

pytest.importorskip("MNN")
import MNN.expr as F
import MNN.nn as nn

SHARED = Path(__file__).resolve().parents[1].parent / "shared"
GOLDEN = ("tiny-qwen3-w8", "tiny-qwen2-w8", "tiny-llama-w4b64", "tiny-qwen3-smooth")

needs_shared = pytest.mark.skipif(
    not (SHARED / "models").is_dir(), reason="the folder ../shared with the models is absent"
)


@needs_shared
@pytest.mark.parametrize("shape", ["1", "16"])
@pytest.mark.parametrize("model", GOLDEN)
def test_every_tensor_agrees_with_mnn(model: str, shape: str) -> None:
    folder = SHARED / "models" / model
    sample = SHARED / "golden" / model / "testdir" / shape / "input.mnn"
    view = view_net(reader.read(folder / "llm.mnn"))
    facts = infer(view.net, input_facts(view, sample))
    tensors = [t for op in view.ops if op.type not in ("Input", "Const") for t in op.outputs]
    inputs = F.load_as_list(str(sample))
    runtime = nn.create_runtime_manager(({"backend": "CPU", "precision": "high"},))
    runtime.set_external(str(folder / "llm.mnn.weight"))
    module = nn.load_module_from_file(
        str(folder / "llm.mnn"),
        [v.name for v in inputs],
        [view.names[t] for t in tensors],
        runtime_manager=runtime,
    )
    formats = {"NCHW": F.NCHW, "NHWC": F.NHWC, "NC4HW4": F.NC4HW4}
    types = {"float32": F.float, "int32": F.int}
    values = 0
    for tensor, var in zip(tensors, module.forward(inputs), strict=True):
        fact = facts[tensor]
        name = view.names[tensor]
        assert fact is not None, name
        assert tuple(var.shape) == fact.dims, name
        assert var.dtype == types[fact.dtype], name
        assert var.data_format == formats[fact.format], name
        if fact.value is not None:
            values += 1
            got = np.array(var.read()).reshape(fact.dims)
            np.testing.assert_allclose(fact.value, got, rtol=1e-6, err_msg=name)
    # The shape arithmetic of three layers: most of the ops.
    assert values > 200


def _net(inputs: list[int], outputs: list[int]) -> Table:
    op = Table(
        "Op",
        {
            "inputIndexes": np.array(inputs, np.int32),
            "outputIndexes": np.array(outputs, np.int32),
            "name": "n",
            "type": "Softmax",
        },
    )
    return Table("Net", {"oplists": [op], "tensorName": ["a", "b"]})


@pytest.mark.parametrize(("inputs", "outputs"), [([2], [1]), ([0], [5]), ([0], [-1])])
def test_index_out_of_range_names_the_op(inputs: list[int], outputs: list[int]) -> None:
    with pytest.raises(ModelFileError, match="op 0"):
        infer(_net(inputs, outputs), {})


def test_given_facts_are_kept() -> None:
    given = TensorFact((7,), "float32", "NCHW")
    facts = infer(_net([0], [1]), {0: TensorFact((3,), "float32", "NCHW"), 1: given})
    assert facts[1] is given


def test_absent_optional_input_gives_no_guess() -> None:
    assert infer(_net([-1], [1]), {})[1] is None
