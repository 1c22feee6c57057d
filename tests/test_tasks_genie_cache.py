"""Pipelines of ``kind: genie`` and the cache: nothing is compiled twice; plan and report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
from external_doubles import Tools
from tasks_project import REPO, Result
from test_tasks_genie import ONNX, Genie, command, write_onnx

SCHEMAS = {
    name: json.loads((REPO / "schemas" / f"{name}.schema.json").read_text("utf-8"))
    for name in ("ci_plan", "run")
}


class Team:
    """A cache, and checkouts that share it."""

    def __init__(self, top: Path) -> None:
        self.env = {"MNNQNN_CACHE": "on", "MNNQNN_CACHE_DIR": str(top / "cache")}

    def doit(self, project: Genie, *args: str) -> Result:
        return project.doit(*args, env=self.env)

    def plan(self, project: Genie) -> tuple[str, list[str], Any]:
        """State, reasons and key of the one bundle."""
        said = json.loads(self.doit(project, "ci_plan", "--json").text)
        jsonschema.validate(said, SCHEMAS["ci_plan"])
        (part,) = said["parts"]
        assert part["task"] == "export_genie:m:a"
        reasons = [f"{r['task']}: {r['reason']}" for r in part["reasons"]]
        return part["state"], reasons, part["key"]

    def matrix(self, project: Genie) -> list[dict[str, str]]:
        """The rows of what must be built."""
        rows = json.loads(self.doit(project, "ci_plan", "--matrix").text)["include"]
        assert isinstance(rows, list)
        return rows

    def tasks(self, project: Genie) -> dict[str, Any]:
        """The tasks of the last run's report."""
        report = json.loads((project.root / "build" / "report.json").read_text())
        jsonschema.validate(report, SCHEMAS["run"])
        assert [(row["model"], row["target"]) for row in report["exports"]] == [("m", "a")]
        tasks: dict[str, Any] = report["tasks"]
        return tasks


def copy(project: Genie, root: Path) -> Genie:
    """Another checkout: what a pipeline reads, and nothing that was made of it."""
    ignored = shutil.ignore_patterns("build", "dist")
    shutil.copytree(project.root, root, ignore=ignored)
    return Genie(root)


def test_what_one_checkout_compiled_no_other_one_compiles(tmp_path: Path) -> None:
    team, first = Team(tmp_path), Genie.make(tmp_path / "first")
    state, reasons, key = team.plan(first)
    assert (state, reasons) == ("build", ["bundle:m:a: it was not exported here"])
    assert team.matrix(first) == [{"model": "m", "target": "a", "task": "export_genie:m:a"}]
    done = team.doit(first)
    assert done.code == 0, done.text
    assert team.plan(first) == ("fresh", [], key)
    compiled = team.tasks(first)["compile:m:a:1"]
    assert compiled["cache"]["outcome"] == "miss" and compiled["files"] == 2

    second = copy(first, tmp_path / "second")
    assert team.plan(second) == ("restorable", reasons, key)
    assert team.matrix(second) == []
    taken = team.doit(second)
    assert taken.code == 0 and taken.ran == {"bundle:m:a"}, taken.text
    assert "restored" in taken.text
    assert second.tree() == first.tree()
    assert team.tasks(second)["bundle:m:a"]["cache"] == {"outcome": "hit", "key": key}
    assert team.doit(second).ran == set()
    assert "left by earlier pipelines" not in taken.text

    second.put(2, step=3)
    state, reasons, other = team.plan(second)
    assert (state, other != key) == ("build", True)
    assert "graph token_ar1_cl64_2_of_2 changed" in reasons[0], reasons
    again = team.doit(second)
    assert again.code == 0, again.text
    outcomes = {n: t["cache"]["outcome"] for n, t in team.tasks(second).items() if t.get("cache")}
    assert outcomes["compile:m:a:1"] == "hit" and outcomes["compile:m:a:2"] == "miss"

    first.put(2, step=3)  # of a bundle that was made here the stages say what changed
    state, reasons, _ = team.plan(first)
    assert state == "restorable" and reasons[0].startswith("name:m:prompt_ar16_cl64_2_of_2: ")
    back = team.doit(first)
    assert back.ran_of("compile") == {"m:a:2"}
    assert team.tasks(first)["compile:m:a:2"]["cache"]["outcome"] == "hit"
    assert first.tree() == second.tree()


def test_what_cannot_be_read_is_one_to_build(tmp_path: Path) -> None:
    team, project = Team(tmp_path), Genie.make(tmp_path / "p")
    (project.root / "graphs" / "token_2_net.json").unlink()
    state, reasons, key = team.plan(project)
    assert (state, key) == ("build", None)
    assert reasons[0].startswith("name:m:token_ar1_cl64_2_of_2: ")
    wrong = team.doit(project, "ci_plan", "name:m:values")
    assert wrong.code == 3 and "is no export" in wrong.text


def test_what_genie_refuses_is_never_restorable(tmp_path: Path) -> None:
    """Its binaries are in the cache, its bundle never was."""
    team = Team(tmp_path)
    first = Genie.make(tmp_path / "first", model={"context_lengths": [128]})
    assert team.doit(first).code == 1
    assert team.plan(copy(first, tmp_path / "second"))[0] == "build"


def test_a_command_goes_through_the_cache_if_its_tools_are_known(tmp_path: Path) -> None:
    """Two models that differ in nothing else: of one the pipeline says what compiles it."""
    team, tools = Team(tmp_path), Tools(tmp_path / "tools", ("genie-compiler",))
    first = Genie.make(tmp_path / "first", 1)
    (first.root / "sdk").mkdir()
    (first.root / "sdk" / "lib.so").write_text("1")
    for kind in ("prompt", "token"):
        write_onnx(first.root / "graphs" / f"{kind}_1.onnx", "main_graph")
    for name, said in (("m", {"tools": ["../sdk"]}), ("secret", {})):
        chain = {"command": command(tools), **said}
        first.say(f"{name}.yaml", model={**ONNX, "name": name, "splits": 1}, compile=chain)
    (first.root / "pipelines" / "g.yaml").unlink()

    def states(project: Genie) -> dict[str, str]:
        parts = json.loads(team.doit(project, "ci_plan", "--json").text)["parts"]
        return {part["model"]: part["state"] for part in parts}

    second = copy(first, tmp_path / "second")
    assert team.doit(first).code == 0
    assert states(second) == {"m": "restorable", "secret": "build"}
    assert team.doit(second).code == 0
    assert len(tools.calls("genie-compiler")) == 3
    (second.root / "sdk" / "lib.so").write_text("2")
    assert states(second) == {"m": "build", "secret": "fresh"}
