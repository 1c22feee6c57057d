"""Bad input: one message, no traceback, a non-zero exit, and nothing lost that was built."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tasks_project import MODEL, Project, exported


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return exported(tmp_path / "p")


def _two_models(project: Project, broken: Path) -> None:
    shutil.copytree(project.model, broken, copy_function=shutil.copyfile)
    value = json.loads((project.root / "pipelines" / "p.yaml").read_text("utf-8"))
    second = {"name": "z", "path": str(broken), "chunk_sizes": [16]}
    value["models"] = [second, *value["models"]]
    (project.root / "pipelines" / "p.yaml").write_text(json.dumps(value), "utf-8")


def _remove_weight(folder: Path) -> None:
    (folder / "llm.mnn.weight").unlink()


def _truncate_weight(folder: Path) -> None:
    os.truncate(folder / "llm.mnn.weight", 1000)


def _truncate_model(folder: Path) -> None:
    os.truncate(folder / "llm.mnn", 1000)


def _foreign_model(folder: Path) -> None:
    (folder / "llm.mnn").write_text("this is no model\n" * 100, "utf-8")


BREAK = [_remove_weight, _truncate_weight, _truncate_model, _foreign_model, shutil.rmtree]


@pytest.mark.parametrize("damage", BREAK, ids=lambda f: f.__name__)
def test_a_broken_model_costs_nothing_else(project: Project, damage: Any) -> None:
    broken = project.root / "broken"
    _two_models(project, broken)
    damage(broken)
    before = project.tree()
    shutil.rmtree(project.build / "targets")  # something to do for the good model
    result = project.doit("export_qnn")
    assert result.code not in (0, 3), result.text
    assert "Traceback" not in result.text
    assert result.text.count("broken") <= 2  # one message
    assert "model:z" in result.text
    assert "link:m:a:graph0" in result.ran
    assert project.tree() == before


def test_a_model_that_comes_back_runs_nothing(project: Project) -> None:
    """A failure forgets nothing: records name contents, and the contents are right again."""
    weight = project.model / "llm.mnn.weight"
    weight.rename(project.root / "away")
    assert project.doit("export_qnn").code != 0
    (project.root / "away").rename(weight)
    result = project.doit("export_qnn")
    assert result.code == 0
    assert result.ran == set(), result.text


def test_one_name_in_two_pipelines(project: Project) -> None:
    project.pipeline(name="q.yaml")
    result = project.doit("export_qnn")
    assert result.code == 3
    assert "p.yaml" in result.text and "q.yaml" in result.text
    assert "Traceback" not in result.text


@pytest.mark.parametrize(
    ("text", "said"),
    [("models: [", "p.yaml"), ("version: 1\nmodles: []\n", "models"), ("", "p.yaml")],
)
def test_bad_pipeline(project: Project, text: str, said: str) -> None:
    (project.root / "pipelines" / "p.yaml").write_text(text, "utf-8")
    for command in ("export_qnn", "list"):
        result = project.doit(command)
        assert result.code == 3
        assert said in result.text
        assert "Traceback" not in result.text


def test_no_pipeline(project: Project) -> None:
    shutil.rmtree(project.root / "pipelines")
    result = project.doit()
    assert result.code == 3 and "pipeline=FILE" in result.text


@pytest.mark.parametrize("content", [b"\0\xff\xfe garbage", b"{}\n[1]\nnull\n", b'["a", {}]\n"x'])
def test_damaged_database_starts_anew(project: Project, content: bytes) -> None:
    before = project.tree()
    (project.root / "build" / ".mnnqnn" / "tasks.jsonl").write_bytes(content * 3)
    result = project.doit("export_qnn:m:a")
    assert result.code == 0, result.text
    assert "Traceback" not in result.text
    assert result.text.count("WARNING") <= 1
    assert "bundle:m:a" in result.ran
    assert project.tree() == before
    assert project.doit().ran == set()


def test_damaged_plan_is_made_anew(project: Project) -> None:
    (project.build / "plan.json").write_text("{", "utf-8")
    for command in (["list", "--all"], ["why"]):
        result = project.doit(*command)
        assert "Traceback" not in result.text
    result = project.doit("export_qnn")
    assert result.code == 0, result.text
    assert result.ran == {"partition:m"}


def test_second_run_in_the_same_folder(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "p")
    first = project.start("export_qnn")
    lock = project.root / "build" / ".mnnqnn" / "lock"
    while not (lock.exists() and lock.read_text()):
        time.sleep(0.01)
    second = project.doit("export_qnn")
    assert second.code == 3
    assert f"process {first.pid}" in second.text
    assert "Traceback" not in second.text
    assert project.doit("list").code == 0  # looking is allowed
    first.send_signal(signal.SIGTERM)
    text, _ = first.communicate(timeout=60)
    assert first.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in text and "interrupted" in text


def test_model_rewritten_during_the_run(project: Project) -> None:
    """The result is not called fresh: not by this run, and not by the next."""
    weight = project.model / "llm.mnn.weight"
    shutil.rmtree(project.build / "targets")
    with project.start("export_qnn") as run:
        line = ""
        while run.poll() is None and "link:" not in line:
            line = run.stdout.readline()
        data = bytearray(weight.read_bytes())
        data[len(data) // 2] ^= 1
        weight.write_bytes(data)
        text, _ = run.communicate(timeout=600)
    assert run.returncode == 3
    assert "the model changed while it was exported" in text
    assert "Traceback" not in text
    assert "model:m" in project.doit("export_qnn").ran


def test_full_disk(project: Project) -> None:
    """A limit on file sizes stands for a full disk: writes fail part of the way."""
    import resource

    before = project.tree()
    shutil.rmtree(project.build / "targets")
    result = project.doit(
        "export_qnn",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)),
    )
    assert result.code != 0
    assert "Traceback" not in result.text
    assert project.tree() == before
    assert project.doit("export_qnn").code == 0
    assert project.tree() == before


def _journal_is_a_folder(project: Project) -> dict[str, Any]:
    path = project.root / "build" / ".mnnqnn" / "tasks.jsonl"
    path.unlink()
    path.mkdir()
    return {}


def _journal_meets_a_full_disk(project: Project) -> dict[str, Any]:
    """Dead lines make the journal the largest file, so that it alone meets the limit."""
    import resource

    path = project.root / "build" / ".mnnqnn" / "tasks.jsonl"
    line = b'["x:y", null]\n'
    path.write_bytes(line * (2_000_000 // len(line)))
    limit = path.stat().st_size + 6_000  # some tasks fit
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))}


@pytest.mark.parametrize("damage", [_journal_is_a_folder, _journal_meets_a_full_disk])
def test_a_journal_that_cannot_be_written_ends_the_run(project: Project, damage: Any) -> None:
    before = project.tree()
    options = damage(project)
    result = project.doit("-n", "2", "export_qnn", **options)
    assert result.code not in (0, None)
    assert "Traceback" not in result.text and "Exception ignored" not in result.text
    assert "was ended by signal" not in result.text
    assert result.text.count("tasks.jsonl: cannot write") == 1, result.text
    assert project.tree() == before


@pytest.mark.parametrize("command", ["export_qnn", "why"])
def test_nobody_reads_the_output(project: Project, command: str) -> None:
    """As in ``doit export_qnn | head -1``: the work is done all the same."""
    shutil.rmtree(project.build / "targets")
    shutil.rmtree(project.bundle())
    reader, writer = os.pipe()
    with project.start(command, stdout=writer, stderr=subprocess.PIPE) as run:
        os.close(writer)
        os.close(reader)
        _, text = run.communicate(timeout=300)
    assert run.returncode == 0
    assert not text, text
    assert (command == "export_qnn") == (project.bundle() / "config_qnn.json").exists()


def test_missing_wheel(project: Project, tmp_path: Path) -> None:
    """A search path without the MNN wheel, as in a half-made environment."""
    result = project.doit("export_qnn", env={"MNNQNN_TEST_HIDE": "MNN", **_hiding(tmp_path)})
    assert result.code == 3
    assert "pip install" in result.text
    assert "Traceback" not in result.text


def _hiding(folder: Path) -> dict[str, str]:
    """A sitecustomize that makes a distribution's metadata unfindable."""
    (folder / "hide").mkdir()
    (folder / "hide" / "sitecustomize.py").write_text(
        "import importlib.metadata as m, os\n"
        "real = m.Distribution.from_name.__func__\n"
        "def from_name(cls, name):\n"
        "    if name == os.environ.get('MNNQNN_TEST_HIDE'):\n"
        "        raise m.PackageNotFoundError(name)\n"
        "    return real(cls, name)\n"
        "m.Distribution.from_name = classmethod(from_name)\n",
        "utf-8",
    )
    paths = [str(folder / "hide"), str(MODEL.parents[1])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def test_odd_paths(tmp_path: Path) -> None:
    """Spaces, quotes and Chinese characters in every path; a file that no cache can name."""
    root = tmp_path / "ein \"Ordner\" 'mit' 中文"
    project = Project.create(root, path="../模 型's", build_dir="../bü ild", dist_dir="../发 布")
    project.model.rename(root / "模 型's")
    (root / "pipelines" / "p.yaml").rename(root / "pipelines" / "管 道's.yaml")
    (root / "模 型's" / "tokenizer　额 外\\.txt").write_text("odd")
    env = {"MNNQNN_CACHE": "on", "MNNQNN_CACHE_DIR": str(root / "缓 存")}
    result = project.doit("pipeline=pipelines/管 道's.yaml", "export_qnn", env=env)
    assert result.code == 0, result.text
    assert (root / "发 布" / "m" / "a" / "tokenizer　额 外\\.txt").read_text() == "odd"
    assert (root / "发 布" / "m" / "a" / "qnn" / "graph0.bin").exists()
    assert project.doit("export_qnn").ran == set()
