"""Stages done by Dask workers: the bytes of a local run, whatever becomes of the workers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from dask_cluster import Cluster, alive, become_gone, sticking, stuck_at
from tasks_project import MODEL, REPO, Project, exported

from mnnqnn_tasks.files import TEMP_PREFIX

SIX = [f"m{i}" for i in range(6)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster.started(tmp_path_factory.mktemp("dask")) as started:
        yield started


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return exported(tmp_path_factory.mktemp("done") / "p").tree()


def batch(root: Path, **changes: str) -> Project:
    """Six models that differ in some weights each."""
    project = Project.create(root)
    for i, name in enumerate(SIX):
        shutil.copytree(MODEL, root / "models" / name, copy_function=shutil.copyfile)
        with open(root / "models" / name / "llm.mnn.weight", "r+b") as weights:
            for at in range(5000 + 17 * i, os.fstat(weights.fileno()).st_size, 40_000):
                weights.seek(at)
                weights.write(bytes([50 + i]))
    models = [{"path": f"../models/{name}", "chunk_sizes": [16]} for name in SIX]
    project.pipeline(models=models, **changes)
    return project


def children(pid: int) -> set[int]:
    """Every living process below ``pid``."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and alive(int(entry.name)):
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found |= {int(entry.name)} | children(int(entry.name))
    return found


@pytest.mark.slow
def test_six_models_and_a_worker_that_is_killed(tmp_path: Path, cluster: Cluster) -> None:
    local = batch(tmp_path / "local")
    result = local.doit("export_qnn")
    assert result.code == 0, result.text
    project = batch(tmp_path / "p", executor="dask", scheduler=cluster.address)
    env = sticking(tmp_path / "stuck", "/targets/a/graph")
    with cluster.workers(env, {}) as (victim, _), project.start("-n", "4", "export_qnn") as run:
        helper = stuck_at(tmp_path / "stuck", run)
        below = children(victim.pid)
        assert helper in below
        victim.kill()
        text, _ = run.communicate(timeout=600)
        assert run.returncode == 0, text
        assert become_gone(below), "what a killed worker had started goes on"
    assert "WARNING" not in text and "Traceback" not in text
    assert project.tree() == local.tree()
    assert {name.partition("/")[0] for name in project.tree()} == set(SIX)
    assert list(project.root.rglob(f"{TEMP_PREFIX}*")) == []
    again = project.doit("export_qnn")  # there is no worker any more
    assert (again.code, again.ran) == (0, set()), again.text


def test_a_stage_that_fails_over_there(tmp_path: Path, cluster: Cluster) -> None:
    project = Project.create(tmp_path / "p", executor="dask", scheduler=cluster.address)
    value = json.loads((project.root / "pipelines" / "p.yaml").read_text())
    shutil.copytree(project.model, project.root / "z", copy_function=shutil.copyfile)
    value["models"].append({"path": "../z", "chunk_sizes": [16]})
    (project.root / "pipelines" / "p.yaml").write_text(json.dumps(value))
    blocked = project.root / "build" / "z" / "targets" / "a" / "graph1.bin"
    blocked.mkdir(parents=True)
    with cluster.workers({}, {}):
        result = project.doit("export_qnn")
    assert result.code not in (0, 3), result.text
    assert f"{blocked}: cannot write\n  why: a folder lies where the file belongs" in result.text
    assert "link:z:a:graph1 failed" in result.text and "Traceback" not in result.text
    assert project.bundle().is_dir() and not (project.root / "dist" / "z").exists()
    assert "link:z:a:graph0" in result.ran


@pytest.mark.slow
def test_an_interrupt_ends_the_work_over_there(tmp_path: Path, cluster: Cluster) -> None:
    project = Project.create(tmp_path / "p", executor="dask", scheduler=cluster.address)
    env = sticking(tmp_path / "stuck", "graph0_net.json")
    with cluster.workers(env) as (worker,), project.start("export_qnn") as run:
        helper = stuck_at(tmp_path / "stuck", run)
        run.send_signal(signal.SIGINT)
        text, _ = run.communicate(timeout=600)
        assert run.returncode == 128 + signal.SIGINT, text
        assert "Traceback" not in text
        assert become_gone({helper})
        assert alive(worker.pid)
        result = project.doit("export_qnn")
        assert result.code == 0, result.text


@pytest.mark.slow
def test_a_killed_run_with_its_own_cluster(tmp_path: Path, wanted: dict[str, bytes]) -> None:
    project = Project.create(tmp_path / "p", executor="dask")
    env = sticking(tmp_path / "stuck", "graph0_net.json")
    with project.start("-n", "2", "export_qnn", env=env) as run:
        below = {stuck_at(tmp_path / "stuck", run)} | children(run.pid)
        run.kill()
        run.communicate()
    assert len(below) > 5 and become_gone(below)
    with project.start("-n", "2", "export_qnn") as run:
        text, _ = run.communicate(timeout=600)
    assert run.returncode == 0 and "Traceback" not in text, text
    assert project.tree() == wanted
    assert list(project.root.rglob(f"{TEMP_PREFIX}*")) == []


def test_another_version_at_the_other_end(tmp_path: Path, cluster: Cluster) -> None:
    project = Project.create(tmp_path / "p", executor="dask", scheduler=cluster.address)
    shutil.copytree(
        REPO / "mnnqnn_tasks", tmp_path / "other" / "mnnqnn_tasks", copy_function=shutil.copyfile
    )
    with open(tmp_path / "other" / "mnnqnn_tasks" / "translate" / "emit.py", "a") as code:
        code.write("# differs\n")
    with cluster.workers({"PYTHONPATH": str(tmp_path / "other")}) as (_,):
        result = project.doit("export_qnn")
    assert result.code not in (0, 3), result.text
    assert "not the same program" in result.text and "Traceback" not in result.text
    assert result.text.count("mnnqnn is 0.1.0 (") == 1 and " there" in result.text


def test_a_worker_that_does_not_see_the_files(tmp_path: Path, cluster: Cluster) -> None:
    """Only the probe decides: here it is another one than the run wrote."""
    project = Project.create(tmp_path / "p", executor="dask", scheduler=cluster.address)
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import sys\n"
        "def hide(event, args):\n"
        "    if event == 'open' and str(args[0]).endswith('.mnnqnn/probe'):\n"
        "        raise FileNotFoundError(2, 'hidden', args[0])\n"
        "if 'mnnqnn_tasks.cluster.helper' in sys.orig_argv:\n"
        "    sys.addaudithook(hide)\n"
    )
    with cluster.workers({"PYTHONPATH": os.pathsep.join([str(hook), str(REPO)])}):
        result = project.doit("export_qnn")
    assert result.code not in (0, 3), result.text
    assert "does not see the files" in result.text and "Traceback" not in result.text


def test_a_worker_without_mnnqnn(tmp_path: Path, cluster: Cluster) -> None:
    project = Project.create(tmp_path / "p", executor="dask", scheduler=cluster.address)
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(
        "import sys\nsys.modules['mnnqnn_tasks'] = None\n"
    )
    with cluster.workers({"PYTHONPATH": str(tmp_path / "hide")}):
        result = project.doit("export_qnn")
    assert result.code not in (0, 3), result.text
    assert "the Dask workers have no mnnqnn" in result.text and "Traceback" not in result.text


def test_a_scheduler_that_is_not_there(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        project = Project.create(tmp_path / "p", executor="dask", scheduler=address)
        env = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s"}
        result = project.doit("-n", "2", "export_qnn", env=env)
    assert result.code not in (0, 3), result.text
    assert result.text.count(f"{address}: the Dask scheduler does not answer") == 1, result.text
    assert "Traceback" not in result.text


def test_nothing_to_do_needs_no_cluster(tmp_path: Path) -> None:
    project = exported(tmp_path / "p")
    project.pipeline(executor="dask", scheduler="tcp://127.0.0.1:1")
    result = project.doit("export_qnn", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert (result.code, result.ran) == (0, set()), result.text
    assert " distributed" not in result.text and " dask" not in result.text


def test_a_cluster_of_its_own_starts_when_a_stage_needs_it(tmp_path: Path) -> None:
    hook, note = tmp_path / "hook", tmp_path / "started"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import sys\n"
        "def tell(event, args):\n"
        "    if event == 'import' and args[0] == 'distributed':\n"
        f"        open({str(note)!r}, 'w').close()\n"
        "if 'mnnqnn_tasks.cluster.local' in sys.orig_argv:\n"
        "    sys.addaudithook(tell)\n"
    )
    env = {"PYTHONPATH": os.pathsep.join([str(hook), str(REPO)])}
    project = exported(tmp_path / "p")
    project.pipeline(executor="dask")
    shutil.rmtree(project.bundle())
    result = project.doit("-n", "2", "export_qnn", env=env)
    assert (result.code, result.ran) == (0, {"bundle:m:a"}), result.text
    assert not note.exists()
    (project.build / "targets" / "a" / "graph0.bin").unlink()
    result = project.doit("-n", "2", "export_qnn", env=env)
    assert result.code == 0 and "link:m:a:graph0" in result.ran, result.text
    assert note.exists()


def test_dask_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(
        "import sys\nsys.modules['dask'] = sys.modules['distributed'] = None\n"
    )
    project = Project.create(tmp_path / "p", executor="dask")
    path = os.pathsep.join([str(tmp_path / "hide"), str(REPO)])
    result = project.doit("export_qnn", env={"PYTHONPATH": path})
    assert result.code == 3, result.text
    assert "pip install 'mnnqnn[dask]'" in result.text and "Traceback" not in result.text
    assert project.doit("list", env={"PYTHONPATH": path}).code == 0


def test_a_scheduler_without_dask(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "p", scheduler="tcp://127.0.0.1:8786")
    result = project.doit("list")
    assert result.code == 3 and "executor: dask" in result.text
