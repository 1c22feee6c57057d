"""What runs again after a change: real exports of the demo model, counted task by task."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tasks_project import Project, exported, flip_weight

from mnnqnn_tasks.mnn import reader, writer
from mnnqnn_tasks.qnn import run as qnn
from mnnqnn_tasks.qnn.options import TargetOptions

PIECES = 5
GRAPHS = {f"m:graph{n}" for n in range(PIECES)} | {f"m:graph1_{n}" for n in range(PIECES)}
BINARIES = {f"graph{n}" for n in range(PIECES)}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return exported(tmp_path / "p")


def test_nothing_changed_runs_nothing(project: Project) -> None:
    result = project.doit("export_qnn")
    assert result.code == 0
    assert result.ran == set(), result.text
    assert "0 run, " in result.text


def _touch(project: Project) -> None:
    for path in project.model.iterdir():
        os.utime(path)


def _copy(project: Project) -> None:
    shutil.copytree(project.model, project.root / "copy", copy_function=shutil.copyfile)
    shutil.rmtree(project.model)
    project.pipeline(path="../copy")


def _link(project: Project) -> None:
    (project.root / "link").symlink_to(project.model, target_is_directory=True)
    project.pipeline(path="../link/")


SAME_BYTES: dict[str, Callable[[Project], None]] = {
    "touched": _touch,
    "moved and copied": _copy,
    "absolute": lambda p: p.pipeline(path=str(p.model)),
    "trailing slash": lambda p: p.pipeline(path="../model/"),
    "odd spelling": lambda p: p.pipeline(path="../pipelines/../model/./"),
    "link": _link,
}


@pytest.mark.parametrize("change", SAME_BYTES)
def test_same_bytes_elsewhere_run_nothing(project: Project, change: str) -> None:
    SAME_BYTES[change](project)
    result = project.doit("export_qnn")
    assert result.code == 0
    assert result.ran == set(), result.text


def test_a_touched_file_is_read_once(project: Project) -> None:
    """Later runs know the new time stamp, although no task ran to record it."""
    weight = project.model / "llm.mnn.weight"
    digests = project.root / "build" / ".mnnqnn" / "digests"
    os.utime(weight)
    time.sleep(0.3)  # a file this young is not remembered, it could still change unseen
    project.doit("export_qnn")
    remembered = digests.read_bytes()
    assert str(weight).encode() in remembered
    assert project.doit("export_qnn").ran == set()
    assert digests.read_bytes() == remembered  # nothing was hashed again


def test_one_layer_translates_and_links_what_reads_it(project: Project) -> None:
    before = project.tree()
    flip_weight(project, 2)
    result = project.doit("export_qnn")
    assert result.code == 0, result.text
    assert result.ran_of("translate") == {"m:graph2", "m:graph1_2"}
    assert result.ran_of("link") == {"m:a:graph2"}
    assert result.ran_of("cut") == result.ran_of("validate") == set()
    after = project.tree()
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"m/a/qnn/graph2.bin", "m/a/bundle.json"}


def test_chunk_size_keeps_decode_graphs(project: Project) -> None:
    project.pipeline(chunk_sizes=(24,))
    result = project.doit("export_qnn")
    assert result.code == 0, result.text
    assert result.ran_of("translate") == {g for g in GRAPHS if "graph1_" in g}
    assert result.ran_of("io") == {"m:24:input"}
    config = json.loads((project.bundle() / "config_qnn.json").read_text("utf-8"))
    assert config["chunk_limits"] == [24, 1]


def test_chunk_size_added_keeps_all_graphs(project: Project) -> None:
    project.pipeline(chunk_sizes=(16, 24))
    result = project.doit("export_qnn")
    assert result.code == 0, result.text
    assert result.ran_of("translate") == {f"m:graph2_{n}" for n in range(PIECES)}
    assert result.ran_of("link") == {f"m:a:{b}" for b in BINARIES}


def test_output_samples_are_made_on_demand(project: Project) -> None:
    samples = [project.build / "testdir" / str(shape) / "output.mnn" for shape in (1, 16)]
    assert not any(path.exists() for path in samples)
    assert project.doit("io").ran == {"io:m:output"}
    assert all(path.exists() for path in samples)
    assert project.doit("io").ran == project.doit("export_qnn").ran == set()


def test_a_binary_depends_on_its_graphs_alone(project: Project) -> None:
    """The library serializes memory that it never wrote; what was there must not show."""
    linked = project.build / "targets" / "a" / "graph1.bin"
    nets = [project.build / "qnn" / g / f"{g}_net.json" for g in ("graph1", "graph1_1")]
    again = project.root / "graph1.bin"
    for _ in range(3):
        qnn.link(nets, project.build / "blobs", TargetOptions(57, "v75"), again)
        assert again.read_bytes() == linked.read_bytes()


def test_target_added_links_only_that(project: Project) -> None:
    old = project.tree()
    project.pipeline(targets=({"name": "a", "soc_id": 57}, {"name": "b", "soc_id": 69}))
    result = project.doit("export_qnn")
    assert result.code == 0, result.text
    linked = {f"link:m:b:{b}" for b in BINARIES}
    assert result.ran == linked | {"bundle:m:b", "validate:m:b", "validate:m"}
    new = project.tree()
    assert {name: new[name] for name in old} == old
    assert new["m/b/qnn/graph0.bin"] != new["m/a/qnn/graph0.bin"]


@pytest.mark.parametrize(
    "option", [{"vtcm_mb": 4}, {"soc_id": 43}, {"optimization_level": 2}], ids=str
)
def test_target_option_links_only_that_target(project: Project, option: dict[str, int]) -> None:
    project.pipeline(targets=({"name": "a", "soc_id": 57} | option,))
    result = project.doit("export_qnn", "why=1")
    assert result.code == 0, result.text
    assert result.ran - {"validate:m"} == {
        *(f"link:m:a:{b}" for b in BINARIES),
        "bundle:m:a",
        "validate:m:a",
    }
    assert f"{next(iter(option))} changed" in result.text


def test_runtime_keys_bundle_only(project: Project) -> None:
    project.pipeline(runtime={"thread_num": 7})
    result = project.doit("export_qnn")
    assert result.ran == {"bundle:m:a"}
    config = json.loads((project.bundle() / "config_qnn.json").read_text("utf-8"))
    assert config["thread_num"] == 7


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _edit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    with open(path, "r+b") as stream:
        stream.write(data)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "deleted": lambda path: path.unlink(),
    "truncated": _truncate,
    "edited": _edit,
}
TARGETS = (
    "build/m/model.json",
    "build/m/plan.json",
    "build/m/subgraphs/graph1.json",
    "build/m/qnn/graph1/graph1_net.json",
    "build/m/qnn/graph1/*.raw",
    "build/m/blobs/*",
    "build/m/targets/a/graph3.bin",
    "dist/m/a/qnn/graph3.bin",
    "dist/m/a/config_qnn.json",
)


@pytest.mark.parametrize("target", TARGETS)
def test_damaged_target_is_made_again(project: Project, target: str) -> None:
    want = project.tree()
    for number, damage in enumerate(DAMAGE.values()):
        # The largest, and another one each time.
        found = sorted(project.root.glob(target), key=lambda p: -p.stat().st_size)
        path = found[min(number, len(found) - 1)]
        right = path.read_bytes()
        damage(path)
        result = project.doit("export_qnn")
        assert result.code == 0, result.text
        assert result.ran, path
        assert path.read_bytes() == right
        assert project.tree() == want
    assert project.doit("export_qnn").ran == set()


def test_foreign_file_in_the_bundle_is_removed(project: Project) -> None:
    (project.bundle() / "qnn" / "graph99.bin").write_bytes(b"old")
    result = project.doit("export_qnn")
    assert result.ran == {"bundle:m:a"}
    assert not (project.bundle() / "qnn" / "graph99.bin").exists()


def test_why_names_the_reason_and_runs_nothing(project: Project) -> None:
    assert project.doit("why").text == "nothing would run\n"
    os.unlink(project.bundle() / "config_qnn.json")
    said = project.doit("why").text
    assert "bundle:m:a: @dist/a/config_qnn.json is missing" in said
    assert not (project.bundle() / "config_qnn.json").exists()


def test_why_follows_inputs_to_the_tasks_that_make_them(project: Project) -> None:
    os.unlink(project.build / "model.json")
    os.unlink(project.build / "refused.json")
    for names in ([], ["link:m:a:graph0"]):
        said = project.doit("why", *names).text
        assert "model:m: @build/model.json is missing" in said
        assert "validate:m: @build/refused.json is missing" in said


def test_moved_project_runs_nothing(project: Project, tmp_path: Path) -> None:
    odd = tmp_path / "mit Leerzeichen 'und' \"Zeichen\" 模型"
    project.root.rename(odd)
    assert Project(odd).doit("export_qnn").ran == set()


def _copied(project: Project, place: Path) -> Project:
    shutil.copytree(project.root, place, copy_function=shutil.copyfile)
    return Project(place)


def test_a_copied_project_runs_nothing(project: Project, tmp_path: Path) -> None:
    """Other times, other inodes, links turned into files: the same bytes."""
    copy = _copied(project, tmp_path / "copy")
    result = copy.doit("export_qnn")
    assert result.code == 0
    assert result.ran == set(), result.text


def test_a_copied_project_is_read_once(project: Project, tmp_path: Path) -> None:
    copy = _copied(project, tmp_path / "copy")
    time.sleep(0.3)  # a file this young is not remembered, it could still change unseen
    copy.doit("export_qnn")
    digests = copy.root / "build" / ".mnnqnn" / "digests"
    remembered = digests.read_bytes()
    assert str(copy.bundle() / "qnn" / "graph0.bin").encode() in remembered
    assert copy.doit("export_qnn").ran == set()
    assert digests.read_bytes() == remembered  # nothing was hashed again


def test_a_file_of_a_copied_project_that_differs_is_made_again(
    project: Project, tmp_path: Path
) -> None:
    copy = _copied(project, tmp_path / "copy")
    want = copy.tree()
    _edit(copy.build / "targets" / "a" / "graph3.bin")
    blob = max((copy.build / "blobs").iterdir(), key=lambda p: p.stat().st_size)
    right = blob.read_bytes()
    _edit(blob)
    result = copy.doit("export_qnn")
    assert result.code == 0
    assert "link:m:a:graph3" in result.ran and len(result.ran_of("translate")) in (1, 2)
    assert blob.read_bytes() == right
    assert copy.tree() == want


def test_model_in_fewer_pieces_leaves_no_old_binary(project: Project) -> None:
    """A model of two layers in place of one of three."""
    _drop_last_layer(project)
    result = project.doit("export_qnn")
    assert result.code == 0, result.text
    binaries = {path.name for path in (project.bundle() / "qnn").glob("*.bin")}
    assert 0 < len(binaries) < PIECES
    assert {p.name for p in (project.build / "targets" / "a").glob("*.bin")} == binaries
    assert not (project.build / "qnn" / f"graph{PIECES - 1}").exists()
    assert project.doit("export_qnn").ran == set()
    listed = project.doit("list", "--all").text
    assert f"link:m:a:graph{PIECES - 1}" not in listed


def _drop_last_layer(project: Project) -> None:
    """Feed the second layer's result to the end of the model; the last layer is not needed."""
    path = project.model / "llm.mnn"
    net = reader.read(path)
    outputs = {op.name: int(op.outputIndexes[-1]) for op in net.oplists}
    end = next(op for op in net.oplists if op.name == "/Slice_output_0")
    indices = end.inputIndexes.copy()
    assert indices[0] == outputs["/blocks.2/Add_1_output_0"]
    indices[0] = outputs["/blocks.1/Add_1_output_0"]
    end.fields["inputIndexes"] = indices
    writer.write(project.root / "new.mnn", net)
    os.replace(project.root / "new.mnn", path)
