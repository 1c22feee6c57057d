"""Subgraphs: their JSON, what their digest depends on, signatures of their ops."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from partition_nets import GOLDEN, MODELS, NO_WEIGHTS, SHARED, Net, binary, blob, i32, unary

from mnnqnn_tasks.errors import ModelFileError, PartitionError
from mnnqnn_tasks.mnn import reader, writer
from mnnqnn_tasks.mnn.index import ModelIndex, index_model
from mnnqnn_tasks.mnn.infer import TensorFact
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.partition.net_view import view_net
from mnnqnn_tasks.partition.partition import Partition, load_partition, partition
from mnnqnn_tasks.partition.samples import default_outputs
from mnnqnn_tasks.partition.signature import signature, single_op_subgraph, unique_ops
from mnnqnn_tasks.partition.subgraph import ByteRef, Subgraph
from mnnqnn_tasks.partition.subgraph_json import digest, from_json, to_bytes, to_json


def one(net: Net, length: int = 2, path: Path | None = None) -> Subgraph:
    """The only subgraph of ``net``, read back from ``path`` first if constants are long."""
    table = net.table("y")
    if path is not None:
        writer.write(path, table)
        table = reader.read(path)
    view = view_net(table)
    facts = {view.names.index("x"): TensorFact((1, 4, length, 1), "float32", "NCHW")}
    (subgraph,) = partition(view, NO_WEIGHTS, [(1, facts)], ("y",)).subgraphs
    return subgraph


def neg() -> Net:
    return Net().input("x", 1, 4, -1, 1).op("UnaryOp", ["x"], ["y"], unary("NEG"))


def plus(value: Any) -> Net:
    net = Net().input("x", 1, 4, -1, 1).const("c", value)
    return net.op("BinaryOp", ["x", "c"], ["y"], binary("ADD"))


def test_tensors_are_numbered_in_order_of_first_use() -> None:
    net = Net().const("c", 2.0).input("x", 1, 4, -1, 1)
    net.op("UnaryOp", ["x"], ["a"], unary("NEG")).op("BinaryOp", ["c", "a"], ["y"], binary("MUL"))
    found = one(net)
    assert [t.id for t in found.tensors] == [0, 1, 2, 3]
    assert [(op.inputs, op.outputs) for op in found.ops] == [((0,), (1,)), ((2, 1), (3,))]
    assert found.inputs == (0,) and found.outputs == (3,)
    assert [t.boundary for t in found.tensors] == [1, None, None, 3]
    assert found.tensors[2].const == (2.0,) and found.tensors[2].dims == ()


def test_folded_values_stand_in_the_subgraph() -> None:
    net = Net().input("x", 1, 4, -1, 1).op("Shape", ["x"], ["s"])
    net.op("Reshape", ["x", "s"], ["y"], Table("Reshape", {"dimType": "NCHW"}))
    assert one(net, 7).tensors[1].const == (1, 4, 7, 1)


def test_long_constants_are_references(tmp_path: Path) -> None:
    value = np.arange(65, dtype=np.float32).reshape(65, 1, 1, 1)
    found = one(plus(value), 2, tmp_path / "m.mnn")
    assert isinstance(found.tensors[1].const, ByteRef)
    assert found.tensors[1].const.size == 65 * 4
    assert one(plus(value[:64]), 2, tmp_path / "m.mnn").tensors[1].const == tuple(range(64))


def test_quantization_of_integer_tensors_is_dropped() -> None:
    net = Net().input("x", 1, 4, -1, 1)
    net.op("Cast", ["x"], ["i"], Table("CastParam", {"dstT": "DT_INT32"}))
    net.op("Cast", ["i"], ["y"], Table("CastParam", {"dstT": "DT_FLOAT"}))
    found = one(net.quant("x", 0.1).quant("i", 0.2).quant("y", 0.3))
    assert [t.quant.scale if t.quant else None for t in found.tensors] == [0.1, None, 0.3]
    assert found.tensors[0].quant is not None and found.tensors[0].quant.dtype == "DT_INT16"


@pytest.mark.parametrize("value", [1.5, float("-inf"), 0.1, np.array([[1, 2], [3, 4]])])
def test_json_round_trip(value: Any) -> None:
    net = plus(np.array(value, np.float32))
    net.ops[1].fields["main"] = blob(np.full((1, 4, 1, 1), np.float32(np.ravel(value)[0])))
    found = one(net.quant("x", 8.160900506481994e-06))
    assert from_json(json.loads(to_bytes(found))) == found
    assert json.loads(to_bytes(found)) == json.loads(json.dumps(to_json(found)))


@pytest.mark.parametrize("value", [{}, [], 3, None, {"version": 2}, {"version": 1, "ops": 3}])
def test_what_is_no_subgraph_is_refused(value: Any) -> None:
    with pytest.raises(PartitionError, match="not a subgraph"):
        from_json(value)


def test_digest_covers_parameters_shapes_constants_and_quantization() -> None:
    nets = [
        one(neg()),
        one(neg(), 3),
        one(Net().input("x", 1, 4, -1, 1).op("UnaryOp", ["x"], ["y"], unary("ABS"))),
        one(plus(1.0)),
        one(plus(1.0000001)),
        one(neg().quant("x", 0.5)),
        one(neg().quant("x", 0.25)),
    ]
    assert len({digest(n) for n in nets}) == len(nets)
    assert digest(one(neg())) == digest(one(neg()))


def op_signature(net: Net, **kwargs: Any) -> str:
    found = one(net, **kwargs)
    return signature(found.ops[-1], found)


def test_signature_tells_uses_apart() -> None:
    uses = [
        op_signature(neg()),
        op_signature(neg(), length=3),
        op_signature(neg().quant("x", 0.5)),
        op_signature(plus(1.0)),
        op_signature(plus(np.ones((1, 4, 1, 1)))),
        op_signature(Net().input("x", 1, 4, -1, 1).op("BinaryOp", ["x"] * 2, ["y"], binary("ADD"))),
        *(
            op_signature(
                Net().input("x", 1, 4, -1, 1).op(
                    "Reshape", ["x"], ["y"], Table("Reshape", {"dims": i32(*dims)})
                )
            )
            for dims in ((4, 2), (2, 4), (4, -1))
        ),
    ]  # fmt: skip
    assert len(set(uses)) == len(uses)


def test_signature_is_blind_to_names_and_data() -> None:
    assert op_signature(plus(1.0)) == op_signature(plus(2.0))
    assert op_signature(neg().quant("x", 0.5)) == op_signature(neg().quant("x", 0.25))
    other = Net().input("pad", 3).input("x", 1, 4, -1, 1)
    other.op("UnaryOp", ["x"], ["y"], unary("NEG"), name="another")
    assert op_signature(other) == op_signature(neg())


def test_single_op_subgraph() -> None:
    net = Net().input("x", 1, 4, -1, 1).const("c", 2.0)
    net.op("UnaryOp", ["x"], ["a"], unary("NEG")).op("BinaryOp", ["c", "a"], ["y"], binary("MUL"))
    whole = one(net)
    alone = single_op_subgraph(whole, 1)
    assert [op.type for op in alone.ops] == ["BinaryOp"]
    assert alone.ops[0].inputs == (0, 1) and alone.ops[0].outputs == (2,)
    assert alone.inputs == (1,) and alone.outputs == (2,)
    assert [t.boundary for t in alone.tensors] == [None, 1, 2]
    assert alone.tensors[0].const == (2.0,)
    assert signature(alone.ops[0], alone) == signature(whole.ops[1], whole)


needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the folder ../shared with the models is absent"
)
MODEL = "tiny-qwen2-w8"


def load(folder: Path) -> Partition:
    samples = {n: GOLDEN / MODEL / "testdir" / str(n) / "input.mnn" for n in (1, 16)}
    return load_partition(folder, index_model(folder), samples)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODELS / MODEL, tmp_path / "m", copy_function=shutil.copyfile))


@needs_shared
def test_one_changed_layer_changes_its_graphs_alone(copy: Path) -> None:
    made = load(copy)
    before = made.plan.graphs()
    piece = made.plan.npu_pieces()[1]
    weight = next(w for w in piece.weights if w.role == "weight")
    data = bytearray((copy / "llm.mnn.weight").read_bytes())
    data[weight.offset + weight.size // 2] ^= 1
    (copy / "llm.mnn.weight").write_bytes(data)
    after = load(copy).plan.graphs()
    assert {g for g in before if before[g] != after[g]} == set(piece.graphs)


@needs_shared
def test_neither_uuid_nor_offsets_nor_another_chunk_size_matter(copy: Path) -> None:
    before = load(copy).plan.graphs()
    net = reader.read(copy / "llm.mnn")
    net.fields["mnn_uuid"] = "another"
    for op in net.oplists:
        main = op.main
        if main is not None and main.fields.get("external") is not None:
            main.fields["external"] = main.external + np.array(
                [4096] + [0] * (len(main.external) - 1), np.int64
            )
    encoded = writer.encode(net)
    (copy / "llm.mnn").write_bytes(encoded)
    data = (copy / "llm.mnn.weight").read_bytes()
    (copy / "llm.mnn.weight").write_bytes(bytes(4096) + data)
    assert load(copy).plan.graphs() == before
    decode_only = {1: GOLDEN / MODEL / "testdir" / "1" / "input.mnn"}
    alone = load_partition(copy, index_model(copy), decode_only).plan.graphs()
    assert alone == {g: d for g, d in before.items() if "_" not in g}


@needs_shared
def test_layers_share_their_signatures(copy: Path) -> None:
    made = load(copy)
    found = unique_ops(made.subgraphs)
    ops = sum(len(s.ops) for s in made.subgraphs)
    assert len(found) < ops / 3
    for text, alone in found.items():
        assert signature(alone.ops[0], alone) == text
        assert len(alone.ops) == 1


@needs_shared
def test_a_range_that_the_index_does_not_have(copy: Path) -> None:
    from dataclasses import replace

    index = index_model(copy)
    spans = dict(index.ranges)
    spans.pop(next(iter(sorted(spans))))
    samples = {1: GOLDEN / MODEL / "testdir" / "1" / "input.mnn"}
    with pytest.raises(ModelFileError, match="index does not have"):
        load_partition(copy, replace(index, ranges=spans), samples)


def external(size: int) -> tuple[Net, ModelIndex]:
    net = plus(np.zeros((1, 4, 1, 1), np.float32))
    main = net.ops[1].main
    del main.fields["float32s"]
    main.fields["external"] = np.array([32, size], np.int64)
    return net, ModelIndex("llm.mnn", "llm.mnn.weight", {}, {(32, size): "ab" * 32})


def test_a_constant_in_the_weight_file_is_a_reference() -> None:
    net, index = external(16)
    view = view_net(net.table("y"))
    facts = {0: TensorFact((1, 4, 2, 1), "float32", "NCHW")}
    made = partition(view, index, [(1, facts)], ("y",))
    assert made.subgraphs[0].tensors[1].const == ByteRef("ab" * 32, 16)
    assert made.sources.to_json() == {
        "ab" * 32: {"file": "llm.mnn.weight", "offset": 32, "size": 16}
    }
    (piece,) = made.plan.npu_pieces()
    assert [(w.op, w.role, w.offset) for w in piece.weights] == [("c", "data", 32)]


def test_a_constant_that_contradicts_its_shape() -> None:
    net, index = external(12)
    view = view_net(net.table("y"))
    facts = {0: TensorFact((1, 4, 2, 1), "float32", "NCHW")}
    with pytest.raises(ModelFileError, match="constant 'c' is damaged"):
        partition(view, index, [(1, facts)], ("y",))


def test_the_output_is_logits_where_there_are_logits() -> None:
    assert default_outputs(view_net(neg().table("hidden_states", "logits"))) == ("logits",)
    assert default_outputs(view_net(neg().table("a", "b"))) == ("a", "b")
    assert default_outputs(view_net(neg().table())) == ()
