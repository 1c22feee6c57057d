"""Verification of the bundled model with the real libraries, whole and damaged."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from tasks_project import exported
from verify_build import DEMO, REPO, build

from mnnqnn_tasks.errors import VerifyError
from mnnqnn_tasks.files import sha256_bytes
from mnnqnn_tasks.qnn import netjson
from mnnqnn_tasks.qnn.ir import AxisScaleOffset, Blob
from mnnqnn_tasks.verify.hostmodel import load
from mnnqnn_tasks.verify.run import Options, Subject, run, verify
from mnnqnn_tasks.verify.thresholds import Thresholds


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return build(DEMO, tmp_path_factory.mktemp("demo") / "p", [16])


@pytest.fixture
def copy(subject: Subject, tmp_path: Path) -> Subject:
    """A build folder that a test may damage."""
    shutil.copytree(subject.build, tmp_path / "build")
    return replace(subject, build=tmp_path / "build")


def test_the_bundled_model_passes(subject: Subject) -> None:
    out, seen = io.StringIO(), []
    report = run(subject, Options(), out=out, progress=seen.append)
    assert report.passed()
    shapes = {(g.graph, g.shape) for g in report.graphs}
    assert shapes >= {("graph0", 1), ("graph1_0", 16), ("graph1_4", 16)}
    assert len(report.graphs) == len(shapes) >= 10
    snrs = [o.found.snr_db for g in report.graphs for o in g.outputs]
    assert min(snrs) >= 50
    assert [c.shape for c in report.chains] == [1, 16]
    assert all(c.outputs[0].found.cosine >= 0.999 for c in report.chains)
    # Every output is judged: what decode at position 0 leaves zero, a later token shows.
    assert report.not_exercised() == []
    assert out.getvalue().splitlines()[-1] == "passed"
    assert "graph1_3" in seen
    value = json.loads(subject.report.read_text("utf-8"))
    schema = json.loads((REPO / "schemas" / "report.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(value)
    assert value["passed"] is True
    assert set(value["libraries"]) == {"MNN", "onnxruntime-qnn"}


def test_a_threshold_is_the_users(subject: Subject) -> None:
    strict = Options(shapes=(1,), thresholds=Thresholds(chain_cosine=1.5))
    report = verify(subject, strict)
    (problem,) = report.problems()
    assert problem == "chain of 1 tokens logits (logits): cosine 1.00000 is below 1.5"


def _net(subject: Subject, graph: str) -> Path:
    return subject.build / "qnn" / graph / f"{graph}_net.json"


def test_a_changed_weight_is_found_and_named(copy: Subject) -> None:
    path = _net(copy, "graph1_1")
    graph = netjson.load(path)
    tensor = max((t for t in graph.tensors if t.blob), key=lambda t: t.size)
    assert tensor.blob is not None
    data = np.fromfile(copy.build / "blobs" / tensor.blob.sha256, np.uint8)
    data[: data.size // 4] ^= 0x40
    blob = Blob(sha256_bytes(data.tobytes()), tensor.blob.size)
    (copy.build / "blobs" / blob.sha256).write_bytes(data.tobytes())
    graph.tensors[graph.tensors.index(tensor)] = replace(tensor, blob=blob)
    netjson.save(graph, path)
    with pytest.raises(VerifyError) as caught:
        run(copy, Options(shapes=(16,)), out=io.StringIO())
    assert caught.value.why is not None
    assert "graph1_1 t" in caught.value.why
    value = json.loads(copy.report.read_text("utf-8"))
    failed = {
        g["graph"] for g in value["graphs"] if any(o["status"] == "failed" for o in g["outputs"])
    }
    # Graphs are judged by the CPU's activations: the error does not spread.
    assert failed == {"graph1_1"}
    assert value["passed"] is False


def test_a_changed_scale_is_found_and_named(copy: Subject) -> None:
    last = load(copy.build / "qnn" / "llm.mnn").plugins[-1].graphs[0]
    path = _net(copy, last)
    graph = netjson.load(path)
    tensor = next(t for t in graph.tensors if isinstance(t.quant, AxisScaleOffset))
    assert isinstance(tensor.quant, AxisScaleOffset)
    scales = tuple(scale * 1.02 for scale in tensor.quant.scales)
    graph.tensors[graph.tensors.index(tensor)] = replace(
        tensor, quant=replace(tensor.quant, scales=scales)
    )
    netjson.save(graph, path)
    report = verify(copy, Options(shapes=(1,)))
    (problem,) = [p for p in report.problems() if not p.startswith("chain")]
    assert problem.startswith(f"{last} t")
    assert "(logits): SNR 34." in problem  # 20 log10(50)


def test_a_graph_that_cannot_run_is_a_result_and_the_others_are_judged(copy: Subject) -> None:
    graph = netjson.load(_net(copy, "graph1_1"))
    blob = next(t.blob for t in graph.tensors if t.blob)
    (copy.build / "blobs" / blob.sha256).unlink()
    report = verify(copy, Options(shapes=(16,)))
    broken = [g for g in report.graphs if g.error]
    assert "graph1_1" in {g.graph for g in broken}
    assert all(blob.sha256 in (g.error or "") for g in broken)
    judged = [g for g in report.graphs if not g.error]
    assert judged
    assert all(o.status == "passed" for g in judged for o in g.outputs)
    assert report.chains[0].error is not None
    assert not report.passed()


def test_a_text_and_a_prompt(subject: Subject, tmp_path: Path) -> None:
    file = tmp_path / "文 本.txt"
    file.write_text("the lazy dog", "utf-8")
    report = verify(subject, Options(shapes=(1,), text=str(file)))
    assert report.passed()
    assert report.sample.startswith("text of ")


def test_a_prompt_that_is_too_long_is_an_error(subject: Subject) -> None:
    with pytest.raises(VerifyError, match="does not fit") as caught:
        verify(subject, Options(prompt="hello world " * 20))
    assert caught.value.why is not None
    assert "largest chunk 16" in caught.value.why


def test_the_command_says_what_is_wrong_by_its_exit_code(tmp_path: Path) -> None:
    project = exported(tmp_path / "p")
    passed = project.doit("verify_qnn", "--shape", "1", "m:a")
    assert passed.code == 0, passed.text
    assert passed.text.rstrip().endswith("passed")
    failed = project.doit("verify_qnn", "--shape", "1", "--graph-snr-db", "200", "m")
    assert failed.code == 1, failed.text
    assert "is below 200 dB" in failed.text
    assert "Traceback" not in failed.text
    assert json.loads((project.build / "verify" / "a.json").read_text("utf-8"))["problems"]
    wrong = project.doit("verify_qnn", "--graph-snr-db", "much", "m")
    assert wrong.code != 0
    assert "'much' is no threshold" in wrong.text


def test_a_shape_that_was_not_exported_is_an_error(subject: Subject) -> None:
    with pytest.raises(VerifyError, match="not exported for 32 tokens"):
        verify(subject, Options(shapes=(32,)))
