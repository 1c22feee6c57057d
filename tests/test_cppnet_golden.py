"""The sources that MNN's own tool wrote, as recorded in ``../shared/golden``: read and linked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mnn_record import compile_double, known_contents, known_params
from test_translate_models import GOLDEN, MODELS, partitioned
from translate_graphs import TARGET, db

from mnnqnn_tasks.errors import QnnError
from mnnqnn_tasks.mnn import cpu, samples
from mnnqnn_tasks.mnn import reader as mnn_reader
from mnnqnn_tasks.qnn import netjson, run
from mnnqnn_tasks.qnn.binary import GraphInfo
from mnnqnn_tasks.qnn.floats import f32_tuple
from mnnqnn_tasks.qnn.ir import (
    AxisScaleOffset,
    BwAxisScaleOffset,
    Graph,
    ScaleOffset,
    Tensor,
    TensorParam,
)
from mnnqnn_tasks.toolchain import native
from mnnqnn_tasks.toolchain.cppnet.sources import ImportedBinary, import_sources
from mnnqnn_tasks.translate.files import translate_file

pytestmark = pytest.mark.skipif(not GOLDEN.exists(), reason=f"the record in {GOLDEN} is absent")

#: Model and binary that cannot be linked: MNN's own mistake.
REFUSED = ("tiny-qwen3-smooth", "graph0.bin")
RECORDED = ("tiny-qwen3-w8", "tiny-qwen2-w8", "tiny-llama-w4b64", "tiny-qwen3-smooth")


@dataclass(frozen=True)
class Imported:
    """A model's recorded graphs, written by the double and read again."""

    model: str
    out: Path
    record: dict[str, Any]
    binaries: list[ImportedBinary]
    #: Digests of the raw data whose bytes were found.
    known: set[str]

    def graphs(self) -> list[Graph]:
        return [netjson.load(g.net) for b in self.binaries for g in b.graphs]


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Gives a model's `Imported`, made once."""
    made: dict[str, Imported] = {}

    def get(model: str) -> Imported:
        if model not in made:
            made[model] = _imported(model, tmp_path_factory.mktemp(model))
        return made[model]

    return get


def _imported(model: str, root: Path) -> Imported:
    ours = partitioned(model, root / "ours")
    graphs = []
    for subgraph in sorted((ours / "subgraphs").iterdir()):
        folder = ours / "qnn" / subgraph.stem
        translate_file(subgraph, ours / "sources.json", MODELS / model, folder, ours / "blobs")
        graphs.append(netjson.load(folder / f"{folder.name}_net.json"))
    known = known_contents(MODELS / model, graphs, ours / "blobs")
    record = compile_double(GOLDEN / model, root / "mnn", known, known_params(graphs))
    binaries = import_sources(root / "mnn", root / "out")
    return Imported(model, root / "out", record, binaries, set(known))


def encoding(tensor: Tensor) -> dict[str, Any]:
    """A tensor's encoding as the record has it."""
    quant = tensor.quant
    if isinstance(quant, ScaleOffset):
        return {"encoding": "SCALE_OFFSET", "scale": quant.scale, "offset": quant.offset}
    if isinstance(quant, AxisScaleOffset):
        pairs = [list(pair) for pair in zip(quant.scales, quant.offsets, strict=True)]
        return {"encoding": "AXIS_SCALE_OFFSET", "axis": quant.axis, "scaleOffset": pairs}
    if isinstance(quant, BwAxisScaleOffset):
        assert not any(quant.offsets)
        name = "BW_AXIS_SCALE_OFFSET"
        scales = list(quant.scales)
        return {"encoding": name, "axis": quant.axis, "bitwidth": quant.bitwidth, "scales": scales}
    assert quant is None
    return {"encoding": "UNDEFINED"}


def recorded_encoding(tensor: dict[str, Any], matmul_weights: set[str]) -> dict[str, Any]:
    """What the record says, with float32 scales and the axis that MNN means (see `axes`)."""
    keys = ("encoding", "scale", "offset", "axis", "bitwidth", "scales", "scaleOffset")
    made = {key: tensor[key] for key in keys if key in tensor}
    if "scale" in made:
        (made["scale"],) = f32_tuple([made["scale"]])
    if "scales" in made:
        made["scales"] = list(f32_tuple(made["scales"]))
    if "scaleOffset" in made:
        scales = f32_tuple([scale for scale, _ in made["scaleOffset"]])
        made["scaleOffset"] = [
            [s, o] for s, (_, o) in zip(scales, made["scaleOffset"], strict=True)
        ]
    if tensor["name"] in matmul_weights and "axis" in made:
        assert made["axis"] == 0
        made["axis"] = 1
    return made


@pytest.mark.parametrize("model", RECORDED)
def test_every_field_is_read_as_it_was_recorded(model: str, imports: Any) -> None:
    made: Imported = imports(model)
    graphs = {graph.name: graph for graph in made.graphs()}
    assert sorted(graphs) == sorted(made.record) and len(graphs) == 10
    for name, record in made.record.items():
        graph = graphs[name]
        params = {t["name"]: t for t in record["tensors"] if t["name"].endswith("_PARAM")}
        recorded = [t for t in record["tensors"] if t["name"] not in params]
        weights = {n["inputs"][1] for n in record["nodes"] if n["type"] == "MatMul"}
        assert [t.name for t in graph.tensors] == [t["name"] for t in recorded]
        for tensor, one in zip(graph.tensors, recorded, strict=True):
            assert (tensor.kind, tensor.dtype) == (one["type"], one["dataType"]), tensor.name
            assert list(tensor.dims) == one["dims"], tensor.name
            assert encoding(tensor) == recorded_encoding(one, weights), tensor.name
            assert (tensor.blob is not None) == ("raw" in one), tensor.name
            if tensor.blob is not None:
                raw = record["raw"][one["raw"]]
                assert tensor.blob.size == raw["bytes"]
                assert (tensor.blob.sha256 == raw["sha256"]) == (raw["sha256"] in made.known)
        fields = [(n.name, n.type, [*n.inputs], [*n.outputs]) for n in graph.nodes]
        wanted = [(n["name"], n["type"], n["inputs"], n["outputs"]) for n in record["nodes"]]
        assert fields == wanted
        assert [[p.name for p in n.params] for n in graph.nodes] == [
            n["params"] for n in record["nodes"]
        ]
        read = [p for n in graph.nodes for p in n.params if isinstance(p, TensorParam)]
        key = [(p.dtype, p.dims) for p in read]
        assert sorted(key) == sorted((t["dataType"], tuple(t["dims"])) for t in params.values())


@pytest.mark.parametrize("model", RECORDED)
def test_recorded_graphs_link_as_they_are(model: str, imports: Any, tmp_path: Path) -> None:
    """But for those that QNN refuses, see below."""
    made: Imported = imports(model)
    for binary in made.binaries:
        name = Path(binary.path).name
        if (model, name) != REFUSED:
            link(made, binary, tmp_path)
            info = run.inspect(tmp_path / name)
            assert [g.name for g in info.graphs] == [g.name for g in binary.graphs]
            for graph in info.graphs:
                assert borders(graph) == recorded_borders(made.record[graph.name])


def borders(graph: GraphInfo) -> dict[str, list[tuple[str, str, list[int]]]]:
    """Name, type and dims of what passes a binary's border, in its order."""
    sides = {"APP_WRITE": graph.inputs, "APP_READ": graph.outputs}
    return {k: [(t.name, t.dtype, list(t.dims)) for t in side] for k, side in sides.items()}


def recorded_borders(record: dict[str, Any]) -> dict[str, list[tuple[str, str, list[int]]]]:
    return {
        kind: [
            (t["name"], t["dataType"], t["dims"]) for t in record["tensors"] if t["type"] == kind
        ]
        for kind in ("APP_WRITE", "APP_READ")
    }


def link(made: Imported, binary: ImportedBinary, folder: Path) -> None:
    """The stage, as a task runs it for graphs that MNN wrote."""
    nets, out = [str(g.net) for g in binary.graphs], folder / Path(binary.path).name
    target = {**TARGET.to_json(), "name": "t57"}
    native.link(nets, str(made.out / "blobs"), target, str(out), f"{out}.json", ask=True)


def test_the_graph_that_qnn_refuses_is_named_with_its_op(imports: Any, tmp_path: Path) -> None:
    """A scale on the position ids made MNN convert them: Reshape from INT_32 to FLOAT_32."""
    made: Imported = imports(REFUSED[0])
    with pytest.raises(QnnError) as caught:
        link(made, made.binaries[0], tmp_path)
    shown = str(caught.value)
    assert "QNN refuses op _rotary_Reshape_output_0_Reshape (Reshape) of graph0" in shown
    assert "3110" in shown and "refused as well: BinaryOp94 (ElementWiseMod) of graph1_0" in shown
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("model", ["tiny-qwen2-w8", "tiny-qwen3-w8"])
def test_all_raw_data_of_the_float_models_is_what_mnn_wrote(model: str, imports: Any) -> None:
    """So that the next test runs exactly MNN's graphs."""
    made: Imported = imports(model)
    raws = [raw["sha256"] for graph in made.record.values() for raw in graph["raw"].values()]
    assert set(raws) <= made.known and len(raws) > 100


def test_recorded_graphs_compute_what_the_cpu_computes(imports: Any) -> None:
    """MNN's graphs of qwen2, through the parser and QNN's emulator: 58 to 60 dB were measured."""
    made: Imported = imports("tiny-qwen2-w8")
    folder = MODELS / made.model
    names = mnn_reader.read(folder / "llm.mnn").tensorName
    for shape, wanted in ((1, ("graph0", "graph1")), (16, ("graph1_0", "graph1_1"))):
        given = samples.read(GOLDEN / made.model / "testdir" / str(shape) / "input.mnn")
        nets = [g.net for b in made.binaries for g in b.graphs if g.name in wanted]
        graphs = [netjson.load(net) for net in nets]
        ports = [t.name for g in graphs for t in (*g.inputs(), *g.outputs())]
        outside = {port: names[int(port[1:])] for port in ports}
        asked = sorted(set(outside.values()) - set(given))
        found = cpu.run_model(folder / "llm.mnn", folder / "llm.mnn.weight", given, asked)
        values = {t: {**given, **found}[name].values for t, name in outside.items()}
        for net, graph in zip(nets, graphs, strict=True):
            feeds = {t.name: np.ascontiguousarray(values[t.name]).tobytes() for t in graph.inputs()}
            (results,) = run.execute(net, made.out / "blobs", TARGET, [feeds])
            for tensor in graph.outputs():
                got = np.frombuffer(results[tensor.name], np.float32)
                assert db(values[tensor.name], got) > 55, (graph.name, tensor.name)
