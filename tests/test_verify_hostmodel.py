"""The rewritten model as a schedule of pieces, on MNN's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnnqnn_tasks.errors import VerifyError
from mnnqnn_tasks.verify.hostmodel import HostModel, HostStep, Plugin, load

GOLDEN = Path(__file__).parents[2] / "shared" / "golden"
needs_golden = pytest.mark.skipif(not GOLDEN.is_dir(), reason="there is no ../shared/golden")


@needs_golden
@pytest.mark.parametrize("model", ["tiny-qwen3-w8", "tiny-llama-w4b64"])
def test_pieces_of_a_three_layer_model_alternate(model: str) -> None:
    host = load(GOLDEN / model / "qnn" / "llm.mnn")
    assert len(host.plugins) == 5
    assert host.plugins[1].graphs == ("graph1", "graph1_1")
    assert host.plugins[1].path == "qnn/graph1.bin"
    assert host.inputs == ("input_ids", "attention_mask", "position_ids", "logits_index")
    steps = host.schedule(["logits"])
    kinds = ["npu" if isinstance(step, Plugin) else "host" for step in steps]
    assert kinds == ["npu", "host"] * 4 + ["npu"]
    attention = steps[1]
    assert isinstance(attention, HostStep)
    assert "attention_mask" in attention.inputs
    assert len(attention.inputs) == 4
    assert len(attention.outputs) == 1
    slicing = steps[7]
    assert isinstance(slicing, HostStep)
    assert "logits_index" in slicing.inputs


@needs_golden
def test_every_step_finds_its_inputs() -> None:
    host = load(GOLDEN / "tiny-qwen2-w8" / "qnn" / "llm.mnn")
    have = set(host.inputs)
    for step in host.schedule(["logits"]):
        assert set(step.inputs) <= have
        have |= set(step.outputs)
    assert "logits" in have


@needs_golden
def test_dims_are_listed_per_shape() -> None:
    plugin = load(GOLDEN / "tiny-qwen3-w8" / "qnn" / "llm.mnn").plugins[0]
    assert plugin.graph_inputs == ("t0", "t2")
    assert plugin.output_dims[0][0] == (1, 1, 64)
    assert plugin.output_dims[1][0] == (1, 16, 64)


def test_a_tensor_that_nothing_makes_is_named() -> None:
    host = HostModel(Path("llm.mnn"), ("x",), (), {})
    assert host.schedule(["x"]) == []
    with pytest.raises(VerifyError, match="tensor y"):
        host.schedule(["y"])


def test_pieces_in_the_wrong_order_are_an_error() -> None:
    def piece(name: str, source: str, made: str) -> Plugin:
        return Plugin(name, (source,), (made,), ("t0",), ("t1",), ("g",), (((1,),),))

    first, second = piece("a", "x", "y"), piece("b", "y", "z")
    assert HostModel(Path("m"), ("x",), (first, second), {}).schedule(["z"]) == [first, second]
    with pytest.raises(VerifyError, match="tensor y"):
        HostModel(Path("m"), ("x",), (second, first), {}).schedule(["z"])
