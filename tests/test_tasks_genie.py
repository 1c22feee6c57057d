"""Pipelines of ``kind: genie``, from graphs to a bundle that the real libGenie loads."""

from __future__ import annotations

import functools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from external_doubles import Tools
from genie_cases import write_files
from genie_models import HEAD_DIM, VOCABULARY, graph, split
from onnx import TensorProto, helper
from qnn_graphs import put, save
from referencing import Registry, Resource
from tasks_project import REPO, Project

from mnnqnn_tasks.errors import GenieError, PipelineError
from mnnqnn_tasks.genie import onnx_name
from mnnqnn_tasks.qnn.ir import Graph, Node, TensorParam
from mnnqnn_tasks.spec.check import violations
from mnnqnn_tasks.spec.genie import GeniePipeline
from mnnqnn_tasks.spec.load import load_any, load_pipeline
from mnnqnn_tasks.spec.schemas import schema
from mnnqnn_tasks.tasks import session
from mnnqnn_tasks.tasks.geniechain import sources
from mnnqnn_tasks.tasks.geniechain.compiler import named_by
from mnnqnn_tasks.tasks.tools import digest_of

TARGET = {"name": "a", "soc_id": 57, "optimization_level": 1, "weight_sharing": False}


def filled(made: Graph, blobs: Path, step: int = 1) -> Graph:
    """A graph that does the same, or something else with another ``step``; with its weights."""
    weights = np.roll(np.eye(VOCABULARY), step, axis=1).astype(np.float16)
    tensors = [
        replace(t, blob=put(blobs, weights)) if t.kind == "STATIC" else t for t in made.tensors
    ]
    return Graph(made.name, tensors, [_taking(node, step) for node in made.nodes])


def _taking(node: Node, element: int) -> Node:
    """A node that repeats another element of its input."""
    if not node.name.endswith(".take"):
        return node
    (ranges,) = node.params
    assert isinstance(ranges, TensorParam)
    values = (*ranges.values[:-3], element, element + 1, 1)
    return replace(node, params=(replace(ranges, values=values),))


def pipeline(**changes: Any) -> dict[str, Any]:
    """What a pipeline says; ``model`` has changes of the model, None takes a key away."""
    model = {
        "name": "m",
        "context_lengths": [64],
        "sequence_lengths": [16, 1],
        "splits": 2,
        "net": "../graphs/{type}_{split}_net.json",
        "tokenizer": "../graphs/tokenizer.json",
        "vocabulary": VOCABULARY,
        "tokens": {"bos": 1, "eos": [2]},
        "head_dim": HEAD_DIM,
        "rope_theta": 10000,
        **changes.pop("model", {}),
    }
    value = {
        "version": 1,
        "kind": "genie",
        "models": [{key: said for key, said in model.items() if said is not None}],
        "targets": [TARGET],
        "compile": {"native": True},
        "build_dir": "../build",
        "dist_dir": "../dist",
        **changes,
    }
    return {key: said for key, said in value.items() if said is not None}


class Genie(Project):
    """A folder with ``dodo.py``, ``pipelines/g.yaml`` and the graphs of a model that counts."""

    @classmethod
    def make(cls, root: Path, splits: int = 2, **changes: Any) -> Genie:
        project = cls(root)
        (root / "pipelines").mkdir(parents=True)
        shutil.copyfile(REPO / "dodo.py", root / "dodo.py")
        (root / "graphs").mkdir()
        write_files(root / "graphs")
        for number in range(1, splits + 1):
            project.put(number, splits)
        project.say(**changes)
        return project

    def put(self, number: int, splits: int = 2, step: int = 1) -> None:
        """Write the graphs of a split, under names that the pipeline has to mend."""
        folder = self.root / "graphs"
        for kind, ar in (("prompt", 16), ("token", 1)):
            made = graph(f"{kind}_{number}", split(number, splits, ar, 64))
            save(folder, filled(made, folder / "blobs", step))

    def say(self, file: str = "g.yaml", **changes: Any) -> None:
        text = json.dumps(pipeline(**changes))
        (self.root / "pipelines" / file).write_text(text, "utf-8")


@functools.cache
def _made(top: Path) -> Genie:
    project = Genie.make(top / "two")
    result = project.doit("export_genie")
    assert result.code == 0, result.text
    return project


@pytest.fixture
def two(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Genie:
    """An exported model of two splits; nothing is stale."""
    made = _made(tmp_path_factory.getbasetemp())
    shutil.copytree(made.root, tmp_path / "p", copy_function=shutil.copy2)
    return Genie(tmp_path / "p")


@pytest.mark.parametrize("splits", [2, 11])
def test_libgenie_takes_what_a_pipeline_makes(tmp_path: Path, splits: int) -> None:
    project = Genie.make(tmp_path / "p", splits, model={"splits": splits})
    done = project.doit()
    assert done.code == 0, done.text
    assert done.ran_of("compile") == {f"m:a:{number}" for number in range(1, splits + 1)}
    config = json.loads((project.bundle() / "genie_config.json").read_text())
    listed = config["dialog"]["engine"]["model"]["binary"]["ctx-bins"]
    assert listed == sorted(listed) and len(listed) == splits
    probe = project.doit("genie_probe", str(project.bundle()))
    assert probe.code == 0, probe.text
    assert project.doit().ran == set()
    assert project.doit("why").text.strip() == "nothing would run"


def test_commands_for_other_kinds_find_nothing(tmp_path: Path) -> None:
    project = Genie.make(tmp_path / "p")
    assert project.doit("verify_qnn").code == 0


def test_only_the_split_that_changed_is_compiled(two: Genie) -> None:
    assert two.doit("export_genie").ran == set()
    before = two.tree()
    two.put(2, step=3)
    done = two.doit("export_genie")
    named = {"name:m:prompt_ar16_cl64_2_of_2", "name:m:token_ar1_cl64_2_of_2"}
    assert done.ran == {*named, "compile:m:a:2", "lint:m:a", "bundle:m:a"}, done.text
    changed = {name for name, data in two.tree().items() if before[name] != data}
    assert changed == {"m/a/m_2_of_2.bin", "m/a/bundle.json"}


def test_what_genie_would_refuse_is_no_bundle(two: Genie) -> None:
    before = two.tree()
    two.say(model={"context_lengths": [128]})
    done = two.doit()
    assert done.code == 1
    assert "context-size" in done.text and "max-CL=64" in done.text and "remedy" in done.text
    assert "bundle:m:a" not in done.ran
    assert two.tree() == before
    two.say()
    back = two.doit()
    assert back.code == 0 and two.tree() == before, back.text


def test_releases_are_those_of_the_pipeline(two: Genie) -> None:
    two.say(genie=["2.47"])
    assert two.doit().ran == {"lint:m:a", "bundle:m:a"}
    report = json.loads((two.build / "lint" / "a.json").read_text())
    assert [loader["qairt"] for loader in report["loaders"]] == ["2.47"]


def test_the_sampler_is_that_of_the_pipeline(tmp_path: Path) -> None:
    """libGenie loads the config and draws its tokens as it says; the model by itself counts."""
    penalty = {"last_n": 64, "repetition": 1.2, "presence": 0.5}
    answers = []
    one = Genie.make(tmp_path / "p", 1, model={"splits": 1})
    assert one.doit().code == 0
    for sampler in ({"top_k": 1, "penalty": penalty}, {"top_k": 9, "temperature": 90.0}):
        one.say(
            model={"splits": 1, "sampler": sampler, "engine": {"threads": 1, "cpu_mask": "0x1"}}
        )
        assert one.doit().ran == {"config:m:a", "lint:m:a", "bundle:m:a"}
        asked = one.doit(
            "genie_probe", str(one.bundle()), "--ask", "a b", "--tokens", "6", "--json"
        )
        assert asked.code == 0, asked.text
        answers.append(json.loads(asked.text)[0]["answer"])
    dialog = json.loads((one.bundle() / "genie_config.json").read_text())["dialog"]
    assert dialog["sampler"] == {"version": 1, "seed": 42, "temp": 90.0, "top-k": 9, "top-p": 0.95}
    assert dialog["engine"]["n-threads"] == 1
    assert answers[0] == ["c", "d", "e", "f", "g", "h"] != answers[1]


def test_tasks_are_listed_and_cleaned(two: Genie) -> None:
    listed = two.doit("list", "--all", "--quiet").text.split()
    assert {"export_genie", "export_genie:m:a", "name:m:values", "lint:m:a"} <= set(listed)
    assert "io" not in listed
    wrong = two.doit("export_geni:m")
    assert wrong.code == 3 and "did you mean export_genie" in wrong.text
    assert two.doit("clean", "export_genie").code == 0
    left = [p for top in ("build", "dist") for p in (two.root / top).rglob("*") if p.is_file()]
    assert {p.parent.name for p in left} == {".mnnqnn"}, left


def test_both_kinds_live_in_one_project(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "p")
    made = Genie.make(tmp_path / "g")
    shutil.copytree(made.root / "graphs", project.root / "graphs")
    Genie(project.root).say(model={"name": "g"})
    listed = project.doit("list", "--quiet").text.split()
    assert {"export_qnn", "export_genie", "bundle", "compile", "io"} <= set(listed)
    assert project.doit("export_genie").code == 0
    assert (project.root / "dist/g/a/genie_config.json").is_file()
    assert not project.bundle().exists()
    why = project.doit("why").text
    assert "model:m" in why and ":g:" not in why
    Genie(project.root).say()
    twice = project.doit("list")
    assert twice.code == 3 and "used by two pipelines" in twice.text


def test_what_splits_no_longer_make_is_left_over(two: Genie) -> None:
    two.say(model={"name": "other"})
    assert two.doit().code == 0
    assert two.doit("clean", "--old").code == 0
    assert not list((two.root / "dist" / "m").rglob("*.bin"))
    assert list((two.root / "dist" / "other").rglob("*.bin"))


def write_onnx(path: Path, name: str, note: str = "") -> None:
    """A model with external weights; what it computes is in the sidecar."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], doc_string=note)
    weight.data_location = TensorProto.EXTERNAL
    data = path.with_suffix(".data")
    entry = weight.external_data.add()
    entry.key, entry.value = "location", data.name
    data.write_bytes(b"\0\0\0\0")
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    made = helper.make_graph([], name, [port], [port], [weight])
    path.write_bytes(helper.make_model(made).SerializeToString())


@pytest.fixture
def outside(tmp_path: Path) -> tuple[Genie, Tools]:
    """A project whose compiler is a double."""
    tools = Tools(tmp_path / "tools", ("genie-compiler",))
    project = Genie.make(tmp_path / "p")
    for kind in ("prompt", "token"):
        for number in (1, 2):
            write_onnx(project.root / "graphs" / f"{kind}_{number}.onnx", "main_graph")
    project.say(model=ONNX, compile={"command": command(tools)})
    return project, tools


ONNX = {"net": None, "onnx": "../graphs/{type}_{split}.onnx"}


def command(tools: Tools, *more: str) -> list[str]:
    program = str(tools.folder / "genie-compiler")
    options = ["--model={onnx}", "--graph={graph}", "--soc", "{soc_id}", "--out", "{out}"]
    return [program, *options, "--nets", "../graphs", *more]


def test_a_command_compiles_each_split_once(outside: tuple[Genie, Tools]) -> None:
    project, tools = outside
    done = project.doit()
    assert done.code == 0, done.text
    assert len(tools.calls("genie-compiler")) == 2
    copy = project.build / "graphs/token_ar1_cl64_2_of_2/token_2.onnx"
    assert onnx.load(copy).graph.name == "token_ar1_cl64_2_of_2"
    probe = project.doit("genie_probe", str(project.bundle()))
    assert probe.code == 0, probe.text
    assert project.doit().ran == set()
    (project.root / "graphs" / "prompt_2.data").write_bytes(b"\0\0\0\1")
    again = project.doit()
    assert again.ran_of("name") == {"m:prompt_ar16_cl64_2_of_2"}, again.text
    assert again.ran_of("compile") == {"m:a:2"}
    (tools.folder / "genie-compiler").open("a").write("\n")
    assert project.doit().ran_of("compile") == {"m:a:1", "m:a:2"}


def test_what_a_compiler_consists_of(tmp_path: Path) -> None:
    sdk = tmp_path / "sdk"
    for name in ("bin/tool", "bin/__pycache__/x.pyc", "c.json"):
        (sdk / name).parent.mkdir(parents=True, exist_ok=True)
        (sdk / name).write_text("1")
    outside = tmp_path / "lib"
    outside.mkdir()
    (outside / "a.so").write_text("1")
    (sdk / "lib").symlink_to(outside)
    (sdk / "again").symlink_to(".")
    session.reset().add_genie(load_any(written(tmp_path)))  # type: ignore[arg-type]
    before = digest_of(str(sdk))
    assert before == digest_of(str(shutil.copytree(sdk, tmp_path / "b", symlinks=True)))
    (sdk / "bin/__pycache__/x.pyc").write_text("2")
    assert digest_of(str(sdk)) == before
    (outside / "a.so").write_text("22")
    assert digest_of(str(sdk)) != before
    (sdk / "gone").symlink_to("nowhere")
    assert digest_of(str(sdk)) is None
    said = ["c.json", "--config=c.json", "--sdk=bin", "bin", "--out", "{out}", "", "x="]
    assert set(named_by(said, str(sdk))) == {"c.json", "--config=c.json"}


def test_a_model_is_looked_through_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, looked, path = onnx_name.external_files, list[Path](), tmp_path / "a.onnx"
    monkeypatch.setattr(onnx_name, "external_files", lambda p: looked.append(p) or real(p))
    for note, times in (("", 1), ("longer", 2)):
        write_onnx(path, "main_graph", note)
        for _ in range(3):
            weights = str(tmp_path / "a.data")
            assert sources.files(str(path)) == {"a.onnx": str(path), "a.data": weights}
        assert len(looked) == times
    for _ in range(2):
        with pytest.raises(GenieError, match="cannot read the model"):
            sources.files(str(tmp_path / "none.onnx"))


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("nothing", "ended with exit code 0 and did not make m_1_of_2.bin"),
        ("wrong", "they are prompt_1, token_1; planned: prompt_ar16_cl64_1_of_2"),
        ("exit", "genie-compiler ended with exit code 7"),
    ],
)
def test_a_command_that_fails(outside: tuple[Genie, Tools], mode: str, words: str) -> None:
    project, tools = outside
    tools.mode(genie_compiler=mode)
    done = project.doit("-n", "0")
    assert done.code == 1 and words in done.text, done.text
    assert "Traceback" not in done.text
    assert not project.bundle().exists()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"kind": "geni"}, "did you mean 'genie'?"),
    "key": ({"model": {"contxt_lengths": [1]}}, "did you mean 'context_lengths'?"),
    "lengths": ({"model": {"sequence_lengths": [128, 1]}}, "below the 128 tokens of one call"),
    "no compiler": ({"compile": {}}, "native: true, or command"),
    "both": ({"compile": {"native": True, "command": ["x", "{out}"]}}, "exclude each other"),
    "onnx": ({"model": {"onnx": "x"}}, "write net"),
    "one file": ({"model": {"net": "{type}_net.json"}}, "add {split}"),
    "field": ({"model": {"net": "{type}_{splt}"}}, "did you mean 'split'?"),
    "brace": ({"model": {"net": "{type}_{split"}}, "a brace too many"),
    "no out": ({"compile": {"command": ["x"]}, "model": ONNX}, "is not told {out}"),
    "release": ({"genie": [2.47]}, "put it in quotes"),
    "folder": (
        {"build_dir": "../graphs", "model": {"name": "x", "net": "../graphs/x/{graph}_net.json"}},
        "the graph lies in it",
    ),
    "head": ({"model": {"head_dim": 3}}, "even"),
    "sampler": ({"model": {"sampler": {"temprature": 1}}}, "did you mean 'temperature'?"),
    "penalty": ({"model": {"sampler": {"penalty": {}}}}, "add 'last_n'"),
    "share": ({"model": {"sampler": {"top_p": 1.5}}}, "must be at most 1"),
    "engine": ({"model": {"engine": {"cpu-mask": "0x1"}}}, "did you mean 'cpu_mask'?"),
    "mask": ({"model": {"engine": {"cpu_mask": "e0"}}}, "'e0' is not allowed here"),
    "target": ({"model": {"targets": ["b"]}}, "there is no target 'b'"),
}


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "g.yaml"
    path.write_text(json.dumps(pipeline(**changes), indent=1))
    return path


@pytest.mark.parametrize("case", BAD)
def test_a_bad_pipeline_names_the_place(tmp_path: Path, case: str) -> None:
    changes, words = BAD[case]
    path = written(tmp_path, **changes)
    with pytest.raises(PipelineError) as caught:
        load_any(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")


def test_the_schema_is_the_one_that_others_read(tmp_path: Path) -> None:
    said = schema("genie_pipeline")
    jsonschema.Draft202012Validator.check_schema(said)
    both = [Resource.from_contents(schema(name)) for name in ("pipeline", "genie_pipeline")]
    registry = Registry().with_resources((made.id(), made) for made in both)
    other = jsonschema.Draft202012Validator(said, registry=registry)
    value = pipeline(cache={"max_size": "1 GB"})
    assert other.is_valid(value) and not list(violations(value, said))
    for wrong in ({"cache": {"max_size": 1}}, {"targets": [{"soc_id": 0}]}, {"build_dir": "\0"}):
        value = pipeline(**wrong)
        assert not other.is_valid(value) and list(violations(value, said)), wrong
    path = tmp_path / "g.yaml"
    path.write_text(json.dumps(pipeline()))
    assert isinstance(load_any(path), GeniePipeline)
    with pytest.raises(PipelineError, match="pipeline of Genie models"):
        load_pipeline(path)
