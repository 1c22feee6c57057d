"""Every inference rule against MNN itself: one-op nets that MNN's wheel runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnnqnn_tasks.mnn import writer
from mnnqnn_tasks.mnn.infer import RULES, TensorFact, infer
from mnnqnn_tasks.mnn.table import Table

MNN = pytest.importorskip("MNN")
import MNN.expr as F  # noqa: E402
import MNN.nn as nn  # noqa: E402

_BLOB = {"float32": ("DT_FLOAT", "float32s"), "int32": ("DT_INT32", "int32s")}
_EXPR = {"float32": F.float, "int32": F.int}
_FORMATS = {"NCHW": F.NCHW, "NHWC": F.NHWC, "NC4HW4": F.NC4HW4}


def i32(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int32)


def scalar(value: int) -> np.ndarray[Any, Any]:
    return np.array(value, np.int32)


def f32(*dims: int) -> np.ndarray[Any, Any]:
    return (np.arange(int(np.prod(dims)), dtype=np.float32) - 3).reshape(dims)


def table(kind: str, **fields: Any) -> Table:
    return Table(kind, fields)


def one_op(
    kind: str,
    main: Table | None,
    inputs: list[np.ndarray[Any, Any]],
    format: str = "NCHW",
    outs: int = 1,
    runtime: int = 0,
    default: str = "NHWC",
) -> tuple[Table, dict[int, TensorFact]]:
    """A net of one op; the first ``runtime`` inputs are graph inputs, the rest constants."""
    ops, facts = [], {}
    for index, value in enumerate(inputs):
        dtype = _BLOB[value.dtype.name]
        dims = np.array(value.shape, np.int32)
        if index < runtime:
            param = table("Input", dims=dims, dtype=dtype[0], dformat=format)
            head = "Input"
            facts[index] = TensorFact(value.shape, value.dtype.name, format, value)
        else:
            param = table("Blob", dims=dims, dataType=dtype[0], dataFormat=format)
            param.fields[dtype[1]] = np.ascontiguousarray(value).reshape(-1)
            head = "Const"
        ops.append(table("Op", main=param, name=f"in{index}", outputIndexes=i32(index), type=head))
    fields: dict[str, Any] = {
        "inputIndexes": np.arange(len(inputs), dtype=np.int32),
        "name": "op",
        "outputIndexes": np.arange(len(inputs), len(inputs) + outs, dtype=np.int32),
        "type": kind,
        "defaultDimentionFormat": default,
    }
    if main is not None:
        fields["main"] = main
    ops.append(Table("Op", fields))
    names = [f"in{i}" for i in range(len(inputs))] + [f"out{i}" for i in range(outs)]
    return table("Net", oplists=ops, tensorName=names), facts


def run(path: Path, net: Table, values: list[np.ndarray[Any, Any]], outs: int) -> list[Any]:
    """What MNN's CPU computes for the graph inputs ``values``."""
    writer.write(path, net)
    names = [f"in{i}" for i in range(len(values))]
    module = nn.load_module_from_file(str(path), names, [f"out{i}" for i in range(outs)])
    sample = []
    for op, value in zip(net.oplists, values, strict=False):
        layout = _FORMATS[op.main.dformat]
        var = F.placeholder(list(value.shape), layout, _EXPR[value.dtype.name])
        var.write(value.reshape(-1).tolist())
        sample.append(var)
    result = module.forward(sample)
    return list(result) if isinstance(result, (list, tuple)) else [result]


def binary(kind: str) -> Table:
    return table("BinaryOp", opType=kind, T="DT_FLOAT")


def unary(kind: str) -> Table:
    return table("UnaryOp", opType=kind, T="DT_FLOAT")


A, B = i32(-7, -3, 0, 5, 9, 12), i32(3, -2, 4, -3, 2, 5)
FA, FB = A.astype(np.float32) * 0.75, B.astype(np.float32)
SLICE0: dict[str, Any] = {"Index": "DT_INT32", "T": "DT_FLOAT", "fromType": 0}
BIG = 1073741824
INT_OPS = [
    "ADD",
    "SUB",
    "MUL",
    "REALDIV",
    "FLOORDIV",
    "MOD",
    "FLOORMOD",
    "MINIMUM",
    "MAXIMUM",
    "GREATER",
    "GREATER_EQUAL",
    "LESS",
    "LESS_EQUAL",
    "EQUAL",
    "NOTEQUAL",
    "SquaredDifference",
    "LOGICALOR",
    "BITWISE_AND",
    "BITWISE_OR",
    "BITWISE_XOR",
    "LOGICALXOR",
]
FLOAT_OPS = [
    "ADD",
    "SUB",
    "MUL",
    "REALDIV",
    "FLOORDIV",
    "MOD",
    "FLOORMOD",
    "MINIMUM",
    "MAXIMUM",
    "SquaredDifference",
]

CASES: dict[str, dict[str, Any]] = {
    **{
        f"int {kind}": {"kind": "BinaryOp", "main": binary(kind), "inputs": [A, B]}
        for kind in INT_OPS
    },
    **{
        f"float {kind}": {"kind": "BinaryOp", "main": binary(kind), "inputs": [FA, FB]}
        for kind in FLOAT_OPS
    },
    "float POW": {"kind": "BinaryOp", "main": binary("POW"), "inputs": [np.abs(FA) + 1, FB]},
    "broadcast": {"kind": "BinaryOp", "main": binary("ADD"), "inputs": [f32(2, 1, 3), f32(4, 1)]},
    "scalar": {"kind": "BinaryOp", "main": binary("ADD"), "inputs": [scalar(3), i32(1, 2)]},
    **{
        f"unary {kind}": {"kind": "UnaryOp", "main": unary(kind), "inputs": [FA]}
        for kind in ["ABS", "NEG", "SQUARE", "SIGN", "FLOOR", "CEIL", "EXP", "SIN", "COS"]
    },
    **{
        f"unary {kind}": {"kind": "UnaryOp", "main": unary(kind), "inputs": [np.abs(FA) + 0.5]}
        for kind in ["SQRT", "RSQRT", "RECIPROCAL", "LOG"]
    },
    **{
        f"int unary {kind}": {"kind": "UnaryOp", "main": unary(kind), "inputs": [A]}
        for kind in ["ABS", "NEG", "SQUARE", "SIGN"]
    },
    "cast to int": {
        "kind": "Cast", "main": table("CastParam", dstT="DT_INT32"), "inputs": [FA],
    },
    "cast to float": {
        "kind": "Cast", "main": table("CastParam", dstT="DT_FLOAT"), "inputs": [A],
    },
    "cast to bool": {
        "kind": "Cast", "main": table("CastParam", dstT="DT_BOOL"), "inputs": [A],
    },
    "cast int64": {
        "kind": "Cast", "main": table("CastParam", dstT="DT_INT64"), "inputs": [FA],
    },
    "select": {"kind": "Select", "main": None, "inputs": [i32(1, 0, 2), f32(3), f32(3) * 2]},
    "select broadcast": {
        "kind": "Select", "main": None, "inputs": [i32(1, 0, 2), f32(2, 3), f32(3)],
        "no_value": True,
    },
    "shape": {"kind": "Shape", "main": None, "inputs": [f32(2, 3, 4)], "default": "NCHW"},
    "shape part": {
        "kind": "Shape", "main": table("ShapeParam", hasStart=True, start=-2, hasEnd=True, end=-1),
        "inputs": [f32(2, 3, 4)], "default": "NCHW", "newer": True,
    },
    "rank": {"kind": "Rank", "main": None, "inputs": [f32(2, 3, 4)]},
    "size": {"kind": "Size", "main": None, "inputs": [f32(2, 3, 4)]},
    "reshape params": {
        "kind": "Reshape", "main": table("Reshape", dims=i32(0, -1), dimType="NCHW"),
        "inputs": [f32(2, 3, 4)],
    },
    "reshape input": {
        "kind": "Reshape", "main": table("Reshape", dimType="NCHW"),
        "inputs": [f32(2, 3, 4), i32(-1, 0, 2)],
    },
    "unsqueeze": {
        "kind": "Unsqueeze", "main": table("SqueezeParam", squeezeDims=i32(0, -1)),
        "inputs": [f32(2, 3)],
    },
    "unsqueeze input": {
        "kind": "Unsqueeze", "main": table("SqueezeParam"), "inputs": [f32(2, 3), i32(-2)],
    },
    "squeeze": {
        "kind": "Squeeze", "main": table("SqueezeParam", squeezeDims=i32(-1)),
        "inputs": [f32(1, 2, 1)],
    },
    "squeeze all": {"kind": "Squeeze", "main": table("SqueezeParam"), "inputs": [f32(1, 2, 1)]},
    "squeeze input": {
        "kind": "Squeeze", "main": table("SqueezeParam"), "inputs": [f32(1, 2, 1), i32(0)],
    },
    "expand dims": {"kind": "ExpandDims", "main": None, "inputs": [f32(2, 3), scalar(-1)]},
    "flatten": {"kind": "Flatten", "main": table("Flatten", axis=1), "inputs": [f32(2, 3, 4)]},
    "flatten range": {
        "kind": "Flatten", "main": table("Flatten", axis=1, endAxis=2),
        "inputs": [f32(2, 3, 4)],
    },
    "to NC4HW4": {
        "kind": "ConvertTensor", "main": table("TensorConvertInfo", source="NCHW", dest="NC4HW4"),
        "inputs": [f32(2, 3, 1, 2)], "no_value": True,
    },
    "to NHWC": {
        "kind": "ConvertTensor", "main": table("TensorConvertInfo", source="NCHW", dest="NHWC"),
        "inputs": [f32(1, 3, 2, 4)],
    },
    "concat": {
        "kind": "Concat", "main": table("Axis", axis=-1), "inputs": [f32(2, 3), f32(2, 1)],
    },
    "pack": {"kind": "Pack", "main": table("PackParam", axis=1), "inputs": [f32(3), f32(3)]},
    "unpack": {
        "kind": "Unpack", "main": table("Axis", axis=1), "inputs": [f32(2, 3, 2)], "outs": 3,
    },
    "gather": {
        "kind": "GatherV2", "main": None, "inputs": [f32(4, 3), i32(3, 0), scalar(0)],
    },
    "gather axis": {
        "kind": "GatherV2", "main": None, "inputs": [f32(4, 3), scalar(2), scalar(-1)],
    },
    "gather param": {
        "kind": "GatherV2", "main": table("Axis", axis=1), "inputs": [f32(4, 3), i32(1, 1)],
    },
    "permute": {
        "kind": "Permute", "main": table("Permute", dims=i32(2, 0, 1)), "inputs": [f32(2, 3, 4)],
    },
    "transpose": {"kind": "Transpose", "main": None, "inputs": [f32(2, 3, 4), i32(1, 2, 0)]},
    "tile": {"kind": "Tile", "main": None, "inputs": [f32(2, 3), i32(2, 1)]},
    "broadcast to": {"kind": "BroadcastTo", "main": None, "inputs": [f32(3, 1), i32(2, 1, 4)]},
    "fill": {"kind": "Fill", "main": None, "inputs": [i32(2, 3), scalar(7)]},
    "range": {"kind": "Range", "main": None, "inputs": [scalar(2), scalar(11), scalar(3)]},
    "range down": {"kind": "Range", "main": None, "inputs": [scalar(5), scalar(0), scalar(-2)]},
    "padding": {
        "kind": "Padding", "main": table("PadParam"), "inputs": [f32(2, 3), i32(1, 0, 2, 1)],
        "no_value": True,
    },
    "split": {
        "kind": "Slice", "main": table("Slice", axis=1, sourceType="TENSORFLOW"),
        "inputs": [f32(2, 6)], "outs": 3,
    },
    "split points": {
        "kind": "Slice",
        "main": table("Slice", axis=-1, slicePoints=i32(1, 3, 2), sourceType="TENSORFLOW"),
        "inputs": [f32(2, 6)], "outs": 3,
    },
    "split caffe": {
        "kind": "Slice", "main": table("Slice", axis=1, slicePoints=i32(1, 4), sourceType="CAFFE"),
        "inputs": [f32(2, 6)], "outs": 3,
    },
    "slice tf": {
        "kind": "SliceTf", "main": None, "inputs": [f32(4, 5), i32(1, 0), i32(2, -1)],
    },
    "strided": {
        "kind": "StridedSlice", "main": table("StridedSliceParam", **SLICE0),
        "inputs": [f32(5, 6), i32(1, -4), i32(4, -1), i32(2, 1)],
    },
    "strided masks": {
        "kind": "StridedSlice",
        "main": table("StridedSliceParam", **SLICE0, beginMask=1, endMask=2, shrinkAxisMask=4),
        "inputs": [f32(3, 4, 5), i32(2, 1, 3), i32(2, 1, 4), i32(1, 1, 1)],
    },
    "strided new axis": {
        "kind": "StridedSlice", "main": table("StridedSliceParam", **SLICE0, newAxisMask=1),
        "inputs": [f32(3, 4), i32(0, 1), i32(1, 3), i32(1, 1)],
    },
    "strided ellipsis": {
        "kind": "StridedSlice", "main": table("StridedSliceParam", **SLICE0, ellipsisMask=2),
        "inputs": [f32(3, 4, 5), i32(1, 0, 2), i32(3, 0, 4), i32(1, 1, 1)],
    },
    "strided back": {
        "kind": "StridedSlice", "main": table("StridedSliceParam", **SLICE0),
        "inputs": [f32(6), i32(4), i32(1), i32(-1)],
    },
    "onnx slice": {
        "kind": "StridedSlice", "main": table("StridedSliceParam", fromType=1),
        "inputs": [f32(2, 6, 3), i32(-1), i32(BIG), i32(1), i32(1)],
    },
    "onnx slice two": {
        "kind": "StridedSlice", "main": table("StridedSliceParam", fromType=1),
        "inputs": [f32(2, 6, 3), i32(1, 0), i32(5, 2), i32(1, -1), i32(2, 1)],
    },
    "onnx slice back": {
        "kind": "StridedSlice", "main": table("StridedSliceParam", fromType=1),
        "inputs": [f32(6, 2), i32(-1), i32(1), i32(0), i32(-2)],
    },
    "matmul": {
        "kind": "MatMul", "main": table("MatMul", transposeB=True),
        "inputs": [f32(2, 3, 4), f32(5, 4)], "no_value": True,
    },
    "batch matmul": {
        "kind": "BatchMatMul", "main": table("BatchMatMulParam", adjX=True),
        "inputs": [f32(2, 4, 3), f32(2, 4, 5)], "no_value": True,
    },
    "reduce": {
        "kind": "Reduction",
        "main": table("ReductionParam", operation="SUM", dim=i32(-1), keepDims=True),
        "inputs": [f32(2, 3)], "no_value": True,
    },
    "reduce drop": {
        "kind": "Reduction", "main": table("ReductionParam", operation="MEAN", dim=i32(0, 2)),
        "inputs": [f32(2, 3, 4)], "no_value": True,
    },
    "reduce input": {
        "kind": "Reduction", "main": table("ReductionParam", operation="MAXIMUM"),
        "inputs": [f32(2, 3, 4), i32(1)], "no_value": True,
    },
    "arg max": {
        "kind": "ArgMax", "main": table("ArgMax", axis=1), "inputs": [f32(2, 3, 4)],
        "no_value": True,
    },
    "top k": {
        "kind": "TopKV2", "main": table("TopKV2"), "inputs": [f32(2, 9), scalar(3)], "outs": 2,
        "no_value": True,
    },
    "one hot": {
        "kind": "OneHot", "main": table("OneHotParam", axis=-1), "no_value": True,
        "inputs": [i32(1, 0, 2), scalar(4), scalar(1), scalar(0)],
    },
    "gather elements": {
        "kind": "GatherElements", "main": None, "no_value": True,
        "inputs": [f32(3, 3), i32(0, 2, 1).reshape(1, 3)],
    },
    "scatter": {
        "kind": "ScatterNd", "main": None, "no_value": True, "runtime": 0,
        "inputs": [i32(1, 3).reshape(2, 1), f32(2), i32(5)],
    },
    "softmax": {
        "kind": "Softmax", "main": table("Axis", axis=-1), "inputs": [f32(2, 3)], "no_value": True,
    },
    "layer norm": {
        "kind": "LayerNorm", "main": table("LayerNorm", axis=i32(-1), epsilon=1e-5, gamma=np.ones(
            3, np.float32), beta=np.zeros(3, np.float32)), "inputs": [f32(2, 3)], "no_value": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rule_agrees_with_mnn(name: str, tmp_path: Path) -> None:
    case = dict(CASES[name])
    no_value, newer = case.pop("no_value", False), case.pop("newer", False)
    outs = case.get("outs", 1)
    runtime = case.pop("runtime", 1)
    net, facts = one_op(**case, runtime=runtime)
    found = infer(net, facts)[len(case["inputs"]) :]
    ours = [f for f in found if f is not None]
    assert len(ours) == outs, "the rule gave nothing"
    got = run(tmp_path / "op.mnn", net, case["inputs"][:runtime], outs)
    if newer and list(got[0].shape) != list(ours[0].dims):
        pytest.skip("this MNN does not know the parameter yet")
    for fact, var in zip(ours, got, strict=True):
        assert tuple(var.shape) == fact.dims
        assert var.dtype == _EXPR[fact.dtype]
        assert var.data_format == _FORMATS[fact.format]
        if no_value:
            continue
        assert fact.value is not None
        values = np.array(var.read()).reshape(fact.dims)
        if fact.dtype == "int32":
            np.testing.assert_array_equal(fact.value, values)
        else:
            np.testing.assert_allclose(fact.value, values, rtol=2e-5, atol=1e-6)


def conv(kernel: int, stride: int, pad: int, mode: str = "CAFFE", **more: Any) -> Table:
    common = table(
        "Convolution2DCommon", kernelX=kernel, kernelY=kernel, strideX=stride, strideY=stride,
        padX=pad, padY=pad, padMode=mode, outputCount=8, inputCount=4, group=1, **more,
    )  # fmt: skip
    weight = np.zeros(8 * 4 * kernel * kernel, np.float32)
    return table("Convolution2D", common=common, weight=weight, bias=np.zeros(8, np.float32))


@pytest.mark.parametrize(
    "main",
    [
        conv(1, 1, 0),
        conv(3, 2, 1),
        conv(3, 2, 0, "SAME"),
        conv(3, 2, 0, "VALID"),
        conv(3, 1, 0, pads=i32(1, 0, 2, 1)),
        conv(2, 1, 0, dilateX=2, dilateY=3),
    ],
)
def test_convolution_agrees_with_mnn(main: Table, tmp_path: Path) -> None:
    x = f32(2, 4, 9, 7)
    net, facts = one_op("Convolution", main, [x], format="NC4HW4", runtime=1)
    (fact,) = infer(net, facts)[1:]
    assert fact is not None and fact.format == "NC4HW4"
    (var,) = run(tmp_path / "op.mnn", net, [x], 1)
    assert tuple(var.shape) == fact.dims


def test_unknown_op_gives_no_facts() -> None:
    assert "Svd" not in RULES
    net, facts = one_op("Svd", None, [f32(2, 2)], runtime=1)
    assert infer(net, facts)[1] is None


@pytest.mark.parametrize(
    ("kind", "main", "inputs"),
    [
        ("Reshape", table("Reshape", dims=i32(5, 2), dimType="NCHW"), [f32(2, 3)]),
        ("Concat", table("Axis", axis=0), [f32(2, 3), f32(2, 4)]),
        ("Concat", table("Axis", axis=7), [f32(2, 3), f32(2, 3)]),
        ("BinaryOp", binary("ADD"), [f32(2, 3), f32(2, 4)]),
        ("BinaryOp", binary("ADD"), [f32(3), i32(1, 2, 3)]),
        ("BinaryOp", None, [f32(3), f32(3)]),
        ("Squeeze", table("SqueezeParam", squeezeDims=i32(0)), [f32(2, 3)]),
        ("Transpose", None, [f32(2, 3), i32(0, 0)]),
        ("MatMul", table("MatMul"), [f32(2, 3), f32(2, 3)]),
        ("Convolution", conv(1, 1, 0), [f32(2, 3, 1, 1)]),
        ("Gather", None, [f32(2)]),
        ("Tile", None, [f32(2, 3), i32(1)]),
        ("Softmax", table("Axis"), []),
    ],
)
def test_contradiction_gives_no_facts(kind: str, main: Table | None, inputs: list[Any]) -> None:
    net, facts = one_op(kind, main, inputs, runtime=1)
    assert infer(net, facts)[len(inputs)] is None


def test_division_by_zero_is_left_to_mnn() -> None:
    net, facts = one_op("BinaryOp", binary("MOD"), [i32(4, 5), i32(2, 0)], runtime=1)
    fact = infer(net, facts)[2]
    assert fact is not None and fact.dims == (2,) and fact.value is None


def test_gather_outside_the_table_is_left_to_mnn() -> None:
    net, facts = one_op("GatherV2", None, [f32(4), i32(4), scalar(0)], runtime=1)
    fact = infer(net, facts)[3]
    assert fact is not None and fact.dims == (1,) and fact.value is None


def test_shape_from_unknown_values_is_unknown() -> None:
    net, facts = one_op("Reshape", table("Reshape"), [f32(2, 3), i32(3, 2)], runtime=2)
    facts[1] = TensorFact((2,), "int32", "NCHW")
    assert infer(net, facts)[2] is None


def fact(*dims: int, format: str = "NCHW") -> TensorFact:
    return TensorFact(dims, "float32", format)


def fused(*counts: int, **more: Any) -> Table:
    convs = [
        table("Convolution2D", common=table("Convolution2DCommon", outputCount=n)) for n in counts
    ]
    return table("FusedLinearParam", convs=convs, **more)


HEADS = table("LinearAttentionParam", num_v_heads=4, head_v_dim=8)
ROPE = table("RoPEParam", num_head=4, kv_num_head=2, head_dim=16)
PACKED = fact(7, 64, 1, 1, format="NC4HW4")


@pytest.mark.parametrize(
    ("kind", "main", "given", "dims"),
    [
        ("LinearAttention", HEADS, [fact(1, 96, 7)] * 4, [(1, 7, 4, 8)]),
        ("LinearAttention", HEADS, [PACKED] * 4, [(28, 8, 1, 1)]),
        ("RoPE", ROPE, [PACKED, fact(7, 32, format="NC4HW4"), PACKED, PACKED], [
            (1, 7, 4, 16), (1, 7, 2, 16)]),
        ("GatedRMSNorm", None, [fact(28, 16), fact(7, 64)], [(7, 64)]),
        ("FusedLinear", fused(64, 32, 32), [PACKED], [(7, 64, 1, 1), (7, 32, 1, 1), (7, 32, 1, 1)]),
        ("FusedLinear", fused(96, 96, act_silu_mul=True, has_ln=True), [PACKED] * 2, [
            (7, 96, 1, 1), (7, 64, 1, 1)]),
        ("Attention", table("AttentionParam", output_c4=True), [fact(1, 7, 4, 16)], [
            (7, 64, 1, 1)]),
        ("LayerNorm", None, [fact(2, 3), fact(2, 3)], [(2, 3), (2, 3)]),
    ],
)  # fmt: skip
def test_fused_ops_have_the_shapes_of_their_formulas(
    kind: str, main: Table | None, given: list[TensorFact], dims: list[tuple[int, ...]]
) -> None:
    ops = {"inputIndexes": np.arange(len(given)), "type": kind, "name": "op"}
    ops["outputIndexes"] = np.arange(len(given), len(given) + len(dims))
    if main is not None:
        ops["main"] = main
    names = [str(i) for i in range(len(given) + len(dims))]
    net = table("Net", oplists=[Table("Op", ops)], tensorName=names)
    found = infer(net, dict(enumerate(given)))[len(given) :]
    assert [f.dims if f else None for f in found] == dims


@pytest.mark.parametrize("fields", [{"dataType": "DT_INT64"}, {"dataType": "DT_FLOAT"}])
def test_a_constant_without_values_that_can_be_read(fields: dict[str, str]) -> None:
    main = table("Blob", dims=i32(2), **fields)
    op = table("Op", type="Const", name="c", outputIndexes=i32(0), main=main)
    net = table("Net", oplists=[op], tensorName=["c"])
    assert infer(net, {}) == [None]
    main.fields["external"] = np.array([0, 8], np.int64)
    (known,) = infer(net, {})
    assert (known is not None) == (fields["dataType"] == "DT_FLOAT")
