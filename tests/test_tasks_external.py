"""Exports with doubled tools through doit: any mixture, and what a change calls again."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from external_doubles import COMPILE, CONTEXT, IO, MODEL_LIB, Tools, mnn_build, qnn_sdk
from tasks_project import Project, exported, flip_weight

ALL = {"io": "external", "partition": "external", "link": "external"}


@dataclass
class Bench:
    """Doubled tools, and a project that was exported with them for two chips."""

    mnn: Tools
    sdk: Tools
    folder: Path
    pattern: Project

    def pipeline(self, project: Project, **stages: str) -> None:
        chain = {
            **stages,
            "mnn_path": str(self.mnn.folder),
            "qnn_sdk_root": str(self.folder / "sdk"),
        }
        project.pipeline(toolchain=chain)

    def copy(self, root: Path) -> Project:
        shutil.copytree(self.pattern.root, root, copy_function=shutil.copy2)
        for tools in (self.mnn, self.sdk):
            tools.mode()
            tools.forget()
        return Project(root)

    def counts(self) -> dict[str, int]:
        return {
            tool: len(tools.calls(tool))
            for tools, names in ((self.mnn, (IO, COMPILE)), (self.sdk, (MODEL_LIB, CONTEXT)))
            for tool in names
        }


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    top = tmp_path_factory.mktemp("bench")
    mnn, sdk = mnn_build(top / "mnn", IO), qnn_sdk(top / "sdk")
    made = Bench(mnn, sdk, top, Project.create(top / 'it\'s "a", ü'))
    made.pipeline(made.pattern, **ALL)
    result = made.pattern.doit("export_qnn")
    assert result.code == 0, result.text
    assert made.counts() == {IO: 1, COMPILE: 1, MODEL_LIB: 10, CONTEXT: 5}
    return made


def binaries(project: Project) -> dict[str, bytes]:
    return {name: data for name, data in project.tree().items() if name.startswith("m/a/qnn/")}


def test_all_external_is_all_native_byte_for_byte(bench: Bench, tmp_path: Path) -> None:
    native = exported(tmp_path / "n")
    assert binaries(bench.pattern) == binaries(native)
    made = json.loads((bench.pattern.bundle() / "bundle.json").read_text())
    assert made["library"].startswith("QAIRT SDK 2.38.0.250901, ")
    for name in ("config_qnn.json", "llm_config.json"):
        assert (bench.pattern.bundle() / name).read_bytes() == (native.bundle() / name).read_bytes()


def test_the_qnn_tools_get_all_the_stack_there_is(bench: Bench) -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    calls = bench.sdk.calls(MODEL_LIB) + bench.sdk.calls(CONTEXT)
    assert {call["stack"] for call in calls} <= {hard}


def test_nothing_changed_calls_nothing(bench: Bench, tmp_path: Path) -> None:
    project = bench.copy(tmp_path / "p")
    result = project.doit("export_qnn")
    assert result.code == 0 and result.ran == set(), result.text
    assert set(bench.counts().values()) == {0}


def test_one_other_source_is_one_library_and_one_binary(bench: Bench, tmp_path: Path) -> None:
    """compilefornpu runs as a whole; what it wrote anew decides what runs after it."""
    project = bench.copy(tmp_path / "p")
    bench.mnn.mode(compilefornpu="other raw")
    assert project.doit("forget", "partition:m").code == 0
    result = project.doit("export_qnn")
    assert result.code == 0, result.text
    assert bench.counts() == {IO: 0, COMPILE: 1, MODEL_LIB: 1, CONTEXT: 1}
    assert result.ran == {*("partition:m", "compile:m:graph4", "link:m:a:graph4", "bundle:m:a")}


def test_one_weight_is_the_graphs_that_read_it(bench: Bench, tmp_path: Path) -> None:
    project = bench.copy(tmp_path / "p")
    flip_weight(project, 2)
    result = project.doit("export_qnn")
    assert result.code == 0, result.text
    assert result.ran_of("compile") == {"m:graph2", "m:graph1_2"}
    assert result.ran_of("link") == {"m:a:graph2"}
    assert bench.counts() == {IO: 1, COMPILE: 1, MODEL_LIB: 2, CONTEXT: 1}


def test_another_sdk_links_again(bench: Bench, tmp_path: Path) -> None:
    project = bench.copy(tmp_path / "p")
    other = tmp_path / "qairt"
    shutil.copytree(bench.folder / "sdk", other, symlinks=True)
    (other / "sdk.yaml").write_text("version: 2.42.0\n")
    project.pipeline(
        toolchain={**ALL, "mnn_path": str(bench.mnn.folder), "qnn_sdk_root": str(other)}
    )
    result = project.doit("why")
    stale = [line for line in result.text.splitlines() if "QAIRT SDK changed" in line]
    assert len(stale) == 16, result.text  # 10 libraries, 5 binaries, 1 bundle
    assert {line.split(":")[0] for line in stale} == {"compile", "link", "bundle"}


def test_sources_of_compilefornpu_link_without_an_sdk(bench: Bench, tmp_path: Path) -> None:
    project = bench.copy(tmp_path / "p")
    bench.pipeline(project, io="external", partition="external")
    result = project.doit("export_qnn")
    assert result.code == 0, result.text
    assert len(result.ran_of("translate")) == 10
    assert set(bench.counts().values()) == {0}
    assert binaries(project) == binaries(bench.pattern)
    result = project.doit("verify_qnn", "--shape", "1")
    assert result.code == 0, result.text


def test_our_sources_link_with_an_sdk(bench: Bench, tmp_path: Path) -> None:
    project = exported(tmp_path / "p")
    made = [project.build / "targets" / "a" / f"graph{n}.bin" for n in (0, 4)]
    before = [path.read_bytes() for path in made]
    bench.copy(tmp_path / "unused")
    bench.pipeline(project, link="external")
    result = project.doit("link:m:a:graph0", "link:m:a:graph4")
    assert result.code == 0, result.text
    assert result.ran_of("compile") == {f"m:graph{n}" for n in ("0", "1_0", "4", "1_4")}
    assert bench.counts() == {IO: 0, COMPILE: 0, MODEL_LIB: 4, CONTEXT: 2}
    assert [path.read_bytes() for path in made] == before


def run_failing(bench: Bench, project: Project, tools: Tools, **modes: str) -> str:
    before = project.tree()
    tools.mode(**modes)
    assert project.doit("forget", "partition:m", "link:m").code == 0
    result = project.doit("export_qnn")
    assert result.code != 0
    assert "Traceback" not in result.text
    assert project.tree() == before
    return result.text


def test_a_crash_costs_one_task_and_is_named(bench: Bench, tmp_path: Path) -> None:
    project = bench.copy(tmp_path / "p")
    text = run_failing(bench, project, bench.mnn, compilefornpu="segv")
    assert "partition:m: compilefornpu was ended by SIGSEGV" in text
    assert "about to read through a null pointer" in text
    assert str(project.build / "logs" / "partition.log") in text
    log = (project.build / "logs" / "partition.log").read_text()
    assert "about to read" in log and "model/llm.mnn qnn/llm.mnn qnn.json" in log


def test_an_op_left_out_is_named(bench: Bench, tmp_path: Path) -> None:
    project = bench.copy(tmp_path / "p")
    text = run_failing(bench, project, bench.mnn, compilefornpu="missing")
    assert "left out the op /layers.1/StridedSlice_output_0" in text


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        ({"partition": "external", "mnn_path": "/no/where"}, "there is no compilefornpu"),
        ({"io": "external", "mnn_path": "/no/where"}, "no tool of MNN's that makes IO samples"),
        ({"link": "external", "qnn_sdk_root": "/no/where"}, "is not in the QAIRT SDK"),
    ],
)
def test_missing_tools_are_one_message(
    bench: Bench, tmp_path: Path, chain: dict[str, Any], words: str
) -> None:
    project = bench.copy(tmp_path / "p")
    project.pipeline(toolchain=chain)
    result = project.doit("export_qnn")
    assert result.code != 0
    assert words in result.text and "Traceback" not in result.text


def test_clean_removes_what_tools_left(bench: Bench, tmp_path: Path) -> None:
    project = bench.copy(tmp_path / "p")
    assert project.doit("clean").code == 0
    left = [p for p in project.build.rglob("*") if p.is_file()]
    assert left == []


def test_live_shows_a_tool_as_it_works(bench: Bench, tmp_path: Path) -> None:
    project = bench.copy(tmp_path / "p")
    assert project.doit("forget", "partition:m").code == 0
    result = project.doit("live=1", "partition:m")
    assert "partition:m | Write config to npu_postreat.json" in result.text
