"""``doit ci_plan``: what is fresh, restorable or must be built, and why; nothing is made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tasks_project import REPO, Project, Result, flip_weight
from tasks_shared import TWO, Shared

LAST = "2 fresh, 0 restorable, 0 to build"
SCHEMA = json.loads((REPO / "schemas" / "ci_plan.schema.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shared, Project]]:
    """A cache, and the project whose export is in it."""
    shared = Shared(tmp_path_factory.mktemp("team"))
    yield shared, shared.exported("first", targets=TWO)


@pytest.fixture
def empty(tmp_path: Path) -> Shared:
    return Shared(tmp_path)


def copy(project: Project, root: Path) -> Project:
    shutil.copytree(project.root, root, copy_function=shutil.copy2)
    return Project(root)


def plan(shared: Shared, project: Project, *chosen: str) -> list[dict[str, Any]]:
    """What ``--json`` says, as its schema has it."""
    result = shared.doit(project, "ci_plan", "--json", *chosen)
    assert result.code == 0, result.text
    value = json.loads(result.text)
    jsonschema.validate(value, SCHEMA, jsonschema.Draft202012Validator)
    parts: list[dict[str, Any]] = value["parts"]
    return parts


def in_every_form(shared: Shared, project: Project, *chosen: str) -> list[dict[str, Any]]:
    """What ``--json`` says; the text and the matrix must say the same."""
    parts = plan(shared, project, *chosen)
    matrix = json.loads(shared.doit(project, "ci_plan", "--matrix", *chosen).text)
    assert matrix == {
        "include": [
            {"model": p["model"], "target": p["target"], "task": p["task"]}
            for p in parts
            if p["state"] == "build"
        ]
    }
    *lines, last = shared.doit(project, "ci_plan", *chosen).text.splitlines()
    assert len(lines) == len(parts)
    for line, part in zip(lines, parts, strict=True):
        begin = f"{part['model']} {part['target']}: {part['state']}"
        why = part["reasons"]
        assert line.startswith(begin)
        assert bool(why) == (part["state"] != "fresh")
        if why:
            assert f"; {why[0]['task']}: {why[0]['reason']}" in line
    states = [part["state"] for part in parts]
    words = ("fresh", "restorable", "build")
    assert last.replace("to build", "build") == ", ".join(f"{states.count(w)} {w}" for w in words)
    return parts


def said(parts: list[dict[str, Any]]) -> list[tuple[str, str, list[str]]]:
    """Target, state and reasons of each part."""
    reasons = [[f"{r['task']}: {r['reason']}" for r in p["reasons"]] for p in parts]
    return [(p["target"], p["state"], r) for p, r in zip(parts, reasons, strict=True)]


def files(*folders: Path) -> dict[Path, tuple[bytes, int]]:
    """Content and time of every file, but for the memory of digests."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and path.name != "digests"
    }


def test_a_fresh_checkout_without_a_cache(empty: Shared) -> None:
    project = empty.project("one", targets=TWO)
    before = files(empty.root)
    parts = in_every_form(empty, project)
    assert said(parts) == [
        ("a", "build", ["bundle:m:a: it was not exported here"]),
        ("b", "build", ["bundle:m:b: it was not exported here"]),
    ]
    assert parts[0]["pipeline"] == "pipelines/p.yaml"
    assert parts[0]["task"] == "export_qnn:m:a"
    assert parts[0]["key"] != parts[1]["key"]
    assert files(empty.root) == before
    assert not (project.root / "dist").exists()
    assert {p.name for p in (project.root / "build").rglob("*")} <= {".mnnqnn", "digests"}


def test_a_checkout_of_what_the_team_has(team: tuple[Shared, Project], tmp_path: Path) -> None:
    shared, first = team
    second = Project.create(tmp_path / "second", targets=TWO)
    before = files(shared.root, tmp_path)
    parts = in_every_form(shared, second)
    assert said(parts) == [
        ("a", "restorable", ["bundle:m:a: it was not exported here"]),
        ("b", "restorable", ["bundle:m:b: it was not exported here"]),
    ]
    assert {p["key"] for p in parts} <= {p.name for p in (shared.cache / "actions").rglob("*")}
    assert files(shared.root, tmp_path) == before
    assert said(plan(shared, second, "export_qnn:m:b")) == said(parts)[1:]
    assert shared.doit(second, "export_qnn:m:b").ran == {"bundle:m:b"}
    assert [p["state"] for p in in_every_form(shared, second)] == ["restorable", "fresh"]
    assert second.tree() == {n: d for n, d in first.tree().items() if n.startswith("m/b/")}


def test_the_input_that_changed_is_named(team: tuple[Shared, Project], tmp_path: Path) -> None:
    """Of a bundle that was made here, and of one that came from the cache as a whole."""
    shared, first = team
    made, taken = copy(first, tmp_path / "made"), Project.create(tmp_path / "taken", targets=TWO)
    assert shared.doit(taken, "export_qnn").code == 0
    keys = [p["key"] for p in plan(shared, made)]
    for project in (made, taken):
        assert [p["state"] for p in plan(shared, project)] == ["fresh", "fresh"]
    flip_weight(made, 1)
    shutil.copyfile(made.model / "llm.mnn.weight", taken.model / "llm.mnn.weight")
    one, other = plan(shared, made), in_every_form(shared, taken)
    assert said(one) == [(t, "build", ["model:m: llm.mnn.weight changed"]) for t in "ab"]
    assert said(other) == [
        (t, "build", [f"bundle:m:{t}: model/llm.mnn.weight changed"]) for t in "ab"
    ]
    assert [p["key"] for p in one] == [p["key"] for p in other]
    assert not {p["key"] for p in one} & set(keys)
    shutil.copyfile(first.model / "llm.mnn.weight", taken.model / "llm.mnn.weight")
    taken.pipeline(targets=(TWO[0], {**TWO[1], "vtcm_mb": 4}))
    reasons = {p["target"]: p["reasons"][0]["reason"] for p in plan(shared, taken)}
    assert "target's vtcm_mb changed from 8 to 4" in reasons["b"]
    assert "vtcm_mb" not in reasons["a"] and "targets changed" in reasons["a"]


def test_options_of_a_bundle_that_was_made_here(
    team: tuple[Shared, Project], tmp_path: Path
) -> None:
    shared, first = team
    project = copy(first, tmp_path / "p")
    project.pipeline(targets=(TWO[0], {**TWO[1], "hvx_threads": 2}))
    parts = {p["target"]: p for p in plan(shared, project)}
    tasks = [r["task"] for r in parts["b"]["reasons"]]
    assert (
        tasks[0] == "validate:m:b"
        and "hvx_threads changed from 4 to 2" in (parts["b"]["reasons"][0]["reason"])
    )
    assert {t for t in tasks if t.startswith("link:")} == {f"link:m:b:graph{n}" for n in range(5)}
    assert not any(r["task"].startswith("link:") for r in parts["a"]["reasons"])
    shutil.rmtree(project.root / "dist")
    project.pipeline(targets=TWO)
    assert said(plan(shared, project)) == [
        (t, "restorable", [f"bundle:m:{t}: the bundle is missing"]) for t in "ab"
    ]


def test_what_the_plan_calls_to_build_is_what_runs(empty: Shared) -> None:
    project = empty.project("one")
    (part,) = plan(empty, project)
    assert part["state"] == "build"
    assert empty.doit(project, part["task"]).code == 0
    (after,) = plan(empty, project)
    assert (after["state"], after["key"]) == ("fresh", part["key"])
    (elsewhere,) = plan(empty, empty.project("two"))
    assert (elsewhere["state"], elsewhere["key"]) == ("restorable", part["key"])


@pytest.mark.parametrize("made", [False, True])
def test_a_model_that_cannot_be_read(
    team: tuple[Shared, Project], tmp_path: Path, made: bool
) -> None:
    shared, first = team
    project = copy(first, tmp_path / "p") if made else Project.create(tmp_path / "p", targets=TWO)
    (project.model / "llm.mnn").unlink()
    parts = plan(shared, project)
    missing = f"model:m: {project.model / 'llm.mnn'}: a file of the model is missing"
    assert said(parts) == [(t, "build", [missing]) for t in "ab"]
    assert [p["key"] for p in parts] == [None, None]
    shutil.rmtree(project.model)
    gone = f"model:m: {project.model}: there is no model folder"
    assert said(plan(shared, project)) == [(t, "build", [gone]) for t in "ab"]


def refused(result: Result, *words: str) -> None:
    assert result.code == 3 and "Traceback" not in result.text, result.text
    for word in words:
        assert word in result.text


def test_what_may_be_asked(team: tuple[Shared, Project]) -> None:
    shared, project = team
    both = ("export_qnn:m", "export_qnn:m:*", "bundle:m", "export_qnn:m:a export_qnn:m:b")
    for chosen in both:
        text = shared.doit(project, "ci_plan", *chosen.split()).text
        assert text.splitlines() == ["m a: fresh", "m b: fresh", LAST], chosen
    assert [p["target"] for p in plan(shared, project, "bundle:m:b")] == ["b"]
    refused(shared.doit(project, "ci_plan", "--json", "--matrix"), "choose one")
    refused(shared.doit(project, "ci_plan", "link:m"), "no export", "export_qnn:MODEL:TARGET")
    refused(shared.doit(project, "ci_plan", "export_qnn:m:c"), "did you mean export_qnn:m:")
    refused(shared.doit(project, "ci_plan", "export_qnn:x*"), "there is no task")
    assert "nothing would run" in shared.doit(project, "why", "export_qnn:m:*").text


def test_no_pipeline(empty: Shared) -> None:
    project = empty.project("one")
    (project.root / "pipelines" / "p.yaml").unlink()
    for form in ((), ("--json",), ("--matrix",)):
        refused(empty.doit(project, "ci_plan", *form), "there is no pipeline")


def test_without_a_cache_nothing_is_restorable(
    team: tuple[Shared, Project], tmp_path: Path
) -> None:
    shared, _ = team
    project = Project.create(tmp_path / "p", targets=TWO)
    result = project.doit("ci_plan", "--matrix", env={**shared.env, "MNNQNN_CACHE": "off"})
    assert len(json.loads(result.text)["include"]) == 2
