"""Where a net is cut: small nets made for one rule each."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from partition_nets import ATTENTION, NO_WEIGHTS, Net, binary, i32, unary, write_sample

from mnnqnn_tasks.errors import ModelFileError, PartitionError
from mnnqnn_tasks.mnn.infer import TensorFact
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.partition.net_view import view_net
from mnnqnn_tasks.partition.partition import Partition, Supported, partition
from mnnqnn_tasks.partition.samples import input_facts
from mnnqnn_tasks.partition.signature import signature, unique_ops

Dims = dict[str, tuple[int, ...]]


def divide(
    net: Net,
    *shapes: Dims,
    outputs: tuple[str, ...] = ("y",),
    refused: Collection[str] = (),
    supported: Supported | None = None,
    values: dict[str, np.ndarray[Any, Any]] | None = None,
) -> Partition:
    """Divide ``net`` for inputs of these dimensions; ``x`` [1, 4, n, 1] if none is given."""
    view = view_net(net.table(*outputs))
    facts = []
    for dims in shapes or ({"x": (1, 4, 1, 1)}, {"x": (1, 4, 8, 1)}):
        of_shape = {}
        for name, value in dims.items():
            known = (values or {}).get(name)
            dtype = "float32" if known is None else known.dtype.name
            of_shape[view.names.index(name)] = TensorFact(value, dtype, "NCHW", known)
        facts.append(of_shape)
    return partition(
        view, NO_WEIGHTS, list(zip((1, 8, 9), facts, strict=False)), outputs, refused, supported
    )


def places(made: Partition) -> list[tuple[str, list[str]]]:
    """Place and op names of each piece; layout conversions of `Net.conv` left out."""
    return [
        (p.place, [op.name for op in p.ops if not op.name.endswith(".in")])
        for p in made.plan.pieces
    ]


def names(made: Partition, ids: tuple[int, ...]) -> list[str]:
    return [made.view.names[t] for t in ids]


def two_convs(between: Callable[[Net], Net]) -> Net:
    net = between(Net().input("x", 1, 4, -1, 1).conv("x", "a"))
    return net.conv("b", "y")


def test_a_net_without_a_break_is_one_piece() -> None:
    made = divide(two_convs(lambda n: n.op("UnaryOp", ["a"], ["b"], unary("NEG"))))
    (piece,) = made.plan.pieces
    assert piece.place == "npu" and piece.binary == "qnn/graph0.bin"
    assert piece.graphs == ("graph0", "graph1_0")
    assert [p.dims for p in piece.inputs] == [((1, 4, 1, 1), (1, 4, 8, 1))]


def test_a_whole_net_needs_no_convolution() -> None:
    made = divide(Net().input("x", 1, 4, -1, 1).op("UnaryOp", ["x"], ["y"], unary("NEG")))
    assert [p.place for p in made.plan.pieces] == ["npu"]


@pytest.mark.parametrize(
    ("type", "main", "words"),
    [
        ("If", Table("IfParam"), "control flow"),
        ("While", Table("WhileParam"), "control flow"),
        ("Where", None, "depends on the values"),
        ("Segment", None, "depends on the values"),
        ("Unique", None, "depends on the values"),
        ("NonMaxSuppressionV2", None, "depends on the values"),
        ("Attention", ATTENTION, "KV cache"),
        ("LinearAttention", None, "linear attention"),
    ],
)
def test_break_ops_stay_on_the_cpu(type: str, main: Table | None, words: str) -> None:
    made = divide(two_convs(lambda n: n.op(type, ["a"], ["b"], main)))
    (piece,) = [p for p in made.plan.pieces if [op.type for op in p.ops] == [type]]
    assert piece.place == "host" and piece.reason is not None and words in piece.reason
    assert made.plan.pieces[0].place == "npu"


def test_attention_without_a_cache_is_no_break() -> None:
    net = Net().input("x", 1, -1, 2, 4)
    plain = Table("AttentionParam", {"kv_cache": False})
    net.op("Attention", ["x", "x", "x"], ["y"], plain)
    made = divide(net, {"x": (1, 3, 2, 4)})
    assert [p.place for p in made.plan.pieces] == ["npu"]


def test_a_loop_is_no_control_flow() -> None:
    made = divide(two_convs(lambda n: n.op("While", ["a"], ["b"], Table("LoopParam"))))
    (piece,) = [p for p in made.plan.pieces if p.ops[0].type == "While"]
    assert piece.reason is not None and "not known before" in piece.reason


def masked(path: str) -> Net:
    net = Net().input("x", 1, 4, -1, 1).input("attention_mask", 1, 1, -1, -1)
    net.op("UnaryOp", ["attention_mask"], ["m1"], unary("NEG"))
    net.conv("x", "q")
    net.op("BinaryOp", ["m1", "m1"], ["m2"], binary("MUL"))
    net.op("Attention", ["q", "q", "q", path], ["a"], ATTENTION)
    net.op("BinaryOp", ["q", "m2"], ["side"], binary("ADD"))
    net.op("BinaryOp", ["a", "side"], ["b"], binary("ADD"))
    return net.conv("b", "y")


SQUARE: Dims = {"x": (1, 4, 1, 1), "attention_mask": (1, 1, 1, 1)}


def test_what_makes_a_mask_for_an_attention_on_the_cpu_stays_there() -> None:
    made = divide(masked("m2"), SQUARE)
    reasons = {p.ops[0].name: p.reason for p in made.plan.pieces}
    assert "attention mask" in (reasons["m1"] or "") and "attention mask" in (reasons["m2"] or "")


def test_what_only_others_make_of_the_mask_may_go_to_the_npu() -> None:
    made = divide(masked("attention_mask"), SQUARE)
    first = made.plan.pieces[0]
    assert first.place == "npu" and {"m1", "m2"} <= {op.name for op in first.ops}


def test_a_shape_that_input_values_decide_is_cut_out() -> None:
    net = Net().input("x", 1, 4, -1, 1).input("i", 1, dtype="DT_INT32")
    net.const("end", [1 << 30]).const("axis", [2]).const("step", [1])
    net.conv("x", "a")
    cut = Table("StridedSliceParam", {"fromType": 1})
    net.op("StridedSlice", ["a", "i", "end", "axis", "step"], ["b"], cut).conv("b", "y")
    made = divide(net, {"x": (1, 4, 8, 1), "i": (1,)}, values={"i": i32(-1)})
    assert places(made) == [
        ("npu", ["a.out", "a"]),
        ("host", ["b"]),
        ("npu", ["y.out", "y"]),
    ]
    assert "'i'" in (made.plan.pieces[1].reason or "")
    # The shape behind it is that of the sample.
    assert made.plan.pieces[2].inputs[0].dims == ((1, 4, 1, 1),)


def test_pieces_without_a_convolution_stay_on_the_cpu() -> None:
    net = Net().input("x", 1, 4, -1, 1).op("UnaryOp", ["x"], ["h"], unary("NEG"))
    net.op("Attention", ["h", "h", "h"], ["a"], ATTENTION)
    made = divide(net.conv("a", "y"), {"x": (1, 1, 2, 2)})
    assert [p.place for p in made.plan.pieces][:2] == ["host", "host"]
    assert made.plan.pieces[0].reason == "no Convolution in it"


def test_a_refused_op_is_a_piece_of_its_own() -> None:
    net = two_convs(lambda n: n.op("UnaryOp", ["a"], ["b"], unary("NEG")))
    asked = unique_ops(divide(net).subgraphs)
    neg = {t: "type not supported" for t in asked if t.startswith("UnaryOp")}
    assert len(neg) == 2, "one per shape"
    made = divide(net, refused=neg)
    assert places(made)[1] == ("host", ["b"])
    reason = made.plan.pieces[1].reason or ""
    assert "QNN refuses UnaryOp" in reason and "type not supported" in reason
    # One shape is enough: the host model is one for all.
    assert places(divide(net, refused=list(neg)[1:])) == places(made)
    assert divide(net, refused={"other"}).plan == divide(net).plan


def test_an_op_without_translation_is_a_piece_of_its_own() -> None:
    net = two_convs(lambda n: n.op("UnaryOp", ["a"], ["b"], unary("NEG")))
    seen = []

    def supported(op: Any, alone: Any) -> str | None:
        seen.append(signature(op, alone))
        return "none today" if op.type == "UnaryOp" else None

    made = divide(net, supported=supported)
    assert made.plan.pieces[1].reason == "no translation: none today"
    assert set(seen) >= set(unique_ops(made.subgraphs))


def test_an_op_whose_shape_nobody_knows_stays_on_the_cpu() -> None:
    made = divide(two_convs(lambda n: n.op("Svd", ["a"], ["b"])))
    assert made.plan.pieces[0].place == "npu"
    assert all(p.place == "host" for p in made.plan.pieces[1:])
    assert "'b' is not known" in (made.plan.pieces[1].reason or "")


def test_borders_by_use() -> None:
    """A tensor that a later piece reads is an output though its own piece reads it too."""
    net = Net().input("x", 1, 4, -1, 1).conv("x", "a")
    net.op("UnaryOp", ["a"], ["inside"], unary("NEG"))
    net.op("Attention", ["inside", "inside", "inside"], ["b"], ATTENTION)
    net.op("BinaryOp", ["b", "a"], ["c"], binary("ADD")).conv("c", "y")
    made = divide(net, {"x": (1, 4, 4, 1)})
    first = made.pieces[0]
    assert names(made, first.inputs) == ["x"]
    assert names(made, first.outputs) == ["a", "inside"]
    assert list(first.outputs) == sorted(first.outputs)


def test_an_output_that_nothing_reads_is_none() -> None:
    net = Net().input("x", 1, 4, -1, 1).conv("x", "a")
    net.op("Slice", ["a"], ["b", "dead"], Table("Slice", {"axis": 1, "sourceType": "TENSORFLOW"}))
    net.op("Attention", ["b", "b", "b"], ["c"], ATTENTION)
    net.op("UnaryOp", ["c"], ["y"], unary("NEG"))
    made = divide(net)
    assert names(made, made.pieces[0].outputs) == ["b"]


def test_ops_that_the_outputs_do_not_need_are_left_out() -> None:
    net = Net().input("x", 1, 4, -1, 1).conv("x", "y").conv("y", "unneeded")
    made = divide(net)
    assert [op.name for op in made.plan.pieces[0].ops] == ["y.in", "y.out", "y"]


def test_the_file_need_not_be_in_order() -> None:
    net = Net().input("x", 1, 4, -1, 1).conv("x", "a")
    net.op("UnaryOp", ["a"], ["b"], unary("NEG")).conv("b", "y")
    straight = divide(net)
    net.ops.reverse()
    made = divide(net)
    assert [p.place for p in made.plan.pieces] == ["npu"]
    assert [op.name for op in made.plan.pieces[0].ops] == [
        op.name for op in straight.plan.pieces[0].ops
    ]


def test_graphs_that_the_runtime_cannot_tell_apart_stay_on_the_cpu() -> None:
    """Both shapes give ``w`` the same dimensions, but what is folded into its piece differs."""
    net = Net().input("x", 1, 4, -1, 1).input("w", 1, 4, 1, 1)
    net.op("Shape", ["x"], ["s"]).const("f", 1.5)
    net.op("Cast", ["s"], ["sf"], Table("CastParam", {"dstT": "DT_FLOAT"}))
    net.op("Reshape", ["sf"], ["r"], Table("Reshape", {"dims": i32(1, 4, 1, 1)}))
    net.op("BinaryOp", ["w", "r"], ["v"], binary("ADD")).conv("v", "y")
    shapes: list[Dims] = [{"x": (1, 4, n, 1), "w": (1, 4, 1, 1)} for n in (1, 8)]
    made = divide(net, *shapes)
    (piece,) = [p for p in made.plan.pieces if p.ops[-1].name == "y"]
    assert piece.place == "host" and "cannot tell graph0 and graph1_0" in (piece.reason or "")
    assert not made.subgraphs
    # With one shape there is nothing to mix up.
    assert [p.place for p in divide(net, shapes[0]).plan.pieces] == ["npu"]


def test_a_border_in_nhwc_stays_on_the_cpu() -> None:
    net = Net().input("x", 1, 4, -1, 1).conv("x", "a")
    to_nhwc = Table("TensorConvertInfo", {"source": "NCHW", "dest": "NHWC"})
    net.op("ConvertTensor", ["a"], ["y"], to_nhwc)
    made = divide(net)
    assert "NHWC" in (made.plan.pieces[0].reason or "")


def test_a_piece_without_inputs_stays_on_the_cpu() -> None:
    net = Net().input("x", 1, 4, -1, 1).const("c", np.ones((1, 4, 1, 1)))
    net.conv("c", "a").op("Attention", ["x", "x", "x"], ["b"], ATTENTION)
    net.op("BinaryOp", ["a", "b"], ["y"], binary("ADD"))
    made = divide(net)
    assert "reads no tensor" in (made.plan.pieces[0].reason or "")


# --- errors ---


def test_missing_outputs() -> None:
    with pytest.raises(PartitionError, match="outputs are not in the model"):
        divide(Net().input("x", 1, 4, -1, 1).conv("x", "a"), outputs=("logits",))


def test_a_circle() -> None:
    net = Net().input("x", 1)
    net.op("BinaryOp", ["x", "b"], ["a"], binary("ADD"))
    net.op("UnaryOp", ["a"], ["b"], unary("NEG"))
    with pytest.raises(PartitionError, match="circle"):
        divide(net, outputs=("b",))


def test_an_index_out_of_range() -> None:
    net = Net().input("x", 1).op("UnaryOp", ["x"], ["y"], unary("NEG"))
    net.ops[1].fields["inputIndexes"] = i32(9)
    with pytest.raises(ModelFileError, match="tensor that is not there"):
        divide(net)


def test_two_writers() -> None:
    net = Net().input("x", 1).op("UnaryOp", ["x"], ["y"], unary("NEG"), name="p")
    net.op("UnaryOp", ["x"], ["y"], unary("ABS"), name="q")
    with pytest.raises(ModelFileError, match="two ops write"):
        divide(net)


def test_an_input_that_the_sample_does_not_have() -> None:
    net = Net().input("x", 1, 4, -1, 1).input("w", 4)
    net.op("BinaryOp", ["x", "w"], ["y"], binary("ADD"))
    with pytest.raises(PartitionError, match=r"\(w\) has no value") as caught:
        divide(net, {"x": (1, 4, 1, 1)})
    assert "input.mnn" in str(caught.value)


def test_a_tensor_that_nothing_writes() -> None:
    net = Net().input("x", 1).op("BinaryOp", ["x", "ghost"], ["y"], binary("ADD"))
    with pytest.raises(PartitionError, match=r"\(ghost\) has no value"):
        divide(net, {"x": (1,)})


def test_no_shape() -> None:
    net = Net().input("x", 1).op("UnaryOp", ["x"], ["y"], unary("NEG"))
    with pytest.raises(PartitionError, match="no shape"):
        partition(view_net(net.table("y")), NO_WEIGHTS, [], ("y",))


def test_an_unneeded_input_may_be_absent() -> None:
    net = Net().input("x", 1, 4, -1, 1).input("unused", 3).conv("x", "y")
    assert divide(net).plan.pieces[0].place == "npu"


def test_a_sample_of_another_type(tmp_path: Path) -> None:
    view = view_net(Net().input("x", 4).op("UnaryOp", ["x"], ["y"], unary("NEG")).table("y"))
    path = write_sample(tmp_path / "input.mnn", {"x": i32(1, 2, 3, 4)})
    with pytest.raises(PartitionError, match="another type"):
        input_facts(view, path)


def test_a_sample_that_is_a_model(tmp_path: Path) -> None:
    from mnnqnn_tasks.mnn import writer

    net = Net().input("x", 4).op("UnaryOp", ["x"], ["y"], unary("NEG")).table("y")
    writer.write(tmp_path / "input.mnn", net)
    with pytest.raises(PartitionError, match="not a sample"):
        input_facts(view_net(net), tmp_path / "input.mnn")
