"""Graph names of ONNX models, checked with the onnx package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from mnnqnn_tasks.errors import GenieError
from mnnqnn_tasks.genie import onnx_name, onnx_plan, wire
from mnnqnn_tasks.genie.names import GraphName

NAME = "prompt_ar128_cl4096_1_of_2"


def model(weights: int = 64, name: str = "main_graph") -> onnx.ModelProto:
    """x + w, a weight in a Constant node and one in a branch of an If."""
    w = numpy_helper.from_array(np.arange(weights, dtype=np.float32), "w")
    inside = numpy_helper.from_array(np.ones(weights, np.float32), "inside")
    constant = helper.make_node(
        "Constant", [], ["k"], value=numpy_helper.from_array(np.array(True))
    )
    branch = helper.make_graph(
        [helper.make_node("Identity", ["inside"], ["b"])],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, [weights])],
        [inside],
    )
    graph = helper.make_graph(
        [
            constant,
            helper.make_node("If", ["k"], ["c"], then_branch=branch, else_branch=branch),
            helper.make_node("Add", ["x", "w"], ["s"]),
            helper.make_node("Add", ["s", "c"], ["y"]),
        ],
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [weights])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [weights])],
        [w],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.metadata_props.add(key="k", value="v")
    return made


def save(folder: Path, name: str = "m.onnx", external: bool = False) -> Path:
    path = folder / name
    options = {"save_as_external_data": True, "location": "w/m.data", "size_threshold": 0}
    folder.mkdir(exist_ok=True)
    (folder / "w").mkdir(exist_ok=True)
    onnx.save(model(), path, **(options if external else {}))
    return path


def differs_in_name_alone(before: onnx.ModelProto, after: onnx.ModelProto, name: str) -> bool:
    assert after.graph.name == name
    copy = onnx.ModelProto()
    copy.CopyFrom(after)
    copy.graph.ClearField("name")
    if before.graph.HasField("name"):
        copy.graph.name = before.graph.name
    return bool(copy.SerializeToString() == before.SerializeToString())


def test_only_the_name_changes_in_place(tmp_path: Path) -> None:
    path = save(tmp_path)
    before = onnx.load(path)
    done = onnx_name.rename(path, NAME)
    assert done == onnx_name.Renamed(path, "main_graph", NAME, ())
    assert differs_in_name_alone(before, onnx.load(path), NAME)
    onnx.checker.check_model(str(path), full_check=True)
    assert onnx_name.graph_name(path) == NAME
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "w"]


def test_a_copy_leaves_the_source_alone(tmp_path: Path) -> None:
    path = save(tmp_path)
    before = path.read_bytes()
    goal = tmp_path / "out" / "Modell ü.onnx"
    onnx_name.rename(path, NAME, goal)
    assert path.read_bytes() == before
    assert differs_in_name_alone(onnx.load(path), onnx.load(goal), NAME)


def test_external_weights_stay_or_come_along(tmp_path: Path) -> None:
    path = save(tmp_path / "in", external=True)
    weights = path.parent / "w" / "m.data"
    stat = weights.stat()
    assert onnx_name.rename(path, NAME).external == ("w/m.data",)
    assert weights.stat().st_mtime_ns == stat.st_mtime_ns
    assert weights.stat().st_ino == stat.st_ino
    goal = tmp_path / "out" / "m.onnx"
    onnx_name.rename(path, NAME, goal)
    got, wanted = onnx.load(goal), onnx.load(path)  # these read the weights
    assert got == wanted
    assert numpy_helper.to_array(got.graph.initializer[0]).tolist() == list(range(64))


def test_models_of_a_folder_share_their_weights(tmp_path: Path) -> None:
    """One copy, which is no link: either would make onnx refuse the model, or both models."""
    one, two = save(tmp_path / "in", external=True), tmp_path / "in" / "n.onnx"
    two.write_bytes(one.read_bytes())
    weights, out = one.parent / "w" / "m.data", tmp_path / "out"
    before, brought = weights.read_bytes(), dict[str, Path]()
    onnx_name.rename(one, NAME, out / "m.onnx", brought)
    first = (out / "w" / "m.data").stat()
    onnx_name.rename(two, NAME, out / "n.onnx", brought)
    second = (out / "w" / "m.data").stat()
    assert (first.st_ino, first.st_mtime_ns) == (second.st_ino, second.st_mtime_ns)
    assert second.st_nlink == 1 and second.st_ino != weights.stat().st_ino
    assert onnx.load(out / "n.onnx") == onnx.load(out / "m.onnx")  # these read the weights
    with (out / "w" / "m.data").open("r+b") as stream:
        stream.write(b"altered")
    assert weights.read_bytes() == before and onnx.load(one)
    other = save(tmp_path / "other", "o.onnx", external=True)
    with pytest.raises(GenieError, match="weights of two models would be one file"):
        onnx_name.rename(other, NAME, out / "o.onnx", brought)


@pytest.mark.parametrize("shares", [True, False])
def test_weights_take_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: bool
) -> None:
    """Blocks are shared where the file system can; else the bytes are copied in pieces."""
    asked = []

    def clone(source: int, target: int) -> bool:
        asked.append(os.fstat(source).st_size)
        return os.sendfile(target, source, 0, asked[0]) == asked[0] if shares else False

    monkeypatch.setattr(onnx_name, "clone_file", clone)
    path = save(tmp_path / "in", external=True)
    size = 64 << 20
    os.truncate(path.parent / "w" / "m.data", size)
    tracemalloc.start()
    onnx_name.rename(path, NAME, tmp_path / "out" / "m.onnx")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert asked == [size] and peak < size // 8
    assert (tmp_path / "out" / "w" / "m.data").stat().st_size == size


def test_external_weights_that_are_gone_or_outside_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "in", external=True)
    (path.parent / "w" / "m.data").unlink()
    with pytest.raises(GenieError, match=r"m\.data: external weights are missing"):
        onnx_name.rename(path, NAME, tmp_path / "out" / "m.onnx")
    assert not (tmp_path / "out" / "m.onnx").exists()
    made = model()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../elsewhere")
    path.write_bytes(made.SerializeToString())
    with pytest.raises(GenieError, match="outside the model's folder"):
        onnx_name.rename(path, NAME, tmp_path / "out" / "m.onnx")


def with_graph(payload: bytes) -> bytes:
    """A model around the bytes of a graph."""
    made = model()
    made.ClearField("graph")
    return made.SerializeToString() + wire.bytes_field(7, payload)


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("last", [True, False])
def test_names_missing_twice_or_last(tmp_path: Path, count: int, last: bool) -> None:
    made = model()
    made.graph.ClearField("name")
    names = b"".join(wire.bytes_field(2, f"old{number}".encode()) for number in range(count))
    graph = made.graph.SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(with_graph(graph + names if last else names + graph))
    before = onnx.load(path)
    assert onnx_name.rename(path, NAME).before == before.graph.name
    assert differs_in_name_alone(before, onnx.load(path), NAME)
    (graph_field,) = (f for f in fields_of(path) if f.number == 7)
    with path.open("rb") as stream:
        inside = list(wire.fields(stream.fileno(), graph_field.payload, graph_field.end))
    assert [f.number for f in inside].count(2) == 1


def fields_of(path: Path) -> list[wire.Field]:
    with path.open("rb") as stream:
        return list(wire.fields(stream.fileno(), 0, path.stat().st_size))


def test_embedded_weights_are_never_in_memory(tmp_path: Path) -> None:
    path, size = tmp_path / "big.onnx", 24 << 20
    path.write_bytes(model(size // 4).SerializeToString())
    tracemalloc.start()
    onnx_name.rename(path, NAME, tmp_path / "out.onnx")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < size // 4
    assert (tmp_path / "out.onnx").stat().st_size > 2 * size
    assert onnx.load(tmp_path / "out.onnx").graph.name == NAME


def test_a_model_beyond_protobufs_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    tensor = 1 << 31  # a hole in the file
    weights = wire.varint(9 << 3 | wire.BYTES) + wire.varint(tensor)
    initializer = wire.varint(5 << 3 | wire.BYTES) + wire.varint(len(weights) + tensor) + weights
    with path.open("wb") as stream:
        stream.write(wire.varint(7 << 3 | wire.BYTES) + wire.varint(len(initializer) + tensor))
        stream.write(initializer)
        stream.truncate(stream.tell() + tensor)
    with pytest.raises(GenieError, match="larger than a protobuf message may be"):
        onnx_name.rename(path, NAME)


FOREIGN = {
    "empty": b"",
    "text": b"not a model\n",
    "zeros": bytes(100),
    "truncated": model().SerializeToString()[:-20],
    "no graph": onnx.ModelProto(ir_version=8).SerializeToString(),
    "two graphs": model().SerializeToString() + wire.bytes_field(7, b""),
    "graph is a number": wire.varint(7 << 3) + b"\1",
    "name is no text": with_graph(wire.bytes_field(2, b"\xff\xfe")),
}


@pytest.mark.parametrize("label", FOREIGN)
def test_foreign_files_are_refused(tmp_path: Path, label: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(FOREIGN[label])
    with pytest.raises(GenieError, match="not an ONNX model"):
        onnx_name.rename(path, NAME)
    assert path.read_bytes() == FOREIGN[label]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing.onnx"):
        with pytest.raises(GenieError, match="cannot read the model"):
            onnx_name.rename(path, NAME)


GOOD = model().SerializeToString()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_models_are_renamed_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    path = tmp_path_factory.mktemp("fuzz") / "m.onnx"
    path.write_bytes(damaged[:cut] if data.draw(st.booleans()) else damaged)
    try:
        onnx_name.rename(path, NAME, path.with_name("out.onnx"))
    except GenieError:
        return
    assert onnx_name.graph_name(path.with_name("out.onnx")) == NAME


@given(st.integers(0, (1 << 64) - 1))
def test_numbers_survive(tmp_path_factory: pytest.TempPathFactory, value: int) -> None:
    path = tmp_path_factory.mktemp("varint") / "f"
    path.write_bytes(wire.varint(5 << 3) + wire.varint(value))
    (field,) = fields_of(path)
    assert field.number == 5
    assert field.end - field.payload == max(1, (value.bit_length() + 6) // 7)


def plan(folder: Path, text: str) -> Path:
    path = folder / "plan.yaml"
    path.write_text(text)
    return path


def test_a_plan_names_models(tmp_path: Path) -> None:
    text = """
version: 1
splits: 2
models:
  - {path: a.onnx, ar: 128, cl: 4096, split: 1}
  - {path: b.onnx, ar: 1, cl: 4096, split: 1}
  - {path: c.onnx, ar: 128, cl: 4096, split: 2}
"""
    schema = json.loads((Path(__file__).parents[1] / "schemas/genie_names.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(text))
    found = onnx_plan.read_plan(plan(tmp_path, text))
    assert [str(a.name) for a in found] == [
        "prompt_ar128_cl4096_1_of_2",
        "token_ar1_cl4096_1_of_2",
        "prompt_ar128_cl4096_2_of_2",
    ]
    assert found[0].path == tmp_path / "a.onnx"
    assert onnx_plan.missing(found) == [GraphName(1, 4096, 2, 2)]
    values = onnx_plan.compiler_values(found)
    assert values["models"][1]["qnn_options"] == (
        "--qnn_options context_enable_graphs=token_ar1_cl4096_1_of_2"
    )
    assert values["binaries"][0] == {
        "split": 1,
        "context_enable_graphs": ["prompt_ar128_cl4096_1_of_2", "token_ar1_cl4096_1_of_2"],
        "graph_custom_configs": [
            'HtpGraphConfig(name="prompt_ar128_cl4096_1_of_2")',
            'HtpGraphConfig(name="token_ar1_cl4096_1_of_2")',
        ],
        "backend_extensions": {
            "graphs": [{"graph_names": ["prompt_ar128_cl4096_1_of_2", "token_ar1_cl4096_1_of_2"]}]
        },
    }


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "[": "not a plan",
        "1": "no object with version",
        "version: 2": "no object with version",
        "{version: 1}": "models is no list",
        "{version: 1, models: [1]}": r"models\[0\] is no object",
        "{version: 1, models: [{path: a, ar: 1, cl: 2}]}": r"split of models\[0\] is no number",
        "{version: 1, models: [{path: a, ar: yes, cl: 2, split: 1}]}": "ar of models",
        "{version: 1, models: [{ar: 1, cl: 2, split: 1}]}": "has no path",
        "{version: 1, models: [{path: a, ar: 1, cl: 2, split: 1, x: 1}]}": "unknown key x",
        "{version: 1, models: [{path: a, ar: 8, cl: 2, split: 1}]}": "below the 8 tokens",
        "{version: 1, splits: 1, models: [{path: a, ar: 1, cl: 2, split: 2}]}": "split 2 of 1",
        "{version: 1, models: [{path: a, ar: 1, cl: 2, split: 1},"
        " {path: b, ar: 1, cl: 2, split: 1}]}": "one name is given twice",
        "{version: 1, models: [{path: a, ar: 1, cl: 2, split: 1},"
        " {path: a, ar: 2, cl: 2, split: 1}]}": "one file is given twice",
    }.items(),
)
def test_wrong_plans_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(GenieError, match=message):
        onnx_plan.read_plan(plan(tmp_path, text))


def doit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "doit", "genie_name_onnx", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_command_names_splits_in_order(tmp_path: Path) -> None:
    files = [save(tmp_path, f"{number}.onnx").name for number in range(11)]
    dry = doit(tmp_path, *files, "--ar", "128", "--cl", "4096", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert onnx.load(tmp_path / "0.onnx").graph.name == "main_graph"
    done = doit(tmp_path, *files, "--ar", "128", "--cl", "4096", "--json")
    assert done.returncode == 0, done.stderr
    names = [onnx.load(tmp_path / file).graph.name for file in files]
    assert names[0] == "prompt_ar128_cl4096_01_of_11"
    assert names == sorted(names)
    assert [m["graph_name"] for m in json.loads(done.stdout)["models"]] == names


def test_one_bad_model_leaves_all_as_they_were(tmp_path: Path) -> None:
    good, bad = save(tmp_path), tmp_path / "bad.onnx"
    bad.write_bytes(b"\xff")
    done = doit(tmp_path, "m.onnx", "bad.onnx", "--ar", "1", "--cl", "64")
    assert done.returncode == 3
    assert "bad.onnx: not an ONNX model" in done.stderr
    assert "Traceback" not in done.stderr
    assert onnx.load(good).graph.name == "main_graph"


def test_the_command_wants_numbers(tmp_path: Path) -> None:
    save(tmp_path)
    for arguments in (["m.onnx"], [], ["m.onnx", "--plan", "p", "--ar", "1", "--cl", "2"]):
        done = doit(tmp_path, *arguments)
        assert done.returncode == 3
        assert "Traceback" not in done.stderr
