"""The files of a graph: exact numbers, safe text, whole or not at all, the same bytes."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from translate_graphs import Net
from translate_weights import Kind, weights

from mnnqnn_tasks.errors import DiskError
from mnnqnn_tasks.qnn import netjson
from mnnqnn_tasks.qnn.ir import (
    AxisScaleOffset,
    Blob,
    BlockwiseExpansion,
    BwAxisScaleOffset,
    Graph,
    Node,
    ScalarParam,
    ScaleOffset,
    Tensor,
    TensorParam,
)
from mnnqnn_tasks.translate import emit_cpp
from mnnqnn_tasks.translate.emit import emit

_HAS_LITERAL = re.compile(r"-?\b[0-9]+(?:\.[0-9]+|(?=e))(?:e[+-][0-9]+)?f\b")


def f32(value: float) -> bytes:
    return struct.pack("<f", value)


def literals_of(text: str) -> list[bytes]:
    """The float32 of every literal in C++ ``text``."""
    return [f32(float(t[:-1])) for t in _HAS_LITERAL.findall(text)]


def test_every_float_comes_back_exactly() -> None:
    bits = np.random.default_rng(5).integers(0, 2**32, 20000, np.uint32)
    values = bits.view(np.float32)
    values = [float(v) for v in values[np.isfinite(values)]]
    values += [0.0, -0.0, 1.0, 8.16e-06, 1e-45, 3.4028234663852886e38]
    texts = emit_cpp.literals(values)
    assert [f32(float(t[:-1])) for t in texts] == [f32(v) for v in values]
    assert all(_HAS_LITERAL.fullmatch(t) for t in texts)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), float("-inf"), 1e39])
def test_what_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises((ValueError, OverflowError)):
        emit_cpp.literals([1.0, value])


def test_strings_survive_any_name() -> None:
    name = 'a"b\\c\n??/ñ中%'
    text = emit_cpp.quoted(name)
    assert text.isascii() and text[1:-1].count('"') == 0 and "\n" not in text
    plain = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text[1:-1])
    assert plain.encode("latin-1").decode() == name


def every_encoding() -> Graph:
    quants = {
        "one": ScaleOffset(0.1, -3),
        "axis": AxisScaleOffset(0, (0.1, 0.2), (0, 0)),
        "narrow": BwAxisScaleOffset(0, 4, (0.3, 0.4), (0, 0)),
        "blocks": BlockwiseExpansion(0, (0.5, 0.6), (0, 0), 2, 4, (1, 2, 3, 15)),
    }
    graph = Graph("graph0")
    graph.tensors.append(Tensor("t0", "APP_WRITE", "FLOAT_32", (1, 4)))
    for name, quant in quants.items():
        blob = Blob("0" * 64, 8)
        graph.tensors.append(Tensor(name, "STATIC", "SFIXED_POINT_8", (2, 4), quant, blob))
    graph.tensors.append(Tensor("t1", "APP_READ", "FLOAT_32", (1, 4)))
    params = (
        ScalarParam("epsilon", "FLOAT_32", float(np.float32(1e-6))),
        ScalarParam("axis", "UINT_32", 3),
        ScalarParam("keep", "BOOL_8", True),
        TensorParam("ranges", "INT_32", (2, 3), (0, -1, 1, 2, 3, 4)),
    )
    graph.nodes.append(Node("n", "Cast", ("t0",), ("t1",), params))
    return graph


def test_source_holds_every_part_of_the_graph() -> None:
    text = emit_cpp.source(every_encoding())
    for wanted in (
        'extern "C"',
        "QnnModel_composeGraphs",
        "QnnModel_freeGraphsInfo",
        "BINVARSTART(narrow)",
        "BINLEN(narrow)",
        "QNN_QUANTIZATION_ENCODING_BLOCKWISE_EXPANSION",
        "bwAxisScaleOffsetEncoding.offsets = tensor_narrow_offsets;",
        "int32_t param_n_ranges_data[] = {0, -1, 1, 2, 3, 4};",
        ".scalarParam.bool8Value = 1;",
        'addNode(QNN_OPCONFIG_VERSION_1, "n",',
        '.addTensor("t0", tensor_t0)',
    ):
        assert wanted in text, wanted
    assert '.addTensor("t1"' not in text, "the generator adds outputs with their node"
    assert text.count("{") == text.count("}") and text.count("(") == text.count(")")
    wanted_floats = [0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1e-6]
    assert sorted(literals_of(text)) == sorted(f32(v) for v in wanted_floats)


def small_net(name: str = "/layers.0/q_proj 'x\"/中") -> Net:
    net = Net()
    x = np.ones((2, 8, 1, 1), np.float32)
    _, params, ranges = weights(net, Kind("i8"), 4, 8)
    params["common"] = {"outputCount": 4, "inputCount": 8}
    out = net.op(
        "Convolution", [net.input(x)], (2, 4, 1, 1), params=params, weights=ranges, name=name
    )
    net.output(out)
    return net


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_files_are_complete_linked_and_the_same_every_time(tmp_path: Path) -> None:
    net = small_net()
    for number in (1, 2):
        made = net.translated()
        emit(made.graph, made.blobs, tmp_path / str(number), tmp_path / f"blobs{number}")
    first = files(tmp_path / "1")
    assert first == files(tmp_path / "2")
    assert files(tmp_path / "blobs1") == files(tmp_path / "blobs2")
    graph = netjson.load(tmp_path / "1" / "graph0_net.json")
    assert graph == made.graph
    statics = [t for t in graph.tensors if t.blob is not None]
    assert set(first) == {"graph0.cpp", "graph0_net.json", *(f"{t.name}.raw" for t in statics)}
    for tensor in statics:
        assert tensor.blob is not None
        store = tmp_path / "blobs1" / tensor.blob.sha256
        assert store.samefile(tmp_path / "1" / f"{tensor.name}.raw")
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", tensor.name)
    scales = [s for t in statics if t.quant for s in t.quant.scales]  # type: ignore[union-attr]
    found = literals_of(first["graph0.cpp"].decode())
    assert [f32(s) for s in scales] == found


def test_stale_raw_files_and_leftovers_go(tmp_path: Path) -> None:
    made = small_net().translated()
    out = tmp_path / "out"
    (out / ".tmp-dead").mkdir(parents=True)
    (out / ".tmp-dead" / "x.raw").write_bytes(b"x")
    (out / "old_weight.raw").write_bytes(b"old")
    emit(made.graph, made.blobs, out, tmp_path / "blobs")
    assert "old_weight.raw" not in files(out)
    assert not list(out.glob(".tmp-*"))


def test_a_damaged_blob_is_written_again(tmp_path: Path) -> None:
    made = small_net().translated()
    emit(made.graph, made.blobs, tmp_path / "out", tmp_path / "blobs")
    victim = next(iter(made.blobs))
    (tmp_path / "blobs" / victim).unlink()
    (tmp_path / "blobs" / victim).write_bytes(b"")
    emit(made.graph, made.blobs, tmp_path / "out", tmp_path / "blobs")
    assert (tmp_path / "blobs" / victim).read_bytes() == bytes(made.blobs[victim])


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_error_leaves_no_net_json_that_lies(tmp_path: Path) -> None:
    made = small_net().translated()
    out = tmp_path / "out"
    blocker = tmp_path / "blobs"
    blocker.write_bytes(b"a file where the store should be")
    with pytest.raises(DiskError):
        emit(made.graph, made.blobs, out, blocker)
    assert files(out) == {}
