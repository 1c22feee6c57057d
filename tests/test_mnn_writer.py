"""The writer: read then write loses nothing, and MNN computes the same bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnnqnn_tasks.errors import DiskError
from mnnqnn_tasks.mnn import cpu, inputs, reader, samples
from mnnqnn_tasks.mnn.folder import open_folder
from mnnqnn_tasks.mnn.samples import Sample
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.mnn.writer import encode, write

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
BUNDLED = ROOT / "models" / "tiny-qwen3-w8"
OTHERS = [path for path in sorted((SHARED / "models").glob("*")) if path.name != BUNDLED.name]
MODELS = [BUNDLED, *OTHERS]
GOLDEN = sorted((SHARED / "golden").glob("*/qnn/llm.mnn"))
SAMPLES = sorted((SHARED / "golden").glob("*/testdir/*/*.mnn"))
needs_shared = pytest.mark.skipif(not GOLDEN, reason=f"no golden data in {SHARED}")


def same(a: Any, b: Any) -> bool:
    """Equal trees: names, order, types, values to the last bit, present or absent."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Table):
        return (
            a.type_name == b.type_name
            and list(a.fields) == list(b.fields)
            and all(same(a.fields[name], b.fields[name]) for name in a.fields)
        )
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return np.float64(a).tobytes() == np.float64(b).tobytes()
    return bool(a == b)


def every_file() -> list[Path]:
    return [*(model / "llm.mnn" for model in MODELS), *GOLDEN, *SAMPLES]


@pytest.mark.parametrize("path", every_file(), ids=lambda p: "/".join(p.parts[-4:]))
def test_no_field_is_lost(path: Path) -> None:
    net = reader.read(path)
    data = encode(net)
    assert same(reader.decode(data), net)
    assert encode(reader.decode(data)) == data
    assert encode(net) == data


@pytest.mark.parametrize("folder", MODELS, ids=lambda p: p.name)
def test_a_rewritten_model_computes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    model = open_folder(folder)
    weight = folder / model.weight
    inputs.write_inputs(folder, 16, tmp_path / "input.mnn")
    given = samples.read(tmp_path / "input.mnn")
    write(tmp_path / "llm.mnn", reader.read(folder / "llm.mnn"))
    with cpu.CpuWorker() as worker:
        before = worker.run(folder / "llm.mnn", weight, given, ["logits"])["logits"].values
        after = worker.run(tmp_path / "llm.mnn", weight, given, ["logits"])["logits"].values
    assert np.abs(before).max() > 0.01
    assert before.tobytes() == after.tobytes()


@needs_shared
@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.parts[-3])
def test_a_rewritten_host_model_computes_the_same_bytes(path: Path, tmp_path: Path) -> None:
    """Host models have Plugin ops, which the wheel loads but cannot run: run the rest."""
    net = reader.read(path)
    write(tmp_path / "llm.mnn", net)
    attention = next(op for op in net.oplists if op.type == "Attention")
    query, key, value, mask = (net.tensorName[i] for i in attention.inputIndexes)
    output = net.tensorName[attention.outputIndexes[0]]
    chance = np.random.default_rng(1)
    given = {
        name: Sample(chance.standard_normal((1, 8, heads, 16)).astype(np.float32))
        for name, heads in ((query, 4), (key, 2), (value, 2))
    }
    lower = np.tril(np.ones((8, 8), bool))[None, None]
    given[mask] = Sample(np.where(lower, np.float32(0), np.finfo(np.float32).min))
    with cpu.CpuWorker() as worker:
        before = worker.run(path, None, given, [output])[output].values
        after = worker.run(tmp_path / "llm.mnn", None, given, [output])[output].values
    assert np.abs(before).max() > 0.1
    assert before.tobytes() == after.tobytes()


READ_WITH_MNN = """
import sys, numpy, MNN.expr as F
for path in sys.argv[1:]:
    for variable in F.load_as_list(path):
        values = numpy.array(variable.read())
        print(variable.name, variable.shape, values.dtype, values.tobytes().hex(), file=sys.stderr)
"""


def read_with_mnn(*paths: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", READ_WITH_MNN, *map(str, paths)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return done.stderr.splitlines()


def test_mnn_reads_samples(tmp_path: Path) -> None:
    arrays = {
        "floats": Sample(np.array([[1.5, -0.0, np.inf]], np.float32)),
        "words": Sample(np.array([[[-1, 2**31 - 1]]], np.int32), "NHWC"),
        "bytes": Sample(np.array([0, 255], np.uint8)),
    }
    samples.write(tmp_path / "x.mnn", arrays)
    lines = read_with_mnn(tmp_path / "x.mnn")
    for line, (name, sample) in zip(lines, arrays.items(), strict=True):
        values = sample.values
        assert line == f"{name} {list(values.shape)} {values.dtype} {values.tobytes().hex()}"
    again = samples.read(tmp_path / "x.mnn")
    assert list(again) == list(arrays)
    for name, sample in arrays.items():
        assert again[name].format == sample.format
        assert again[name].values.tobytes() == sample.values.tobytes()


@needs_shared
def test_mnn_reads_the_same_from_rewritten_samples(tmp_path: Path) -> None:
    rewritten = []
    for number, path in enumerate(SAMPLES):
        rewritten.append(tmp_path / f"{number}.mnn")
        write(rewritten[-1], reader.read(path))
    before = read_with_mnn(*SAMPLES)
    assert len(before) == 40  # four inputs and one output, two shapes, four models
    assert read_with_mnn(*rewritten) == before


@needs_shared
def test_samples_are_built_as_mnn_builds_them() -> None:
    for path in SAMPLES:
        net = reader.read(path)
        built = samples.to_table(samples.from_table(net))
        assert same(reader.decode(encode(built)), net), path


def test_what_equals_the_default_is_written_and_what_is_absent_is_not() -> None:
    op = Table("Op", {"type": "AbsVal", "defaultDimentionFormat": "NHWC"})
    common = Table("Convolution2DCommon", {"padX": 0, "kernelX": 1, "relu": False})
    op.fields["main"] = Table("Convolution2D", {"common": common})
    again = reader.decode(encode(Table("Net", {"oplists": [op], "tensorName": []})))
    (read,) = again.oplists
    assert set(read) == {"type", "defaultDimentionFormat", "main"}
    assert set(read.main.common) == {"padX", "kernelX", "relu"}
    assert again.tensorName == []
    assert "outputName" not in again


def test_odd_values_survive() -> None:
    blob = Table(
        "Blob",
        {
            "dims": [3],
            "dataType": 77,  # a number that the schema has no name for
            "int64s": np.array([-(2**63), 2**63 - 1]),
            "int8s": np.array([-128, 127], np.int8),
            "float32s": np.array([], np.float32),
            "strings": ["", "caf\u00e9", "\udcff not UTF-8"],
        },
    )
    ops = [Table("Op", {"type": 4242, "main": blob}), Table("Op", {"main": Table("Rank")})]
    again = reader.decode(encode(Table("Net", {"oplists": ops})))
    read = again.oplists[0]
    assert read.type == 4242
    assert read.main.type_name == "Blob"
    assert read.main.dims.tolist() == [3]
    assert read.main.dataType == 77
    assert read.main.int64s.tolist() == [-(2**63), 2**63 - 1]
    assert read.main.int8s.tolist() == [-128, 127]
    assert read.main.float32s.tolist() == []
    assert read.main.strings == ["", "caf\u00e9", "\udcff not UTF-8"]
    assert again.oplists[1].main.type_name == "Rank"
    assert again.oplists[1].main.fields == {}


def test_vectors_are_aligned_for_mnn() -> None:
    vectors = {"float32s": np.ones(3, np.float32), "int64s": np.ones(3, np.int64)}
    for size in range(9):
        blob = Table("Blob", {"uint8s": np.ones(size, np.uint8), **vectors})
        data = encode(Table("Net", {"oplists": [Table("Op", {"name": "x" * size, "main": blob})]}))
        main = reader.decode(data).oplists[0].main
        start = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
        for name in vectors:
            place = main.fields[name].__array_interface__["data"][0] - start
            assert place % main.fields[name].itemsize == 0


def test_a_field_that_the_schema_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="no field colour"):
        encode(Table("Net", {"colour": 1}))


def test_writing_into_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DiskError):
        write(tmp_path / "file" / "llm.mnn", Table("Net"))
