"""Task names as typed: what is listed, what is accepted, and what was meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tasks_project import Project, exported


def test_list_and_info_before_any_build(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "p")
    listed = project.doit("list", "--all", "-q")
    assert listed.code == 0
    names = {line.strip() for line in listed.text.splitlines()}
    assert {"model:m", "io:m:1:input", "io:m:output", "validate:m:a", "partition:m"} <= names
    assert {"export_qnn", "export_qnn:m", "export_qnn:m:a", "bundle:m:a", "link:m:a"} <= names
    info = project.doit("info", "partition:m")
    assert "plan.json" in info.text and "model.json" in info.text
    assert not project.build.exists()  # looking makes nothing


def test_list_info_and_clean_after_a_build(tmp_path: Path) -> None:
    project = exported(tmp_path / "p")
    listed = project.doit("list", "--all", "--status").text
    assert "U link:m:a:graph0" in listed and "U translate:m:graph1_4" in listed
    info = project.doit("info", "link:m:a:graph3").text
    assert "graph3_net.json" in info and "graph1_3_net.json" in info and "graph3.bin" in info
    assert project.doit("clean", "link:m:a:graph3").code == 0
    assert not (project.build / "targets" / "a" / "graph3.bin").exists()
    assert project.doit("export_qnn").ran == {"link:m:a:graph3", "bundle:m:a"} - (
        {"bundle:m:a"} if _same_binary(project) else set()
    )
    assert project.doit("clean").code == 0
    left = [p for p in (project.root / "build").rglob("*") if p.is_file()]
    assert all(".mnnqnn" in p.parts for p in left), left
    assert not project.bundle().exists()


def _same_binary(project: Project) -> bool:
    """A binary linked again has the same bytes, so what contains it is still right."""
    return (project.build / "targets" / "a" / "graph3.bin").read_bytes() == (
        project.bundle() / "qnn" / "graph3.bin"
    ).read_bytes()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["exprt_qnn"], "export_qnn"),
        (["export_qnn:n"], "export_qnn:m"),
        (["export_qnn:m:b"], "export_qnn:m:a"),
        (["io:m:16:inptu"], "io:m:16:input"),
        (["link:m:aa:graph0"], "link:m:a:graph0"),
        (["info", "partition:mm"], "partition:m"),
        (["list", "trnslate"], "translate"),
        (["clean", "bundel:m:a"], "bundle:m:a"),
        (["forget", "modle:m"], "model:m"),
        (["pipelin=x.yaml", "export_qnn"], "pipeline=..."),
        (["verify_qnn", "mm"], "m"),
        (["verify_qn"], "verify_qnn"),
        (["wyh"], "why"),
        (["forgte", "model:m"], "forget"),
    ],
    ids=" ".join,
)
def test_mistyped_name_gets_the_nearest(tmp_path: Path, typed: list[str], meant: str) -> None:
    project = Project.create(tmp_path / "p")
    result = project.doit(*typed)
    assert result.code == 3
    assert f"did you mean {meant}?" in result.text
    assert "Traceback" not in result.text


def test_a_number_of_processes_that_runs_nothing(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "p")
    result = project.doit("-n", "-3", "model")
    assert result.code == 3
    assert "-n -3" in result.text and "Traceback" not in result.text
    assert project.doit("-n", "0", "model").ran == {"model:m"}


def test_mistyped_name_of_a_task_that_the_cut_makes(tmp_path: Path) -> None:
    """Known only after partition, which therefore runs first."""
    project = Project.create(tmp_path / "p")
    result = project.doit("link:m:a:grap0")
    assert result.code != 0
    assert "did you mean link:m:a:graph0?" in result.text
    assert "partition:m" in result.ran
    assert not result.ran_of("link")
    again = project.doit("translate:m:graph77")
    assert again.code != 0 and "there is no task 'translate:m:graph77'" in again.text


def test_one_task_of_the_cut_can_be_chosen(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "p")
    result = project.doit("link:m:a:graph4")
    assert result.code == 0, result.text
    assert result.ran_of("link") == {"m:a:graph4"}
    assert result.ran_of("translate") == {"m:graph4", "m:graph1_4"}
    assert not result.ran_of("bundle")


@pytest.mark.parametrize(
    ("typed", "linked"),
    [
        ("link:m:*:graph0", {"m:a:graph0"}),
        ("link:*:graph[01]", {"m:a:graph0", "m:a:graph1"}),
        ("*:graph3", {"m:a:graph3"}),
        ("link:m:*", {f"m:a:graph{n}" for n in range(5)}),
    ],
)
def test_a_pattern_chooses_tasks_of_the_cut(tmp_path: Path, typed: str, linked: set[str]) -> None:
    project = exported(tmp_path / "p")
    assert project.doit("forget", "link").code == 0
    result = project.doit(typed)
    assert result.code == 0, result.text
    assert result.ran_of("link") == linked
    assert not result.ran_of("bundle")


def test_a_pattern_before_any_build(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "p")
    result = project.doit("translate:m:*2")
    assert result.code == 0, result.text
    assert result.ran_of("translate") == {"m:graph2", "m:graph1_2"}
    assert not result.ran_of("link")


def test_a_pattern_that_fits_one_of_two_models(tmp_path: Path) -> None:
    project = exported(tmp_path / "p")
    path = project.root / "pipelines" / "p.yaml"
    value = json.loads(path.read_text("utf-8"))
    value["models"].append(value["models"][0] | {"name": "n", "chunk_sizes": [24, 32]})
    path.write_text(json.dumps(value), "utf-8")
    result = project.doit("translate:*:graph2_0")  # m has only one chunk size
    assert result.code == 0, result.text
    assert result.ran_of("translate") == {"n:graph2_0"}


@pytest.mark.parametrize("typed", ["link:m:*:graph99", "link:*:grap0", "translate:*:x", "lnk:*"])
def test_a_pattern_that_fits_nothing(tmp_path: Path, typed: str) -> None:
    result = exported(tmp_path / "p").doit(typed)
    assert result.code != 0
    assert f"there is no task '{typed}'" in result.text
    assert not result.ran and "Traceback" not in result.text


def test_a_users_own_tasks_live_beside_ours(tmp_path: Path) -> None:
    project = exported(tmp_path / "p")
    dodo = project.root / "dodo.py"
    dodo.write_text(
        dodo.read_text("utf-8")
        + "\ndef task_deploy():\n"
        + "    return {'actions': ['echo deployed > done'], 'task_dep': ['export_qnn:m:a'],\n"
        + "            'file_dep': ['dist/m/a/config_qnn.json'], 'targets': ['done']}\n",
        "utf-8",
    )
    first = project.doit("deploy")
    assert first.code == 0 and first.ran == {"deploy"}, first.text
    assert (project.root / "done").read_text() == "deployed\n"
    assert project.doit("deploy").ran == set()


def test_an_empty_choice_of_pipeline(tmp_path: Path) -> None:
    result = Project.create(tmp_path / "p").doit("pipeline=", "export_qnn")
    assert result.code == 3
    assert "pipeline= names no file" in result.text and "pipeline=FILE" in result.text


def test_pipeline_chosen_on_the_command_line(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "p")
    other = tmp_path / "another place"
    other.mkdir()
    text = (project.root / "pipelines" / "p.yaml").read_text("utf-8")
    (other / "das Modell.yaml").write_text(text.replace("../model", str(project.model)), "utf-8")
    result = project.doit(
        "-f", str(project.root / "dodo.py"), "pipeline=das Modell.yaml", "model", cwd=other
    )
    assert result.code == 0, result.text
    assert (tmp_path / "build" / "m" / "model.json").exists()
    assert not (project.root / "build").exists()
