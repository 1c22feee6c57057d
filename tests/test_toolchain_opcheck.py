"""All uses of ops in one graph: each gets the verdict that it would get alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from qnn_graphs import Weights, matmul, save

from mnnqnn_tasks.mnn.index import index_model
from mnnqnn_tasks.mnn.inputs import write_inputs
from mnnqnn_tasks.partition.partition import load_partition
from mnnqnn_tasks.partition.signature import unique_ops
from mnnqnn_tasks.qnn import netjson, run
from mnnqnn_tasks.qnn.ir import ScaleOffset
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.toolchain.opcheck import UseGraph, op_uses, refused_ops
from mnnqnn_tasks.translate.files import SourceReader
from mnnqnn_tasks.translate.registry import unsupported_reason
from mnnqnn_tasks.translate.translate import translate

MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny-qwen3-w8"

TARGET = TargetOptions(soc_id=57, dsp_arch="v75")


def test_uses_of_a_model(tmp_path: Path) -> None:
    samples = {seq: tmp_path / f"{seq}.mnn" for seq in (1, 16)}
    for seq, path in samples.items():
        write_inputs(MODEL, seq, path)
    index = index_model(MODEL)
    made = load_partition(MODEL, index, samples, supported=unsupported_reason)
    uses, text = op_uses(made, index, MODEL)
    (tmp_path / "net.json").write_text(text)
    together = run.validate([tmp_path / "net.json"], TARGET)[0]

    read = SourceReader(made.sources.to_json(), MODEL)
    alone = dict(sorted(unique_ops(made.subgraphs).items()))
    assert list(uses) == list(alone)
    graphs = [translate(subgraph, read).graph for subgraph in alone.values()]
    nets = [tmp_path / f"{number}.json" for number in range(len(graphs))]
    for graph, net in zip(graphs, nets, strict=True):
        netjson.save(graph, net)
    for nodes, verdicts in zip(uses.values(), run.validate(nets, TARGET), strict=True):
        assert isinstance(nodes, list)
        assert [(v.type, v.ok) for v in verdicts] == [
            (together[node].type, together[node].ok) for node in nodes
        ]


def test_a_refused_use_among_others(tmp_path: Path) -> None:
    weights = Weights(64, 64)
    good = matmul("good", 16, weights, tmp_path / "blobs")
    weights.quant = ScaleOffset(0.25, 0)  # float activations want a scale per channel
    bad = matmul("bad", 16, weights, tmp_path / "blobs")
    longer = matmul("longer", 32, weights, tmp_path / "blobs")

    made = UseGraph()
    uses = {"good": made.add(good), "bad": made.add(bad), "longer": made.add(longer)}
    assert made.add(good) == uses["good"]
    assert [len(nodes) for nodes in uses.values()] == [3, 3, 3]
    statics = [t for t in made.graph.tensors if t.kind == "STATIC"]
    assert len(statics) == 2, "the two refused ones have one weight"

    net = save(tmp_path, made.graph)
    (tmp_path / "uses.json").write_text(json.dumps({**uses, "none": "no translation"}))
    refused = refused_ops(tmp_path / "uses.json", net, TARGET)
    assert list(refused) == ["bad", "longer", "none"]
    assert refused["bad"].startswith("MatMul: 3110 ")
    assert refused["none"] == "no translation"


@pytest.mark.parametrize("uses", [{}, {"a": "no translation"}], ids=str)
def test_nothing_to_ask(tmp_path: Path, uses: dict[str, str]) -> None:
    (tmp_path / "uses.json").write_text(json.dumps(uses))
    assert refused_ops(tmp_path / "uses.json", tmp_path / "none", TARGET) == uses
