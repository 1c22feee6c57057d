"""What a user's own tools made goes through the cache if it is known what they are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from external_doubles import COMPILE, CONTEXT, IO, MODEL_LIB, Tools, mnn_build, qnn_sdk
from tasks_project import Project, flip_weight
from tasks_shared import Shared, outcomes
from test_tasks_cache import built

EXTERNAL = {"io": "external", "partition": "external", "link": "external"}
NOTHING = {IO: 0, COMPILE: 0, MODEL_LIB: 0, CONTEXT: 0}


@dataclass
class Machine:
    """A folder with tools of its own and a project, and the cache that all machines share."""

    shared: Shared
    name: str
    mnn: Tools
    sdk: Tools
    project: Project

    @classmethod
    def make(cls, shared: Shared, name: str) -> Machine:
        """Its tools are doubles, scripts that use ``double.py``: the pipeline says so."""
        top = shared.root / name
        mnn, sdk = mnn_build(top / "mnn" / name, IO), qnn_sdk(top / f"sdk of {name}")
        made = cls(shared, name, mnn, sdk, shared.project(name))
        made.pipeline(tools=[str(mnn.folder / "double.py")])
        return made

    def pipeline(self, **more: Any) -> None:
        root = str(self.sdk.folder.parents[1])
        places = {"mnn_path": str(self.mnn.folder), "qnn_sdk_root": root}
        lengths = {"chunk_sizes": more.pop("chunk_sizes", (16,))}
        self.project.pipeline(toolchain={**EXTERNAL, **places, **more}, **lengths)

    def export(self, *tasks: str) -> set[str]:
        for tools in (self.mnn, self.sdk):
            tools.forget()
        result = self.shared.doit(self.project, *(tasks or ("export_qnn",)))
        assert result.code == 0, result.text
        return result.ran

    def calls(self) -> dict[str, int]:
        both = {
            **dict.fromkeys((IO, COMPILE), self.mnn),
            **dict.fromkeys((MODEL_LIB, CONTEXT), self.sdk),
        }
        return {name: len(tools.calls(name)) for name, tools in both.items()}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    made = Machine.make(Shared(tmp_path_factory.mktemp("shared")), "first")
    made.export()
    assert made.calls() == {IO: 1, COMPILE: 1, MODEL_LIB: 10, CONTEXT: 5}
    return made


def test_the_second_machine_calls_no_tool(first: Machine) -> None:
    second = Machine.make(first.shared, "second")
    planned = first.shared.doit(second.project, "ci_plan").text
    assert "restorable" in planned.splitlines()[0], planned
    assert second.export() == {"bundle:m:a"}
    assert second.calls() == NOTHING
    assert second.project.tree() == first.project.tree()
    assert second.export() == set()


def test_every_stage_comes_from_the_cache(first: Machine) -> None:
    first.export("io", "translate", "link")
    third = Machine.make(first.shared, "third")
    third.export("io", "translate", "link")
    assert third.calls() == NOTHING
    found = outcomes(third.project)
    assert {task for task, outcome in found.items() if outcome != "hit"} == {"model:m"}
    mine, theirs = built(third.project), built(first.project)
    assert mine == {name: theirs[name] for name in mine}
    assert {name.split("/")[0] for name in set(theirs) - set(mine)} == {"logs"}
    flip_weight(third.project, 2)
    third.export("link")
    assert third.calls() == {IO: 1, COMPILE: 1, MODEL_LIB: 2, CONTEXT: 1}


def test_other_lengths_are_other_samples(first: Machine) -> None:
    other = Machine.make(first.shared, "lengths")
    other.pipeline(tools=[str(other.mnn.folder / "double.py")], chunk_sizes=(24,))
    other.export("io")
    assert other.calls() == {**NOTHING, IO: 1}
    assert {path.name for path in (other.project.build / "testdir").iterdir()} == {"1", "24"}


def test_other_tools_make_their_own(first: Machine) -> None:
    other = Machine.make(first.shared, "other")
    with (other.mnn.folder / COMPILE).open("a") as text:
        text.write("# another build\n")
    other.export("partition:m")
    assert other.calls() == {**NOTHING, IO: 1, COMPILE: 1}
    said = other.sdk.folder.parents[1] / "sdk.yaml"
    before = said.read_text()
    for version, calls in (("version: 2.42.0\n", 1), (before, 0)):
        said.write_text(version)
        other.export("compile:m:graph0")
        assert other.calls() == {**NOTHING, MODEL_LIB: calls}


def test_of_tools_that_nobody_knows_nothing_is_kept(first: Machine) -> None:
    unknown = Machine.make(first.shared, "unknown")
    unknown.pipeline()  # scripts, and nobody says what they run
    (unknown.sdk.folder.parents[1] / "sdk.yaml").unlink()
    unknown.export("partition:m")
    assert unknown.calls() == {**NOTHING, IO: 1, COMPILE: 1}
    unknown.export("compile:m:graph0")
    assert unknown.calls() == {**NOTHING, MODEL_LIB: 1}
    assert set(outcomes(unknown.project).values()) == {"off"}
    plan = json.loads(first.shared.doit(unknown.project, "ci_plan", "--json").text)
    assert [part["key"] for part in plan["parts"]] == [None]


def test_a_tool_that_is_replaced_while_it_works(first: Machine) -> None:
    changing = Machine.make(first.shared, "changing")
    changing.mnn.mode(compilefornpu="replaced")
    (changing.mnn.folder / COMPILE).open("a").write("# mine\n")
    result = first.shared.doit(changing.project, "partition:m")
    assert result.code == 1
    assert f"{changing.mnn.folder / COMPILE}: the tool changed after the run began" in result.text
    changing.mnn.mode()
    changing.export("partition:m")
    assert changing.calls()[COMPILE] == 1
