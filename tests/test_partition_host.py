"""The host model: whether it computes what the model computes, and how it is put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from partition_nets import (
    ATTENTION,
    GOLDEN,
    MODELS,
    NO_WEIGHTS,
    SHARED,
    Net,
    binary,
    i32,
    unary,
)

from mnnqnn_tasks.mnn import reader, writer
from mnnqnn_tasks.mnn.index import index_model
from mnnqnn_tasks.mnn.infer import TensorFact
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.partition.cut import add_borders, keep_for_cpu
from mnnqnn_tasks.partition.host import host_net
from mnnqnn_tasks.partition.net_view import view_net
from mnnqnn_tasks.partition.partition import Partition, load_partition, partition

pytest.importorskip("MNN")
import MNN.expr as F
import MNN.nn as nn

Values = dict[str, np.ndarray[Any, Any]]


def divide(net: Net, *samples: Values, refused: Sequence[str] = ()) -> Partition:
    """Divide for the dimensions of ``samples``; ops named in ``refused`` go to the CPU."""
    view = view_net(net.table("y"))
    shapes = [
        (
            n,
            {
                view.names.index(name): TensorFact(v.shape, v.dtype.name, "NCHW")
                for name, v in sample.items()
            },
        )
        for n, sample in enumerate(samples, 1)
    ]
    return partition(
        view,
        NO_WEIGHTS,
        shapes,
        ("y",),
        supported=lambda op, alone: "test" if op.name in refused else None,
    )


def host_of(made: Partition) -> Table:
    return host_net(made.view, made.pieces, made.folded, made.facts, made.outputs)


def all_on_cpu(made: Partition) -> Table:
    """The host model if every piece of this cut stayed on the CPU."""
    pieces = [replace(p, reason=p.reason or "test") for p in made.pieces]
    pieces = keep_for_cpu(made.view, pieces, made.folded, made.outputs)
    pieces = add_borders(made.view, pieces, made.folded, set(made.outputs))
    return host_net(made.view, pieces, made.folded, made.facts, made.outputs)


def run(path: Path, values: Values, outputs: Sequence[str], weights: Path | None = None) -> Any:
    runtime = nn.create_runtime_manager(({"backend": "CPU", "precision": "high"},))
    if weights is not None:
        runtime.set_external(str(weights))
    module = nn.load_module_from_file(
        str(path), list(values), list(outputs), runtime_manager=runtime
    )
    inputs = []
    for value in values.values():
        var = F.placeholder(
            list(value.shape), F.NCHW, F.int if value.dtype == np.int32 else F.float
        )
        var.write(value.reshape(-1).tolist())
        inputs.append(var)
    return [np.array(var.read()) for var in module.forward(inputs)]


def assert_same_results(made: Partition, folder: Path, *samples: Values) -> None:
    """MNN computes the same with the model and with its host model all on the CPU."""
    writer.write(folder / "model.mnn", made.view.net)
    writer.write(folder / "host.mnn", all_on_cpu(made))
    for sample in samples:
        (want,) = run(folder / "model.mnn", sample, ["y"])
        (got,) = run(folder / "host.mnn", sample, ["y"])
        assert want.shape == got.shape
        np.testing.assert_array_equal(want, got)


def sample(n: int) -> Values:
    return {"x": (np.arange(4 * n, dtype=np.float32) - 3).reshape(1, 4, n, 1)}


def shape_reader(target: Table) -> Net:
    """A convolution's shape decides what a later op on the CPU does."""
    net = Net().input("x", 1, 4, -1, 1).conv("x", "a")
    net.op("Shape", ["a"], ["s"]).const("two", [2]).const("zero", 0)
    net.op("GatherV2", ["s", "two", "zero"], ["n"])
    net.op("UnaryOp", ["a"], ["b"], unary("NEG"))
    net.op("Cast", ["n"], ["nf"], target)
    net.op("BinaryOp", ["b", "nf"], ["c"], binary("MUL"))
    return net.conv("c", "y")


TO_FLOAT = Table("CastParam", {"dstT": "DT_FLOAT"})


def test_what_differs_between_shapes_is_computed_on_the_cpu(tmp_path: Path) -> None:
    made = divide(shape_reader(TO_FLOAT), sample(1), sample(5), refused=["c"])
    kept = [p for p in made.plan.pieces if p.reason and "differs between the shapes" in p.reason]
    assert [[op.name for op in p.ops] for p in kept] == [["s"], ["n"], ["nf"]]
    # The NPU gives the tensor whose shape is asked for.
    first = made.pieces[0]
    assert "a" in [made.view.names[t] for t in first.outputs]
    net = host_of(made)
    assert [op.type for op in net.oplists if op.type not in ("Input", "Const")] == [
        "Plugin", "Shape", "GatherV2", "Cast", "BinaryOp", "Plugin",
    ]  # fmt: skip
    assert_same_results(made, tmp_path, sample(1), sample(5))


def test_what_is_the_same_for_all_shapes_is_a_constant(tmp_path: Path) -> None:
    net = shape_reader(TO_FLOAT)
    # The channels (dimension 1) never change.
    net.ops[[op.name for op in net.ops].index("two")].main.fields["int32s"] = i32(1)
    made = divide(net, sample(1), sample(5), refused=["c"])
    host = host_of(made)
    types = [op.type for op in host.oplists]
    assert types.count("Const") == 1 and "Shape" not in types and "Cast" not in types
    (const,) = [op for op in host.oplists if op.type == "Const"]
    assert const.name == "nf_Const" and const.main.float32s.tolist() == [4.0]
    assert_same_results(made, tmp_path, sample(1), sample(5))


def test_an_output_that_is_folded(tmp_path: Path) -> None:
    net = Net().input("x", 1, 4, -1, 1).op("Shape", ["x"], ["y"])
    made = divide(net, sample(1), sample(5))
    assert [op.type for op in host_of(made).oplists] == ["Input", "Shape"]
    assert_same_results(made, tmp_path, sample(1), sample(5))
    fixed = divide(net, sample(3))
    assert [op.type for op in host_of(fixed).oplists] == ["Input", "Const"]


def test_names_are_made_unique(tmp_path: Path) -> None:
    net = Net().input("x", 1, 4, -1, 1)
    net.op("Attention", ["x", "x", "x"], ["q"], ATTENTION, name="same")
    net.op("UnaryOp", ["x"], ["a"], unary("NEG"), name="same")
    net.op("UnaryOp", ["a"], ["b"], unary("ABS"), name="")
    net.op("BinaryOp", ["a", "b"], ["c"], binary("ADD"), name="UnaryOp3")
    net.op("BinaryOp", ["c", "q"], ["y"], binary("ADD"), name="same")
    made = divide(net, {"x": np.zeros((1, 1, 2, 2), np.float32)})
    made.view.net.fields["tensorName"] = ["x", "x", "x", "", "b", "y"]
    made = replace(made, view=view_net(made.view.net))
    host = host_of(made)
    ops = [op.name for op in host.oplists]
    assert len(set(ops)) == len(ops) and ops[:2] == ["x", "same"] and "" not in ops
    tensors = host.tensorName
    assert len(set(tensors)) == len(tensors) and "" not in tensors
    assert tensors[0] == "x" and host.outputName == ["y"]


def test_tensor_descriptions_follow_their_tensors() -> None:
    net = Net().input("x", 1, 4, -1, 1).conv("x", "a")
    net.op("Attention", ["a", "a", "a"], ["b"], ATTENTION).conv("b", "y")
    net.quant("a", 0.5).quant("a.out", 0.25).quant("b", 0.125)
    host = host_of(divide(net, {"x": np.zeros((1, 4, 4, 1), np.float32)}))
    found = {host.tensorName[d.index]: d.quantInfo.scale for d in host.extraTensorDescribe}
    assert found == {"a": 0.5, "b": 0.125}


def test_an_absent_optional_input_stays_absent() -> None:
    net = Net().input("x", 1, 4, -1, 1).conv("x", "a")
    net.op("Attention", ["a", "a", "a", ""], ["b"], ATTENTION).conv("b", "y")
    host = host_of(divide(net, {"x": np.zeros((1, 4, 4, 1), np.float32)}))
    (attention,) = [op for op in host.oplists if op.type == "Attention"]
    assert attention.inputIndexes.tolist()[3] == -1


def test_every_input_of_the_model_stays() -> None:
    net = Net().input("x", 1, 4, -1, 1).input("unused", 2).conv("x", "y")
    host = host_of(divide(net, sample(1)))
    assert [op.name for op in host.oplists] == ["x", "unused", "qnn/graph0.bin"]


def test_the_model_is_not_changed() -> None:
    net = shape_reader(TO_FLOAT)
    before = writer.encode(net.table("y"))
    host_of(divide(net, sample(1), sample(5), refused=["c"]))
    assert writer.encode(net.table("y")) == before


needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the folder ../shared with the models is absent"
)


@needs_shared
@pytest.mark.parametrize("model", ["tiny-qwen3-w8", "tiny-qwen2-w8", "tiny-llama-w4b64"])
def test_a_real_model_computes_the_same_on_the_cpu(model: str, tmp_path: Path) -> None:
    """Renumbering, folding and pruning of the whole model leave its logits as they are."""
    folder = MODELS / model
    samples = {n: GOLDEN / model / "testdir" / str(n) / "input.mnn" for n in (1, 16)}
    made = load_partition(folder, index_model(folder), samples)
    writer.write(tmp_path / "host.mnn", all_on_cpu(made))
    for path in samples.values():
        values = {
            op.name: op.main.fields.get("float32s", op.main.int32s).reshape(op.main.dims)
            for op in reader.read(path).oplists
        }
        weights = folder / "llm.mnn.weight"
        (want,) = run(folder / "llm.mnn", values, ["logits"], weights)
        (got,) = run(tmp_path / "host.mnn", values, ["logits"], weights)
        np.testing.assert_array_equal(want, got)


@needs_shared
def test_mnn_loads_the_host_model(tmp_path: Path) -> None:
    """The Plugin op itself needs a device; what stands before it can run, what follows not."""
    folder = MODELS / "tiny-qwen3-w8"
    samples = {n: GOLDEN / folder.name / "testdir" / str(n) / "input.mnn" for n in (1, 16)}
    made = load_partition(folder, index_model(folder), samples)
    writer.write(tmp_path / "llm.mnn", host_of(made))
    net = reader.read(tmp_path / "llm.mnn")
    written: set[int] = set()
    for op in net.oplists:
        assert all(int(t) in written for t in op.fields.get("inputIndexes", ())), op.name
        written |= {int(t) for t in op.outputIndexes}
    assert written == set(range(len(net.tensorName)))
    names = [op.name for op in net.oplists if op.type == "Input"]
    module = nn.load_module_from_file(str(tmp_path / "llm.mnn"), names, ["logits"])
    info = module.get_info()
    assert list(info["inputNames"]) == names and list(info["outputNames"]) == ["logits"]
