"""The sources that we write ourselves are read back as the graphs that they were made of."""

from __future__ import annotations

import json
import random
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_translate_models import MODELS, partitioned
from verify_build import DEMO, build

from mnnqnn_tasks.qnn import netjson
from mnnqnn_tasks.qnn.floats import f32
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
from mnnqnn_tasks.toolchain.cppnet.parse import parse
from mnnqnn_tasks.toolchain.cppnet.sources import import_sources
from mnnqnn_tasks.translate import emit_cpp
from mnnqnn_tasks.translate.files import translate_file

TINY = ("tiny-qwen2-w8", "tiny-llama-w4b64", "tiny-qwen3-smooth", "tiny-qwen3-w8")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build folder of the bundled model, translated."""
    return build(DEMO, tmp_path_factory.mktemp("demo"), (16,)).build


def compare(build: Path, out: Path) -> int:
    """Import ``build`` into ``out``; every net.json must be there again, byte for byte."""
    merges = json.loads((build / "npu_postreat.json").read_text())["merge"]
    made = import_sources(build, out)
    assert {b.path: [f"qnn/{g.name}" for g in b.graphs] for b in made} == merges
    graphs = [graph for binary in made for graph in binary.graphs]
    for graph in graphs:
        ours = build / "qnn" / graph.name / f"{graph.name}_net.json"
        assert graph.net.read_bytes() == ours.read_bytes(), graph.name
        loaded = netjson.load(graph.net)
        assert set(graph.blobs) == {blob.sha256 for blob in loaded.blobs()}
        for digest in graph.blobs:
            assert (out / "blobs" / digest).read_bytes() == (build / "blobs" / digest).read_bytes()
    return len(graphs)


def test_the_bundled_model_comes_back(demo: Path, tmp_path: Path) -> None:
    assert compare(demo, tmp_path) == 10


def test_raw_data_may_be_packed(demo: Path, tmp_path: Path) -> None:
    """As npu_convert.py packs it: ``tar -cf graph0.bin *.raw``, then the raw files go."""
    subprocess.run(["cp", "-r", str(demo), str(tmp_path / "b")], check=True)
    for folder in (tmp_path / "b" / "qnn").iterdir():
        if folder.is_dir():
            names = sorted(path.name for path in folder.glob("*.raw"))
            subprocess.run(["tar", "-cf", f"{folder.name}.bin", *names], cwd=folder, check=True)
            for name in names:
                (folder / name).unlink()
    assert compare(tmp_path / "b", tmp_path / "out") == 10


def test_a_second_import_changes_nothing(demo: Path, tmp_path: Path) -> None:
    import_sources(demo, tmp_path)
    before = {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in tmp_path.rglob("*")}
    import_sources(demo, tmp_path)
    after = {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in tmp_path.rglob("*")}
    files = [p for p in before if p.is_file()]
    assert len(files) > 20 and all(before[p] == after[p] for p in files)


@pytest.mark.skipif(not MODELS.exists(), reason=f"the models in {MODELS} are absent")
@pytest.mark.parametrize("model", TINY)
def test_every_scheme_of_quantization_comes_back(model: str, tmp_path: Path) -> None:
    out = partitioned(model, tmp_path / "build")
    merges = json.loads((out / "npu_postreat.json").read_text())["merge"]
    for name in (Path(g).name for graphs in merges.values() for g in graphs):
        subgraph = out / "subgraphs" / f"{name}.json"
        folder = out / "qnn" / name
        translate_file(subgraph, out / "sources.json", MODELS / model, folder, out / "blobs")
    assert compare(out, tmp_path / "out") == 10


def _floats(random_: random.Random) -> Iterator[float]:
    """Positive normal and denormal numbers of float32, the extremes first."""
    yield from map(f32, (1e-45, 1.1754943508222875e-38, 3.4028234663852886e38, 5e-07, 1.0))
    while True:
        yield struct.unpack("<f", struct.pack("<I", random_.randrange(1, 0x7F800000)))[0]


def _quants(random_: random.Random, n: int) -> Iterator[Quant]:
    scale = _floats(random_)
    scales = tuple(next(scale) for _ in range(n))
    offsets = tuple(random_.choice((-(1 << 31), (1 << 31) - 1, 0, -32768)) for _ in range(n))
    yield ScaleOffset(next(scale), offsets[0])
    yield AxisScaleOffset(0, scales, offsets)
    yield BwAxisScaleOffset(0, random_.randint(1, 8), scales, offsets)
    for bits in (4, 8, 12, 16):
        blocks = tuple(random_.randrange(1 << bits) for _ in range(3 * n))
        yield BlockwiseExpansion(0, scales, offsets, 3, bits, blocks)


def every_kind(seed: int) -> Graph:
    """A graph with every encoding, kind and type of parameter that the IR has."""
    random_ = random.Random(seed)
    graph = Graph('odd "name"\\\n中')
    graph.tensors.append(Tensor("t0", "APP_WRITE", "INT_32", (1, 4)))
    for i, quant in enumerate(_quants(random_, random_.randint(1, 20))):
        rows = len(getattr(quant, "scales", (1,)))
        tensor = Tensor(
            f"w{i}", "STATIC", "SFIXED_POINT_8", (rows, 4), quant, Blob("0" * 64, rows * 4)
        )
        graph.tensors.append(tensor)
    graph.tensors.append(Tensor("inner", "NATIVE", "UFIXED_POINT_16", (4,), ScaleOffset(0.5, -7)))
    graph.tensors.append(Tensor("t1", "APP_READ", "FLOAT_32", (1, 4)))
    low, high = -(1 << 31), (1 << 31) - 1
    params = (
        ScalarParam("f", "FLOAT_32", next(_floats(random_))),
        ScalarParam("negative", "FLOAT_32", -0.0),
        ScalarParam("i", "INT_32", low),
        ScalarParam("u", "UINT_32", (1 << 32) - 1),
        ScalarParam("yes", "BOOL_8", True),
        TensorParam("ints", "INT_32", (2, 1), (low, high)),
        TensorParam("uints", "UINT_32", (9,), tuple(range(9))),
        TensorParam("floats", "FLOAT_32", (2,), (-1.5, f32(1e-45))),
    )
    graph.nodes.append(Node("n0", "First", ("t0",), ("inner",)))
    names = tuple(t.name for t in graph.tensors if t.kind == "STATIC")
    graph.nodes.append(Node("n1", "Odd", ("inner", *names), ("t1",), params, "other.package"))
    return graph


@pytest.mark.parametrize("seed", range(20))
def test_every_number_comes_back_to_the_last_bit(seed: int) -> None:
    graph = every_kind(seed)
    source = parse(emit_cpp.source(graph).encode(), "g.cpp")
    found = source.with_blobs({t.name: t.blob for t in graph.tensors if t.blob is not None})
    assert found == graph
    assert netjson.dumps(found) == netjson.dumps(graph)
    assert netjson.loads(netjson.dumps(found)) == graph
