"""Graphs of real model files against MNN's CPU model, on the emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from translate_graphs import TARGET, db

from mnnqnn_tasks.errors import StaleInputError
from mnnqnn_tasks.mnn import cpu, samples
from mnnqnn_tasks.mnn import reader as mnn_reader
from mnnqnn_tasks.mnn.index import index_model
from mnnqnn_tasks.partition.write import partition_model
from mnnqnn_tasks.qnn import netjson, run
from mnnqnn_tasks.translate.files import translate_file, translate_files
from mnnqnn_tasks.translate.registry import unsupported_reason

SHARED = Path(__file__).resolve().parents[1].parent / "shared"
GOLDEN, MODELS = SHARED / "golden", SHARED / "models"
needs_models = pytest.mark.skipif(
    not GOLDEN.exists(), reason=f"the models and IO samples in {SHARED} are absent"
)


def partitioned(model: str, out: Path) -> Path:
    samples_of = {n: GOLDEN / model / "testdir" / str(n) / "input.mnn" for n in (1, 16)}
    partition_model(
        MODELS / model, index_model(MODELS / model), samples_of, (), out, unsupported_reason
    )
    return out


def made(model: str, graph: str, out: Path) -> Path:
    translate_file(
        out / "subgraphs" / f"{graph}.json",
        out / "sources.json",
        MODELS / model,
        out / graph,
        out / "blobs",
    )
    return out / graph / f"{graph}_net.json"


@needs_models
@pytest.mark.parametrize("model", ["tiny-qwen3-w8", "tiny-qwen2-w8", "tiny-llama-w4b64"])
def test_a_layer_computes_what_the_cpu_computes(model: str, tmp_path: Path) -> None:
    out = partitioned(model, tmp_path)
    names = mnn_reader.read(MODELS / model / "llm.mnn").tensorName
    for shape, graphs in ((1, ("graph0", "graph1")), (16, ("graph1_0", "graph1_1"))):
        given = samples.read(GOLDEN / model / "testdir" / str(shape) / "input.mnn")
        nets = [made(model, graph, out) for graph in graphs]
        borders = {
            t.name: names[int(t.name[1:])]
            for net in nets
            for t in (*netjson.load(net).inputs(), *netjson.load(net).outputs())
        }
        wanted = sorted(set(borders.values()) - set(given))
        found = cpu.run_model(
            MODELS / model / "llm.mnn", MODELS / model / "llm.mnn.weight", given, wanted
        )
        values = {t: {**given, **found}[name].values for t, name in borders.items()}
        for net in nets:
            graph = netjson.load(net)
            feeds = {t.name: np.ascontiguousarray(values[t.name]).tobytes() for t in graph.inputs()}
            results = run.execute(net, out / "blobs", TARGET, [feeds])[0]
            for tensor in graph.outputs():
                got = np.frombuffer(results[tensor.name], np.float32)
                assert db(values[tensor.name], got) > 55, (net.name, tensor.name)


@needs_models
def test_the_two_shapes_share_every_blob(tmp_path: Path) -> None:
    model = "tiny-qwen2-w8"
    out = partitioned(model, tmp_path)
    shas = [
        {b.sha256 for b in netjson.load(made(model, g, out)).blobs() if b.size > 1000}
        for g in ("graph1", "graph1_1")
    ]
    assert shas[0] == shas[1] and shas[0]


@needs_models
def test_a_layer_is_a_plain_chain_of_rows(tmp_path: Path) -> None:
    """MNN's reshapes and layout changes around every Linear cost nothing."""
    model = "tiny-qwen2-w8"
    out = partitioned(model, tmp_path)
    graph = netjson.load(made(model, "graph1_1", out))
    types = [n.type for n in graph.nodes]
    assert types.count("MatMul") == 7 and "Transpose" not in types
    assert types.count("Reshape") <= 8 and len(types) <= 46


@needs_models
def test_a_changed_model_is_noticed(tmp_path: Path) -> None:
    model = "tiny-qwen2-w8"
    out = partitioned(model, tmp_path / "build")
    copy = tmp_path / "model"
    copy.mkdir()
    for name in ("llm.mnn", "llm.mnn.weight"):
        (copy / name).write_bytes((MODELS / model / name).read_bytes())
    subgraph = out / "subgraphs" / "graph0.json"
    translate_files(subgraph, out / "sources.json", copy)
    data = bytearray((copy / "llm.mnn.weight").read_bytes())
    data[600] ^= 1
    (copy / "llm.mnn.weight").write_bytes(data)
    with pytest.raises(StaleInputError):
        translate_files(subgraph, out / "sources.json", copy)
    (copy / "llm.mnn.weight").write_bytes(data[:500])
    with pytest.raises(StaleInputError):
        translate_files(subgraph, out / "sources.json", copy)
