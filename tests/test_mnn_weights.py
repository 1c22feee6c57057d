"""Weights: what is decoded is what MNN's CPU multiplies with."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnnqnn_tasks.errors import ModelFileError, UnsupportedOp
from mnnqnn_tasks.mnn import cpu, idst, reader
from mnnqnn_tasks.mnn.folder import open_folder
from mnnqnn_tasks.mnn.samples import Sample
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.mnn.weights import (
    FloatWeight,
    QuantWeight,
    check_range,
    convolution_ranges,
    decode_convolution,
    file_offset,
    inline_vectors,
    net_ranges,
    params_as_json,
)
from mnnqnn_tasks.mnn.writer import encode, write

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = ROOT / "models" / "tiny-qwen3-w8"
OTHERS = sorted((ROOT.parent / "shared" / "models").glob("*"))
MODELS = [BUNDLED, *(path for path in OTHERS if path.name != BUNDLED.name)]


@pytest.fixture(scope="module")
def worker() -> Iterator[cpu.CpuWorker]:
    with cpu.CpuWorker() as process:
        yield process


def map_weight(folder: Path) -> memoryview:
    with open(folder / "llm.mnn.weight", "rb") as stream:
        return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))


def decode(op: Table, data: memoryview) -> QuantWeight | FloatWeight:
    blobs: dict[str, memoryview] = {
        role: data[start : start + size] for role, (start, size) in convolution_ranges(op).items()
    }
    blobs |= {role: vector.data for role, vector in inline_vectors(op.main).items()}
    return decode_convolution(params_as_json(op.main), blobs, name=op.name)


def distinct_convolutions(net: Table) -> list[Table]:
    """One convolution per shape and storage."""
    found: dict[Any, Table] = {}
    for op in net.oplists:
        if op.type == "Convolution":
            common = op.main.common
            sizes = tuple(size for _, size in convolution_ranges(op).values())
            found.setdefault((common.outputCount, common.inputCount, sizes), op)
    return list(found.values())


@pytest.mark.parametrize("folder", MODELS, ids=lambda p: p.name)
def test_convolutions_of_a_model_compute_what_mnn_computes(
    folder: Path, worker: cpu.CpuWorker
) -> None:
    net = reader.read(folder / "llm.mnn")
    data = map_weight(folder)
    chance = np.random.default_rng(3)
    for op in distinct_convolutions(net):
        weight = decode(op, data)
        x = chance.standard_normal((5, op.main.common.inputCount, 1, 1)).astype(np.float32)
        source, target = (
            net.tensorName[indexes[0]] for indexes in (op.inputIndexes, op.outputIndexes)
        )
        given = {source: Sample(x, "NC4HW4")}
        result = worker.run(folder / "llm.mnn", folder / "llm.mnn.weight", given, [target])
        y = result[target].values[:, :, 0, 0]
        expected = x[:, :, 0, 0].astype(np.float64) @ weight.dequantize().T + weight.bias
        # Rounding of a sum of products: relative to what was added up.
        size = np.abs(x[:, :, 0, 0]) @ np.abs(weight.dequantize().T) + np.abs(weight.bias)
        assert np.abs(expected).max() > 0.1
        assert np.max(np.abs(y - expected) / size) < 1e-6, op.name


@dataclass
class Case:
    """A convolution with its data inside the model."""

    name: str
    fields: dict[str, Any]
    quan: dict[str, Any] | None = None
    kernel: int = 1
    channels: int = 8
    inputs: int = 16
    common: dict[str, Any] = field(default_factory=dict)

    def table(self) -> Table:
        sizes = {
            "kernelX": self.kernel,
            "kernelY": self.kernel,
            "outputCount": self.channels,
            "inputCount": self.inputs,
        }
        common = Table("Convolution2DCommon", {**sizes, **self.common})
        main = Table("Convolution2D", {"common": common, **self.fields})
        if self.quan is not None:
            main.fields["quanParameter"] = Table("IDSTQuan", {"quantScale": 1.0, **self.quan})
        return main


def pack(values: np.ndarray[Any, Any], bits: int) -> bytes:
    """Unsigned values, most significant bit first."""
    text = "".join(f"{int(value):0{bits}b}" for value in values)
    text += "0" * (-len(text) % 8)
    return bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))


def shape_header(dims: tuple[int, ...], wide: bool = False) -> bytes:
    return bytes([len(dims)]) + np.array(dims, "<u4" if wide else "<u2").tobytes()


def dense(q: np.ndarray[Any, Any], bits: int, wide: bool = False) -> np.ndarray[Any, Any]:
    """A type 1 buffer of q (signed) with the full table of 2^bits samples."""
    half = 1 << (bits - 1)
    samples = np.arange(-half, half).astype(np.int8).tobytes()
    head = shape_header((q.shape[0], q[0].size), wide) + bytes([len(samples) % 256]) + samples
    return np.frombuffer(head + pack(q.reshape(-1) + half, bits), np.int8)


def sparse(q: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A type 2 buffer of the values of q that are not 0; steps of 8 bits."""
    flat = q.reshape(-1)
    places = np.flatnonzero(flat)
    steps = np.diff(places, prepend=0)
    samples = np.unique(flat[places])
    bits = max(1, int(np.ceil(np.log2(len(samples)))))
    data = shape_header((q.shape[0], q[0].size)) + np.uint32(len(places)).tobytes() + b"\x08"
    data += steps.astype(np.uint8).tobytes() + bytes([len(samples)])
    data += samples.astype(np.int8).tobytes()
    return np.frombuffer(data + pack(np.searchsorted(samples, flat[places]), bits), np.int8)


def cases() -> list[Case]:
    chance = np.random.default_rng(5)
    bias = chance.standard_normal(8).astype(np.float32)
    scales = (0.01 + 0.02 * chance.random(8)).astype(np.float32)

    def q(bits: int, kernel: int = 1) -> np.ndarray[Any, Any]:
        half = 1 << (bits - 1)
        return chance.integers(-half, half, (8, 16 * kernel * kernel))

    def pairs(blocks: int) -> np.ndarray[Any, Any]:
        both = np.empty((8 * blocks, 2), np.float32)
        both[:, 0] = chance.standard_normal(8 * blocks)
        both[:, 1] = 0.01 + 0.02 * chance.random(8 * blocks)
        return both.reshape(-1)

    made = [
        Case("float", {"weight": chance.standard_normal(128).astype(np.float32), "bias": bias}),
        Case(
            "float 3x3",
            {"weight": chance.standard_normal(8 * 16 * 9).astype(np.float32), "bias": bias},
            kernel=3,
        ),
    ]
    for bits in (2, 3, 4, 5, 6, 7, 8):
        quan = {"type": 1, "buffer": dense(q(bits), bits), "alpha": scales, "aMaxOrBits": bits}
        made.append(Case(f"{bits} bits", {"bias": bias}, quan))
    odd = np.array([-77, -3, 0, 5, 90], np.int8)
    choice = chance.integers(0, 5, 128)
    table = shape_header((8, 16)) + bytes([5]) + odd.tobytes() + pack(choice, 3)
    half = scales.astype(np.float16)
    block = (0.01 + 0.02 * chance.random(32)).astype(np.float32)
    few = np.where(chance.random((8, 16)) < 0.3, q(6), 0)
    many = {
        "odd samples": {"type": 1, "buffer": np.frombuffer(table, np.int8), "alpha": scales},
        "wide shape": {"type": 1, "buffer": dense(q(4), 4, True), "alpha": scales}
        | {"shapeInt32": True},
        "factor": {"type": 1, "buffer": dense(q(8), 8), "alpha": scales, "quantScale": 0.5},
        "half scales": {"type": 1, "buffer": dense(q(8), 8), "scaleStorage": "FP16"}
        | {"alphaFp16": half.view(np.uint16)},
        "blocks": {"type": 1, "buffer": dense(q(4), 4), "alpha": block},
        "offsets of MNN's LLM exporter": {"type": 1, "buffer": dense(q(4), 4), "alpha": pairs(1)}
        | {"readType": 8, "aMin": 1},
        "offsets per block": {"type": 1, "buffer": dense(q(4), 4), "alpha": pairs(4)}
        | {"readType": 32, "aMin": 1},
        "minima": {"type": 1, "buffer": dense(q(4), 4), "alpha": pairs(1)}
        | {"readType": 8, "aMin": -8},
        "minima of 8 bits": {"type": 1, "buffer": dense(q(8), 8), "alpha": pairs(1)}
        | {"readType": 8, "aMin": 0},
        "minima and factor": {"type": 1, "buffer": dense(q(8), 8), "alpha": pairs(1)}
        | {"readType": 8, "aMin": -128, "quantScale": 0.25},
        "sparse": {"type": 2, "buffer": sparse(few), "alpha": scales},
        "half": {"type": 3, "buffer": chance.standard_normal(128).astype("<f2").view(np.int8)},
        "bytes": {"type": 4, "buffer": q(8).astype(np.int8).reshape(-1), "alpha": scales},
        "old bytes": {"type": 4, "buffer": q(8).astype(np.int8).reshape(-1), "alpha": pairs(1)}
        | {"quantScale": 0.0},
    }
    made += [Case(name, {"bias": bias}, quan) for name, quan in many.items()]
    made.append(
        Case(
            "3x3",
            {"bias": bias},
            {"type": 1, "buffer": dense(q(8, 3), 8), "alpha": scales},
            kernel=3,
        )
    )
    return made


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_every_storage_computes_what_mnn_computes(
    case: Case, tmp_path: Path, worker: cpu.CpuWorker
) -> None:
    main = case.table()
    side = 4
    ops = [
        Table(
            "Op",
            {
                "name": "x",
                "type": "Input",
                "outputIndexes": [0],
                "main": Table("Input", {"dims": [1, case.inputs, side, side], "dformat": "NC4HW4"}),
            },
        ),
        Table(
            "Op",
            {
                "name": "y",
                "type": "Convolution",
                "inputIndexes": [0],
                "outputIndexes": [1],
                "main": main,
            },
        ),
    ]
    net = {"oplists": ops, "tensorName": ["x", "y"], "outputName": ["y"], "sourceType": "ONNX"}
    write(tmp_path / "one.mnn", Table("Net", net))
    x = np.random.default_rng(1).standard_normal((1, case.inputs, side, side)).astype(np.float32)
    result = worker.run(tmp_path / "one.mnn", None, {"x": Sample(x, "NC4HW4")}, ["y"])
    read = reader.read(tmp_path / "one.mnn").oplists[1]
    weight = decode(read, memoryview(b"")).dequantize()
    assert np.abs(weight).max() > 0.01
    kernel = weight.reshape(case.channels, case.inputs, case.kernel, case.kernel)
    windows = np.lib.stride_tricks.sliding_window_view(x, (case.kernel, case.kernel), (2, 3))
    expected = np.einsum("bihwkl,oikl->bohw", windows.astype(np.float64), kernel)
    expected += case.fields["bias"][None, :, None, None]
    size = np.einsum("bihwkl,oikl->bohw", np.abs(windows), np.abs(kernel)) + 1
    assert result["y"].values.shape == expected.shape
    assert np.max(np.abs(result["y"].values - expected) / size) < 2e-6


def test_parts_of_a_quantized_weight() -> None:
    q = np.arange(-8, 8).reshape(2, 8)
    alpha = np.array([1, 0.5, 2, 0.25, 3, 0.125, 4, 1], np.float32)
    quan = {"type": 1, "buffer": dense(q, 4), "alpha": alpha, "readType": 4, "aMin": 1}
    main = Case("", {}, quan, channels=2, inputs=8).table()
    weight = decode(Table("Op", {"name": "c", "main": main}), memoryview(b""))
    assert isinstance(weight, QuantWeight)
    assert weight.values.tolist() == q.tolist()
    assert (weight.bits, weight.block) == (4, 4)
    assert weight.scales.tolist() == [[0.5, 0.25], [0.125, 1]]
    assert weight.offsets is not None
    assert weight.offsets.tolist() == [[1, 2], [3, 4]]
    assert weight.bias.tolist() == [0, 0]
    assert weight.dequantize()[1].tolist() == [3, 3.125, 3.25, 3.375, 8, 9, 10, 11]


def test_a_large_weight_is_not_expanded_to_floats() -> None:
    rows, columns = 49152, 64
    data = np.random.default_rng(0).integers(0, 256, rows * columns, np.uint8)
    samples = np.arange(-128, 128).astype(np.int8).tobytes()
    blob = shape_header((rows, columns)) + b"\0" + samples + data.tobytes()
    params = {
        "common": {"outputCount": rows, "inputCount": columns},
        "quanParameter": {"type": 1, "quantScale": 1.0, "scaleStorage": "FP16"},
    }
    scales = np.ones(rows, "<f2").tobytes()
    weight = decode_convolution(params, {"weight": blob, "scale": scales})
    assert isinstance(weight, QuantWeight)
    assert weight.values.dtype == np.int8
    assert weight.values.nbytes == data.nbytes
    assert np.array_equal(weight.values.reshape(-1), data.astype(np.int16) - 128)


def damaged(**changes: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
    params: dict[str, Any] = {
        "common": {"outputCount": 8, "inputCount": 16},
        "quanParameter": {"type": 1, "quantScale": 1.0},
    }
    q = np.zeros((8, 16), np.int64)
    blobs = {"weight": dense(q, 4).tobytes(), "scale": np.ones(8, "<f4").tobytes()}
    params["common"] |= changes.pop("common", {})
    params["quanParameter"] |= changes.pop("quan", {})
    return params, blobs | changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight": b""}, "bytes"),
        ({"weight": b"\x02\x08"}, "shape"),
        ({"weight": b"\x07" * 99}, "7 dims"),
        ({"weight": dense(np.zeros((8, 16), np.int64), 4).tobytes()[:-1]}, "indices"),
        ({"weight": shape_header((8, 16)) + b"\x05" * 6 + b"\xff" * 48}, "index 7"),
        ({"scale": b""}, "scales"),
        ({"scale": b"\0\0\0"}, "whole number"),
        ({"scale": b"\0" * 28}, "scales"),
        ({"bias": b"\0" * 4}, "bias"),
        ({"common": {"outputCount": 7}}, "fit"),
        ({"common": {"outputCount": 0}}, "0 output channels"),
        ({"common": {"inputCount": 15}}, "fit"),
        ({"quan": {"type": 2}}, "weight"),
        ({"index": b"\0\0\0\0", "quan": {"weightSize": 1}}, "sparse"),
    ],
)
def test_damaged_weights_are_named(changes: dict[str, Any], words: str) -> None:
    params, blobs = damaged(**changes)
    with pytest.raises(ModelFileError) as caught:
        decode_convolution(params, blobs, name="layer 3")
    assert caught.value.where == "op layer 3"
    assert words in str(caught.value)


def test_any_sparse_blob_decodes_or_is_refused() -> None:
    params, blobs = damaged(quan={"type": 2})
    good = sparse(np.eye(8, 16, dtype=np.int64) * 5).tobytes()
    assert decode_convolution(params, {**blobs, "weight": good}).dequantize().sum() == 40
    for length in range(len(good)):
        with pytest.raises(ModelFileError):
            decode_convolution(params, {**blobs, "weight": good[:length]})
    for place in range(len(good)):
        for value in (0, 1, 127, 255):
            changed = good[:place] + bytes([value]) + good[place + 1 :]
            try:
                decode_convolution(params, {**blobs, "weight": changed})
            except ModelFileError:
                continue


def test_unknown_storage_is_unsupported() -> None:
    params, blobs = damaged(quan={"type": 99})
    with pytest.raises(UnsupportedOp, match="cannot be read") as caught:
        decode_convolution(params, blobs, name="layer 3")
    assert "type 99" in str(caught.value)
    params, blobs = damaged()
    del params["quanParameter"]
    with pytest.raises(UnsupportedOp):
        decode_convolution(params, {}, name="layer 3")


@pytest.mark.parametrize("bits", range(1, 9))
def test_split_bits(bits: int) -> None:
    values = np.random.default_rng(bits).integers(0, 1 << bits, 37).astype(np.uint8)
    packed = np.frombuffer(pack(values, bits), np.uint8)
    assert idst.split_bits(packed, 37, bits).tolist() == values.tolist()


def op_with(main: Table) -> Table:
    return Table("Op", {"name": "an op", "main": main})


def test_ranges_by_table() -> None:
    def ranges(kind: str, external: list[int], **fields: Any) -> Mapping[str, tuple[int, int]]:
        return convolution_ranges(op_with(Table(kind, {**fields, "external": external})))

    quan = {"quanParameter": Table("IDSTQuan")}
    assert ranges("Convolution2D", [10, 5, 4, 0, 2], **quan) == {
        "weight": (10, 5),
        "scale": (15, 4),
        "index": (19, 2),
    }
    assert ranges("Convolution2D", [10, 5, 4]) == {"weight": (10, 5), "bias": (15, 4)}
    assert ranges("LayerNorm", [8, 4, 4]) == {"gamma": (8, 4), "beta": (12, 4)}
    assert ranges("Scale", [8, 4]) == {"scaleData": (8, 4)}
    assert ranges("Blob", [8, 4]) == {"data": (8, 4)}
    assert ranges("Blob", [8]) == {}
    assert convolution_ranges(Table("Op", {"name": "no parameters"})) == {}
    for bad in ([-1, 4], [0, -4], [0, 1, 2]):
        with pytest.raises(ModelFileError, match="an op"):
            ranges("Blob", bad)


def test_a_range_outside_the_file_names_op_range_and_size() -> None:
    net = reader.read(BUNDLED / "llm.mnn")
    size = (BUNDLED / "llm.mnn.weight").stat().st_size
    needed = list(net_ranges(net))
    for item in needed:
        check_range(item, size, "llm.mnn.weight")
    last = max(needed, key=lambda item: item.offset + item.size)
    assert last.offset + last.size == size
    with pytest.raises(ModelFileError) as caught:
        check_range(last, size - 1, "llm.mnn.weight")
    for part in (last.op, str(last.offset), str(size), str(size - 1)):
        assert part in str(caught.value)


def test_parameters_as_json() -> None:
    attribute = Table(
        "Blob",
        {
            "dims": np.array([1, 65], np.int32),
            "dataType": "DT_FLOAT",
            "float32s": np.arange(65, dtype=np.float32),
            "external": np.array([0, 1]),
            "strings": ["\udcff"],
        },
    )
    norm = Table("LayerNorm", {"epsilon": float(np.float32(1e-6)), "useRMSNorm": False})
    assert params_as_json(norm) == {
        "_type": "LayerNorm",
        "epsilon": 9.999999974752427e-07,
        "useRMSNorm": False,
    }
    assert params_as_json(attribute) == {
        "_type": "Blob",
        "dims": [1, 65],
        "dataType": "DT_FLOAT",
        "strings": ["\\xff"],
    }
    assert list(inline_vectors(attribute)) == ["float32s"]
    wild = Table("GroupNorm", {"gamma": np.array([np.inf, -np.inf, np.nan, 0.1], np.float32)})
    values = params_as_json(wild)["gamma"]
    assert values == ["inf", "-inf", "nan", 0.10000000149011612]


def test_inline_vectors_lie_where_they_say() -> None:
    path = BUNDLED / "llm.mnn"
    data = path.read_bytes()
    found = 0
    for op in reader.read(path).oplists:
        for vector in inline_vectors(op.main).values() if op.main is not None else ():
            start = file_offset(vector)
            assert data[start : start + vector.nbytes] == vector.tobytes()
            found += 1
    assert found >= 2  # the tables of the rotary embedding
    with pytest.raises(ValueError, match="no view"):
        file_offset(np.zeros(3))


def test_paths_of_nested_vectors() -> None:
    quan = {"type": 4, "buffer": np.zeros(128, np.int8), "alpha": np.ones(8, np.float32)}
    main = reader.decode(
        encode(Table("Net", {"oplists": [op_with(Case("", {}, quan).table())]}))
    ).oplists[0]
    assert list(inline_vectors(main.main)) == ["quanParameter.buffer"]
    assert params_as_json(main.main)["quanParameter"]["alpha"] == [1.0] * 8


def test_open_folder_finds_the_weight_file() -> None:
    assert open_folder(BUNDLED).weight == "llm.mnn.weight"
