"""``doit clean`` and ``doit forget``: groups stand for what is in them; nothing foreign is lost."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path

import pytest
from tasks_project import MODEL, Project, exported, flip_weight

PIECES = 5
LINKS = {f"link:m:a:graph{n}" for n in range(PIECES)}
TRANSLATES = {f"translate:m:graph{k}{n}" for k in ("", "1_") for n in range(PIECES)}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return exported(tmp_path / "p")


def _stale(project: Project) -> set[str]:
    return {line.split(": ")[0] for line in project.doit("why").text.splitlines()}


@pytest.mark.parametrize(
    ("typed", "forgotten"),
    [
        (["link:m"], LINKS),
        (["link:m:a"], LINKS),
        (["link"], LINKS),
        (["link:m:a:graph0", "translate:m"], {"link:m:a:graph0", *TRANSLATES}),
        (["link:m:*:graph3"], {"link:m:a:graph3"}),
        (["export_qnn:m:a"], {"bundle:m:a", "validate:m:a", *LINKS}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_forget_a_group(project: Project, typed: list[str], forgotten: set[str]) -> None:
    result = project.doit("forget", *typed)
    assert result.code == 0
    assert {line.split()[1] for line in result.text.splitlines()} == forgotten
    assert _stale(project) == forgotten
    assert project.doit("forget", *typed).text == "nothing to forget\n"


@pytest.mark.parametrize("typed", [[], ["export_qnn"], ["export_qnn:m"]], ids=" ".join)
def test_forget_an_export_is_to_forget_all(project: Project, typed: list[str]) -> None:
    assert project.doit("forget", *typed).code == 0
    stale = _stale(project)
    assert stale >= {"model:m", "partition:m", "bundle:m:a", *LINKS, *TRANSLATES}
    journal = (project.root / "build" / ".mnnqnn" / "tasks.jsonl").read_text("utf-8")
    left: dict[str, object] = {}
    for line in journal.splitlines():
        name, record = json.loads(line)
        left[name] = record
    assert left and not any(left.values())


def test_clean_a_group(project: Project) -> None:
    binaries = list(project.build.glob("targets/a/*.bin"))
    assert len(binaries) == PIECES
    dry = project.doit("clean", "-n", "link:m")
    assert dry.code == 0 and "graph4.bin" in dry.text
    assert all(path.exists() for path in binaries)
    assert project.doit("clean", "link:m").code == 0
    assert not any(path.exists() for path in binaries)
    assert (project.bundle() / "config_qnn.json").exists()
    assert list(project.build.glob("qnn/*/*_net.json"))
    again = project.doit("clean", "link:m:a")
    assert again.code == 0 and "nothing to remove" in again.text
    assert project.doit("clean", "export_qnn:m").code == 0
    assert not project.bundle().exists() and not project.build.exists()


def _files(*folders: Path) -> set[Path]:
    return {path for folder in folders for path in folder.rglob("*") if path.is_file()}


def test_a_target_and_its_leftovers(project: Project) -> None:
    """Of two targets one is cleaned, later renamed; the other's files stay as they are."""
    project.pipeline(targets=({"name": "a", "soc_id": 57}, {"name": "b", "soc_id": 69}))
    both = project.doit("export_qnn")
    assert both.code == 0 and "left by" not in both.text
    build, dist = project.build, project.root / "dist" / "m"
    of_b = _files(build / "targets" / "b", dist / "b") | {build / "validate" / "b.json"}
    others = _files(build, dist) - of_b

    project.pipeline(targets=({"name": "a", "soc_id": 57},))
    (dist / "b" / "notes").write_text("mine", "utf-8")
    edited = dist / "b" / "qnn" / "graph0.bin"
    edited.write_bytes(edited.read_bytes()[:-1])
    shrunk = project.doit("export_qnn")  # what b refuses counts no more
    assert shrunk.code == 0 and "dist/m/b" in shrunk.text
    assert _files(dist / "b") >= {path for path in of_b if path.is_relative_to(dist)}
    said = project.doit("clean", "--old", "-n").text
    assert "b/config_qnn.json" in said and _files(build, dist) >= of_b

    cleaned = project.doit("clean", "--old")
    assert cleaned.code == 0 and f"keeping '{edited}'" in cleaned.text
    assert _files(build / "targets" / "b", dist / "b") == {edited, dist / "b" / "notes"}
    assert not (build / "validate" / "b.json").exists() and not (build / "targets" / "b").exists()
    assert _files(build, dist) >= others
    assert project.doit("export_qnn").ran == set()


def test_leftovers_of_a_chunk_size(project: Project) -> None:
    assert project.doit("io").code == 0
    project.pipeline(chunk_sizes=(24,))
    assert project.doit("io", "export_qnn").code == 0
    assert (project.build / "testdir" / "16" / "output.mnn").exists()
    assert project.doit("clean", "--old").code == 0
    assert {p.name for p in (project.build / "testdir").iterdir()} == {"1", "24"}
    assert project.doit("export_qnn").ran == set()


def test_leftovers_of_a_model(project: Project) -> None:
    path = project.root / "pipelines" / "p.yaml"
    value = json.loads(path.read_text("utf-8"))
    value["models"][0]["name"] = "new"
    path.write_text(json.dumps(value), "utf-8")
    foreign = project.build / "targets" / "mine"
    foreign.write_text("x", "utf-8")
    (project.root / "q.yaml").write_text(json.dumps(value | {"build_dir": "build"}), "utf-8")
    # Other pipelines may own the folder when only one of them is loaded.
    refused = project.doit("pipeline=q.yaml", "clean", "--old")
    assert refused.code == 3 and "leave pipeline=... out" in refused.text
    assert project.doit("pipeline=q.yaml", "clean").code == 0
    assert (project.build / "plan.json").exists()
    assert project.doit("clean", "--old").code == 0
    assert _files(project.build) == {foreign}
    assert not project.bundle().exists()
    assert "nothing to remove" in project.doit("clean", "--old").text


def test_a_damaged_record_deletes_nothing_elsewhere(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x", "utf-8")
    info = outside.stat()
    stamp = [info.st_size, info.st_mtime_ns, "?"]
    names = ["@build/../../../outside", str(outside), "@model/../../outside"]
    record = {"_values_:": {"made": dict.fromkeys(names, stamp)}}
    with open(project.root / "build" / ".mnnqnn" / "tasks.jsonl", "a", encoding="utf-8") as log:
        log.write(json.dumps(["link:m:gone:graph0", record]) + "\n")
        log.write(json.dumps(["link:m:gone:graph1", {"_values_:": {"made": 3}}]) + "\n")
        log.write(json.dumps(["link:m:gone:graph2", {}]) + "\n")
    result = project.doit("clean", "--old")
    assert result.code == 0 and "Traceback" not in result.text
    assert outside.exists()


def _obey_permissions() -> None:
    """Also as root: without this capability the permission bits of a folder count."""
    if os.getuid() == 0:
        bounding_drop, dac_override = 24, 1
        assert ctypes.CDLL(None).prctl(bounding_drop, dac_override, 0, 0, 0) == 0


def test_clean_what_cannot_be_deleted(project: Project) -> None:
    before = project.tree()
    folders = [project.root / "dist" / "m", *(project.root / "dist" / "m").rglob("*/")]
    for folder in folders:
        folder.chmod(0o500)
    result = project.doit("clean", "bundle", preexec_fn=_obey_permissions)
    for folder in folders:
        folder.chmod(0o700)
    assert result.code not in (0, None)
    assert result.text.count("cannot delete") == 1 and "Traceback" not in result.text
    assert project.tree() == before


def test_blobs_that_no_graph_reads_are_dropped(project: Project) -> None:
    before = {path.name for path in (project.build / "blobs").iterdir()}
    for _ in range(2):  # there and back
        flip_weight(project, 2)
        assert project.doit("export_qnn").code == 0
        assert len(list((project.build / "blobs").iterdir())) == len(before)
    assert {path.name for path in (project.build / "blobs").iterdir()} == before
    assert project.doit("export_qnn").ran == set()


def test_doits_own_commands_elsewhere(tmp_path: Path) -> None:
    """A project without our tasks notices nothing of us."""
    project = Project(tmp_path)
    (tmp_path / "dodo.py").write_text(
        "def task_a():\n    return {'actions': ['echo x > a'], 'targets': ['a'], 'clean': True}\n",
        "utf-8",
    )
    assert project.doit().code == 0
    assert project.doit("forget", "a").text == "forgetting a\n"
    assert project.doit("clean").code == 0
    assert not (tmp_path / "a").exists()
    assert MODEL.exists()
