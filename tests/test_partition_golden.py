"""The cuts of real models, against what MNN's own tool recorded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from partition_nets import GOLDEN, MODELS, SHARED, llm_sample

from mnnqnn_tasks.errors import StaleInputError
from mnnqnn_tasks.mnn import reader
from mnnqnn_tasks.mnn.index import index_model
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.partition.partition import Partition, load_partition
from mnnqnn_tasks.partition.plan import Plan
from mnnqnn_tasks.partition.subgraph_json import from_json
from mnnqnn_tasks.partition.write import partition_model

RECORDED = ("tiny-qwen3-w8", "tiny-qwen2-w8", "tiny-llama-w4b64", "tiny-qwen3-smooth")
LAYERS = {**dict.fromkeys((*RECORDED, "tiny-qwen3-w4asym"), 3), "smollm2-135m-w8": 30}

pytestmark = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the folder ../shared with the models is absent"
)


def recorded_samples(model: str) -> dict[int, Path]:
    return {n: GOLDEN / model / "testdir" / str(n) / "input.mnn" for n in (1, 16)}


def divide(model: str, folder: Path) -> Plan:
    source = MODELS / model
    return partition_model(source, index_model(source), recorded_samples(model), (), folder)


@pytest.fixture(params=RECORDED)
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_merges_are_those_of_mnn(model: str, tmp_path: Path) -> None:
    divide(model, tmp_path)
    ours = json.loads((tmp_path / "npu_postreat.json").read_text())
    assert ours == json.loads((GOLDEN / model / "npu_postreat.json").read_text())
    assert list(ours) == ["type", "merge", "cache"]


def plain(value: Any) -> Any:
    if isinstance(value, Table):
        return {name: plain(v) for name, v in value.fields.items()}
    return (
        [plain(v) for v in value]
        if isinstance(value, list)
        else getattr(value, "tolist", lambda: value)()
    )


def plugins(path: Path) -> dict[str, tuple[Any, list[str], list[str]]]:
    """Parameters of each Plugin op, and the names of the tensors that it connects."""
    net = reader.read(path)
    return {
        op.name: (
            plain(op.main),
            [net.tensorName[i] for i in op.inputIndexes],
            [net.tensorName[i] for i in op.outputIndexes],
        )
        for op in net.oplists
        if op.type == "Plugin"
    }


def test_plugins_of_the_host_model_are_those_of_mnn(model: str, tmp_path: Path) -> None:
    divide(model, tmp_path)
    ours = plugins(tmp_path / "qnn" / "llm.mnn")
    theirs = plugins(GOLDEN / model / "qnn" / "llm.mnn")
    assert list(ours) == list(theirs)
    for name in theirs:
        assert ours[name] == theirs[name]


def test_borders_of_every_graph_are_those_of_mnn(model: str, tmp_path: Path) -> None:
    """Inputs and outputs of the QNN graphs that MNN wrote: name, type, dimensions."""
    plan = divide(model, tmp_path)
    record = json.loads((GOLDEN / model / "graphs.json").read_text())
    recorded = {g["graph"]: g for g in record["graphs"]}
    types = {"float32": "FLOAT_32", "int32": "INT_32"}
    assert sorted(plan.graphs()) == sorted(recorded)
    for graph in plan.graphs():
        subgraph = from_json(json.loads((tmp_path / "subgraphs" / f"{graph}.json").read_text()))
        for kind, ids in (("APP_WRITE", subgraph.inputs), ("APP_READ", subgraph.outputs)):
            theirs = {
                t["name"]: (t["dataType"], t["dims"])
                for t in recorded[graph]["tensors"]
                if t["type"] == kind
            }
            ours = {
                f"t{t.boundary}": (types[t.dtype], list(t.dims))
                for t in (subgraph.tensors[i] for i in ids)
            }
            assert ours == theirs, (graph, kind)


def load(model: str, folder: Path, lengths: tuple[int, ...] = (1, 16)) -> Partition:
    source = MODELS / model
    hidden = json.loads((source / "llm_config.json").read_text())["hidden_size"]
    samples = {n: llm_sample(folder / str(n) / "input.mnn", hidden, n) for n in lengths}
    return load_partition(source, index_model(source), samples)


@pytest.mark.parametrize(("model", "layers"), LAYERS.items())
def test_every_model_is_cut_at_its_attentions_and_its_logits(
    model: str, layers: int, tmp_path: Path
) -> None:
    plan = load(model, tmp_path, (1, 48, 128)).plan
    assert len(plan.npu_pieces()) == layers + 2
    host = [[op.type for op in p.ops] for p in plan.pieces if p.place == "host"]
    assert host == [["Attention"]] * layers + [["StridedSlice"]]
    logits = plan.pieces[-1]
    assert [p.name for p in logits.outputs] == ["logits"]
    assert [d[1] for d in logits.outputs[0].dims if d] == [1, 48, 128]
    convolutions = sum(op.type == "Convolution" for p in plan.npu_pieces() for op in p.ops)
    assert convolutions == 7 * layers + 1
    assert not plan.host_reads_weights()


def test_quantization_stands_on_float_tensors_alone(tmp_path: Path) -> None:
    made = load("tiny-qwen3-smooth", tmp_path)
    infos = {int(d.index): d.quantInfo for d in made.view.net.extraTensorDescribe}
    seen = 0
    for subgraph in made.subgraphs:
        for tensor in subgraph.tensors:
            if tensor.dtype != "float32":
                assert tensor.quant is None
            elif tensor.boundary in infos:
                assert tensor.quant is not None
                assert tensor.quant.scale == infos[tensor.boundary].scale
                seen += 1
    assert seen > 20


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b with 'quotes'"):
        divide("tiny-qwen2-w8", tmp_path / name)
    first, second = (
        {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        for root in (tmp_path / "a", tmp_path / "b with 'quotes'")
    )
    assert first == second and len(first) == 14


def test_what_an_older_cut_left_is_removed(tmp_path: Path) -> None:
    for name in ("subgraphs/graph7.json", "qnn/graph1_9/graph1_9.cpp", "qnn/graph1/keep"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
    divide("tiny-qwen2-w8", tmp_path)
    assert not (tmp_path / "subgraphs/graph7.json").exists()
    assert not (tmp_path / "qnn/graph1_9").exists()
    assert (tmp_path / "qnn/graph1/keep").exists(), "a graph that is still in the plan"


def test_an_unchanged_file_is_left_alone(tmp_path: Path) -> None:
    divide("tiny-qwen2-w8", tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.json")}
    divide("tiny-qwen2-w8", tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.json")} == before


def test_plan_json_keeps_its_schema(tmp_path: Path) -> None:
    divide("tiny-qwen3-w8", tmp_path)
    plan = json.loads((tmp_path / "plan.json").read_text())
    schema = Path(__file__).parents[1] / "schemas" / "plan.schema.json"
    jsonschema.validate(plan, json.loads(schema.read_text()))


def test_sources_lead_to_the_bytes(tmp_path: Path) -> None:
    import hashlib

    divide("tiny-llama-w4b64", tmp_path)
    sources = json.loads((tmp_path / "sources.json").read_text())
    assert {s["file"] for s in sources.values()} == {"llm.mnn", "llm.mnn.weight"}
    for sha256, place in sources.items():
        data = (MODELS / "tiny-llama-w4b64" / place["file"]).read_bytes()
        part = data[place["offset"] : place["offset"] + place["size"]]
        assert hashlib.sha256(part).hexdigest() == sha256


def test_every_reference_of_a_subgraph_has_a_source(tmp_path: Path) -> None:
    divide("tiny-qwen3-w8", tmp_path)
    sources = json.loads((tmp_path / "sources.json").read_text())
    found = set()
    for path in (tmp_path / "subgraphs").iterdir():
        subgraph = json.loads(path.read_text())
        found |= {w["sha256"] for op in subgraph["ops"] for w in op["weights"].values()}
        found |= {
            t["const"]["sha256"] for t in subgraph["tensors"] if isinstance(t.get("const"), dict)
        }
    assert found == set(sources)


def test_a_model_that_changed_since_it_was_indexed(tmp_path: Path) -> None:
    source = MODELS / "tiny-qwen2-w8"
    index = index_model(source)
    shutil.copyfile(MODELS / "tiny-qwen3-w8" / "llm.mnn", tmp_path / "llm.mnn")
    with pytest.raises(StaleInputError, match="changed while"):
        partition_model(tmp_path, index, recorded_samples(source.name), (), tmp_path / "out")
    assert not (tmp_path / "out").exists()
