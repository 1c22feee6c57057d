"""Many models in one run: what fails, what does not, and how that is told."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tasks_project import MODEL, Project, exported

from mnnqnn_tasks.mnn import reader, writer
from mnnqnn_tasks.spec.schemas import schema

TWO = ({"name": "a", "soc_id": 57}, {"name": "b", "soc_id": 69})


def report(project: Project) -> dict[str, Any]:
    """The report of the last run, which keeps to its schema."""
    found: dict[str, Any] = json.loads((project.root / "build/report.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema("run")).validate(found)
    return found


def told(project: Project) -> dict[tuple[str, str], str]:
    return {(e["model"], e["target"]): e["outcome"] for e in report(project)["exports"]}


def timeless(found: Any) -> Any:
    """Without what is measured."""
    if isinstance(found, dict):
        kept = {k: v for k, v in found.items() if k not in ("seconds", "peak_bytes")}
        return {k: timeless(v) for k, v in kept.items()}
    return [timeless(v) for v in found] if isinstance(found, list) else found


def rows(text: str) -> list[list[str]]:
    """The cells of the table at the end of a run."""
    lines = [line.split() for line in text.splitlines()]
    head = lines.index(["model", "target", "outcome", "tasks", "time"])
    return lines[head + 1 : next(i for i, c in enumerate(lines) if c[:1] == ["exports:"])]


def unknown_op(folder: Path) -> None:
    net = reader.read(folder / "llm.mnn")
    net.oplists[7].fields["type"] = 9999
    writer.write(folder / "llm.mnn", net)


def add_models(project: Project) -> None:
    for name in ("short", "foreign"):
        folder = project.root / "more" / name
        shutil.copytree(MODEL, folder, copy_function=shutil.copyfile)
        folder.chmod(0o755)
    os.truncate(project.root / "more/short/llm.mnn.weight", 5000)
    unknown_op(project.root / "more/foreign")
    models = [
        {"path": "../more/*", "chunk_sizes": [16]},
        {"name": "m", "path": "../model", "chunk_sizes": [16]},
    ]
    project.pipeline(models=models, targets=TWO)


def test_failing_models_do_not_stop_the_others(tmp_path: Path) -> None:
    project = exported(tmp_path / "p")
    add_models(project)
    result = project.doit("export_qnn")
    assert result.code == 1, result.text
    assert "Traceback" not in result.text
    assert "does not know" in result.text and "past the end" in result.text
    assert [row[:4] for row in rows(result.text)] == [
        *(["foreign", part, "failed", "0"] for part in "ab"),
        *(["short", part, "failed", "0"] for part in "ab"),
        ["m", "b", "built", "8"],
    ]
    assert "\nexports: 1 built, 1 up to date, 4 failed\n" in result.text
    assert (project.bundle("b") / "config_qnn.json").exists()

    first = report(project)
    assert first["outcome"] == "failed"
    tasks = first["tasks"]
    assert "does not know" in tasks["model:foreign"]["reason"]
    assert tasks["bundle:short:a"]["outcome"] == "not run"
    link = tasks["link:m:b:graph0"]
    assert link["outcome"] == "run" and link["seconds"] > 0 and link["files"] == 2
    files = [project.build / "targets/b" / f"graph0.{end}" for end in ("bin", "json")]
    assert link["bytes"] == sum(path.stat().st_size for path in files)
    assert 50e6 < link["peak_bytes"] < 1e9
    assert link["cache"] == {"outcome": "off", "key": None}
    assert tasks["link:m:a:graph0"]["outcome"] == "fresh"
    assert sum(first["totals"].values()) == len(tasks)
    assert list(tasks) == sorted(tasks)

    again = project.doit("export_qnn")
    assert again.code == 1
    assert {row[0] for row in rows(again.text)} == {"foreign", "short"}
    assert "\nexports: 2 up to date, 4 failed\n" in again.text
    second = report(project)
    assert project.doit("-n", "1", "export_qnn").code == 1
    assert timeless(report(project)) == timeless(second)

    good = project.doit("export_qnn:m")
    assert good.code == 0 and "exports:" not in good.text
    assert told(project) == {("m", "a"): "up to date", ("m", "b"): "up to date"}


def test_a_target_waits_for_another_ones_failure(tmp_path: Path) -> None:
    project = exported(tmp_path / "p")
    unknown = {"name": "b", "soc_id": 4711, "dsp_arch": "v75"}
    project.pipeline(targets=({"name": "a", "soc_id": 57}, unknown))
    result = project.doit("export_qnn")
    assert result.code == 1, result.text
    found = {row[1]: row[2:] for row in rows(result.text)}
    assert found["b"][0] == "failed" and found["b"][-1] == "validate:m:b"
    assert found["a"][0] == "skipped" and found["a"][-3:] == ["waits", "for", "validate:m:b"]
    assert told(project) == {("m", "a"): "skipped", ("m", "b"): "failed"}


def test_one_model_and_target_has_no_table_but_a_report(tmp_path: Path) -> None:
    project = exported(tmp_path / "p")
    (project.build / "targets/a/graph0.bin").unlink()
    result = project.doit("export_qnn")
    assert result.code == 0 and "exports:" not in result.text
    found = report(project)
    assert found["outcome"] == "ok" and found["selected"] == ["export_qnn"]
    assert told(project) == {("m", "a"): "built"}
    assert found["tasks"]["link:m:a:graph0"]["reason"].endswith("graph0.bin is missing")
    assert found["exports"][0]["tasks"] == len(result.ran) == 1
    nothing = project.doit("export_qnn")
    assert nothing.ran == set()
    found = report(project)
    assert told(project) == {("m", "a"): "up to date"}
    assert {task["outcome"] for task in found["tasks"].values()} == {"fresh"}
    assert found["tasks"]["bundle:m:a"]["bytes"] == sum(
        path.stat().st_size for path in project.bundle().rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_has_a_report(tmp_path: Path, number: int) -> None:
    project = Project.create(tmp_path / "p")
    with project.start("export_qnn") as run:
        assert any(line.startswith("cut:") for line in run.stdout or ())
        run.send_signal(number)
        run.communicate(timeout=150)
    assert run.returncode == 128 + number
    found = report(project)
    assert found["outcome"] == "interrupted"
    assert told(project) == {("m", "a"): "not finished"}
    assert found["tasks"]["cut:m"]["outcome"] == "run"
    assert found["tasks"]["bundle:m:a"]["reason"] == "the run was interrupted"


def test_a_part_of_the_work_is_a_part_of_the_report(tmp_path: Path) -> None:
    project = exported(tmp_path / "p")
    assert project.doit("partition").code == 0
    found = report(project)
    assert found["exports"] == [] and "partition:m" in found["tasks"]
    assert not any(name.startswith(("link:", "translate:")) for name in found["tasks"])
    assert project.doit("list").code == 0
    assert report(project) == found  # only a run writes it


def test_a_report_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    project = exported(tmp_path / "p")
    (project.root / "build/report.json").unlink(missing_ok=True)
    (project.root / "build/report.json").mkdir()
    result = project.doit("export_qnn")
    assert result.code == 0 and "WARNING" in result.text and "report.json" in result.text


def test_every_build_folder_has_a_report_of_its_own(tmp_path: Path) -> None:
    project = exported(tmp_path / "p")
    other = tmp_path / "other"
    shutil.copytree(project.root / "build", other / "build", copy_function=shutil.copy2)
    model = {"name": "n", "path": "../missing", "chunk_sizes": [16]}
    project.pipeline(name="q.yaml", models=[model], build_dir=str(other / "build"))
    assert project.doit("export_qnn").code == 1
    assert told(project) == {("m", "a"): "up to date"}
    found = json.loads((other / "build/report.json").read_text("utf-8"))
    assert [e["model"] for e in found["exports"]] == ["n"]
    assert found["outcome"] == "failed"


def test_what_comes_from_the_cache_is_told(tmp_path: Path) -> None:
    env = {"MNNQNN_CACHE": "on", "MNNQNN_CACHE_DIR": str(tmp_path / "cache")}
    first, second = Project.create(tmp_path / "1"), Project.create(tmp_path / "2", targets=TWO)
    assert first.doit("export_qnn", env=env).code == 0
    asked = report(first)["tasks"]["link:m:a:graph0"]["cache"]
    assert asked["outcome"] == "miss" and asked["key"]
    result = second.doit("export_qnn", env=env)
    assert result.code == 0, result.text
    assert "  from the cache" in result.text and " restored, " in result.text
    assert told(second) == {("m", "a"): "restored", ("m", "b"): "built"}
    hits = [t for t in report(second)["tasks"].values() if t["outcome"] == "restored"]
    assert hits and all(t["cache"]["outcome"] == "hit" and t["cache"]["key"] for t in hits)
