"""net.json: exact, canonical, and refused with the place when it is wrong."""

from __future__ import annotations

import contextlib
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from qnn_graphs import Weights, matmul, rms_norm

from mnnqnn_tasks.errors import NetFileError
from mnnqnn_tasks.qnn import netjson
from mnnqnn_tasks.qnn.floats import decimals, f32
from mnnqnn_tasks.qnn.ir import (
    AxisScaleOffset,
    Blob,
    BlockwiseExpansion,
    BwAxisScaleOffset,
    Graph,
    Node,
    Quant,
    ScalarParam,
    ScaleOffset,
    Tensor,
    TensorParam,
)

SCHEMA = json.loads((Path(__file__).parents[1] / "schemas" / "net.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def every_kind() -> Graph:
    """A graph with every kind of tensor, encoding and parameter."""
    blob = Blob("ab" * 32, 24)
    scales = tuple(f32(v) for v in (0.1, 1e-7, 3.0))
    quants: list[Quant] = [
        AxisScaleOffset(1, scales, (0, 0, 0)),
        AxisScaleOffset(1, scales, (1, -2, 3)),
        BwAxisScaleOffset(1, 4, scales, (-8, -8, -8)),
        BlockwiseExpansion(1, scales, (0, 0, 0), 2, 4, (1, 2, 3, 4, 15, 0)),
    ]
    tensors = [
        Tensor("t0", "APP_WRITE", "INT_32", (8, 3)),
        *(
            Tensor(f"w{i}", "STATIC", "SFIXED_POINT_8", (8, 3), quant, blob)
            for i, quant in enumerate(quants)
        ),
        Tensor('"q" ü 中', "NATIVE", "UFIXED_POINT_16", (8, 3), ScaleOffset(f32(0.3), -32768)),
        Tensor("t1", "APP_READ", "FLOAT_32", (8, 3)),
    ]
    params = (
        ScalarParam("epsilon", "FLOAT_32", f32(1e-6)),
        ScalarParam("axis", "INT_32", -1),
        ScalarParam("group", "UINT_32", 0xFFFFFFFF),
        ScalarParam("keep_dims", "BOOL_8", True),
        TensorParam("ranges", "INT_32", (2, 3), (0, 8, 1, 0, 3, 1)),
        TensorParam("factors", "FLOAT_32", (2,), (f32(0.1), -2.0)),
    )
    nodes = [
        Node("n0", "Op", ("t0", "w0", "w1", "w2", "w3"), ('"q" ü 中',), params),
        Node("n1", "Op", ('"q" ü 中',), ("t1",), (), "own.package"),
    ]
    return Graph("graph1_0", tensors, nodes)


def test_every_kind_survives_and_fits_the_schema() -> None:
    graph = every_kind()
    text = netjson.dumps(graph)
    assert netjson.loads(text) == graph
    assert netjson.dumps(netjson.loads(text)) == text
    VALIDATOR.validate(json.loads(text))


def test_graphs_of_other_tests_fit_the_schema(tmp_path: Path) -> None:
    gamma = np.linspace(0.5, 1.5, 64, dtype=np.float32)
    for graph in (
        matmul("graph0", 4, Weights(64, 32), tmp_path),
        rms_norm("graph0", 4, gamma, 1e-5, tmp_path),
    ):
        VALIDATOR.validate(json.loads(netjson.dumps(graph)))


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20))
@example([0.0, -0.0, 1.0, 1e-45, 1.1754942e-38, 3.4028234663852886e38, 0.1, 16777216.0])
def test_decimals_give_every_float32_back(values: list[float]) -> None:
    texts = decimals(values)
    for value, text in zip(values, texts, strict=True):
        for read in (float(text), float(json.loads(text))):  # a JSON reader may see an integer
            assert struct.pack("<f", read) == struct.pack("<f", value)


def test_decimals_give_many_bit_patterns_back() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, np.uint32).view(np.float32)
    values = bits[np.isfinite(bits)]
    read = np.array(decimals(values.tolist()), np.float64).astype(np.float32)
    assert read.tobytes() == values.tobytes()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e39])
def test_decimals_refuse_what_is_no_float32(value: float) -> None:
    with pytest.raises((ValueError, OverflowError)):
        decimals([1.0, value])


def test_scales_equal_the_models_to_the_last_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    scales = (rng.uniform(0, 1, 4096) * 10.0 ** rng.integers(-12, 3, 4096)).astype(np.float32)
    weights = Weights(2, 4096)
    weights.quant = AxisScaleOffset(1, tuple(map(float, scales)), (0,) * 4096)
    text = netjson.dumps(matmul("graph0", 1, weights, tmp_path))
    written = json.loads(text)["tensors"][1]["quant"]["scales"]
    assert np.array_equal(np.array(written, np.float64).astype(np.float32), scales)
    quant = netjson.loads(text).tensors[1].quant
    assert isinstance(quant, AxisScaleOffset)
    assert np.array_equal(np.array(quant.scales, np.float32), scales)


def _document() -> Any:
    return json.loads(netjson.dumps(every_kind()))


def _set(*path: Any) -> Any:
    *keys, last, value = path

    def change(document: Any) -> None:
        for key in keys:
            document = document[key]
        if value is KeyError:
            del document[last]
        else:
            document[last] = value

    return change


FORM = [
    (_set("version", 2), "document: format"),
    (_set("graph", KeyError), "'graph' is missing"),
    (_set("extra", 1), "unknown key 'extra'"),
    (_set("tensors", {}), "tensors: a list is needed"),
    (_set("tensors", 0, "name", ""), r"tensors\[0\].name: a non-empty text"),
    (_set("tensors", 0, "dims", [1.5]), r"tensors\[0\].dims: integers"),
    (_set("tensors", 0, "dims", [True]), r"tensors\[0\].dims: integers"),
    (_set("tensors", 1, "quant", "encoding", "BLOCK"), r"tensors\[1\].quant: 'encoding'"),
    (_set("tensors", 1, "quant", "scales", 0, "1"), r"tensors\[1\].quant.scales: numbers"),
    (_set("tensors", 1, "quant", "scales", 0, 1e39), "beyond the range of float32"),
    (_set("tensors", 1, "quant", "scales", KeyError), r"tensors\[1\].quant: 'scales' is missing"),
    (_set("tensors", 1, "blob", "size", "24"), r"tensors\[1\].blob.size: an integer"),
    (_set("nodes", 0, "params", 4, "values", KeyError), r"params\[4\]: 'values' is missing"),
    (_set("nodes", 0, "inputs", "t0"), r"nodes\[0\].inputs: a list"),
]

RULES = [
    (_set("nodes", 0, "params", 1, "value", 1.5), r"nodes\[0\].params\[1\].value: an integer"),
    (_set("nodes", 0, "params", 3, "value", 1), r"nodes\[0\].params\[3\].value: true or false"),
    (_set("tensors", 1, "name", "t0"), "tensor t0: the name is used twice"),
    (_set("tensors", 0, "kind", "INPUT"), "unknown kind INPUT"),
    (_set("tensors", 0, "dtype", "FLOAT_8"), "unknown dtype FLOAT_8"),
    (_set("tensors", 0, "dtype", "INT_64"), "cannot pass the graph's border"),
    (_set("tensors", 0, "dims", []), "has no dimension"),
    (_set("tensors", 0, "dims", [8, 0]), "not all positive"),
    (_set("tensors", 1, "blob", KeyError), "STATIC tensors, and only they, have a blob"),
    (_set("tensors", 1, "blob", "size", 23), "blob of 23 bytes for a tensor of 24"),
    (_set("tensors", 1, "blob", "sha256", "../../etc/passwd"), "is no SHA-256"),
    (_set("tensors", 1, "quant", KeyError), "needs a quantization encoding"),
    (_set("tensors", 1, "dtype", "INT_8"), "cannot have a quantization encoding"),
    (_set("tensors", 1, "quant", "axis", 2), "axis 2 of a tensor of rank 2"),
    (_set("tensors", 1, "quant", "axis", 0), "3 scales for 8 channels of axis 0"),
    (_set("tensors", 1, "quant", "scales", 0, 0), "is not a positive number"),
    (_set("tensors", 2, "quant", "offsets", [1]), "1 offsets for 3 scales"),
    (_set("tensors", 3, "quant", "bitwidth", 9), "bitwidth 9 does not fit"),
    (_set("tensors", 4, "quant", "blocks_per_axis", 3), "6 block scales, not 9"),
    (_set("tensors", 4, "quant", "block_scales", 0, 17), "not in 0..16"),
    (_set("nodes", 0, "inputs", 0, "nowhere"), "input nowhere does not exist"),
    (_set("nodes", 0, "inputs", 0, "t1"), "input t1 is used before a node produces it"),
    (_set("nodes", 1, "outputs", 0, "w0"), "output w0 is a STATIC tensor"),
    (_set("nodes", 1, "name", "n0"), "node n0: the name is used twice"),
    (_set("nodes", 0, "params", 1, "name", "epsilon"), "a parameter is given twice"),
    (_set("nodes", 0, "params", 2, "value", -1), "-1 does not fit UINT_32"),
    (_set("nodes", 0, "params", 4, "dims", [2, 2]), r"6 values for dims \[2, 2\]"),
    (_set("nodes", 0, "params", 0, "dtype", "INT_8"), "an integer is needed|dtype INT_8"),
    (_set("nodes", []), "has no node"),
]


@pytest.mark.parametrize(("change", "message"), FORM + RULES)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, change: Any, message: str) -> None:
    document = _document()
    change(document)
    path = tmp_path / "graph0_net.json"
    path.write_text(json.dumps(document))
    with pytest.raises(NetFileError, match=message) as caught:
        netjson.load(path)
    assert caught.value.where == str(path)


@pytest.mark.parametrize(("change", "message"), FORM)
def test_the_schema_refuses_the_same_forms(change: Any, message: str) -> None:
    document = _document()
    change(document)
    assert not VALIDATOR.is_valid(document), message


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", '{"graph": NaN}', "[" * 100_000])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(NetFileError):
        netjson.loads(text)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph0_net.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(NetFileError, match="cannot read"):
        netjson.load(path)


@given(st.data())
def test_damaged_text_never_gives_another_error(data: st.DataObject) -> None:
    text = netjson.dumps(every_kind())
    at = data.draw(st.integers(0, len(text) - 1))
    length = data.draw(st.integers(0, 40))
    insert = data.draw(st.text(max_size=4))
    with contextlib.suppress(NetFileError):
        netjson.loads(text[:at] + insert + text[at + length :])


def test_an_illegal_graph_is_not_written(tmp_path: Path) -> None:
    graph = every_kind()
    graph.tensors[0] = replace(graph.tensors[0], dtype="INT_64")
    with pytest.raises(NetFileError):
        netjson.save(graph, tmp_path / "graph0_net.json")
    assert not list(tmp_path.iterdir())
