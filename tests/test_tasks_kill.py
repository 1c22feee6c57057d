"""Killed at any moment: no half-made target is trusted, and a rerun ends at the same bytes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tasks_project import REPO, Project, Result, exported

from mnnqnn_tasks.files import TEMP_PREFIX


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return exported(tmp_path_factory.mktemp("done") / "p").tree()


def _children(pid: int) -> set[int]:
    """Every living process below ``pid``."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found |= {int(entry.name)} | _children(int(entry.name))
    return found


def _gone(pids: set[int]) -> bool:
    def alive(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not any(map(alive, pids)):
            return True
        time.sleep(0.05)
    return False


def test_kill_at_random_moments(tmp_path: Path, wanted: dict[str, bytes]) -> None:
    project = Project.create(tmp_path / "p")
    moment = random.Random(20)
    for number in (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGKILL, signal.SIGTERM):
        with project.start("export_qnn") as run:
            time.sleep(0.5 + 2.5 * moment.random())
            below = _children(run.pid)
            run.send_signal(number)
            text, _ = run.communicate(timeout=150)
        assert run.returncode in (-number, 128 + number, 0)
        assert "Traceback" not in text
        assert _gone(below), "workers outlive the run"
    result = project.doit("export_qnn")
    assert result.code == 0, result.text
    assert project.tree() == wanted
    assert list(project.root.rglob(f"{TEMP_PREFIX}*")) == []
    assert project.doit("export_qnn").ran == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_sweeps_before_it_ends(tmp_path: Path, number: int) -> None:
    project = Project.create(tmp_path / "p")
    with project.stuck("graph0_net.json") as (run, _):
        assert list(project.root.rglob(f"{TEMP_PREFIX}*"))
        run.send_signal(number)
        text, _ = run.communicate(timeout=150)
    assert run.returncode == 128 + number, text
    assert "Traceback" not in text
    assert list(project.root.rglob(f"{TEMP_PREFIX}*")) == []


def test_ctrl_c_while_the_dodo_file_is_loaded(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "p")
    with open(project.root / "dodo.py", "a", encoding="utf-8") as dodo:
        dodo.write("\nimport time\nopen('loading', 'w').close()\ntime.sleep(30)\n")
    with project.start("list") as run:
        while run.poll() is None and not (project.root / "loading").exists():
            time.sleep(0.01)
        run.send_signal(signal.SIGINT)
        text, _ = run.communicate(timeout=20)
    assert run.returncode == 128 + signal.SIGINT
    assert text == ""


def test_a_killed_run_continues_where_it_was(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "p")
    with project.stuck("graph0_net.json") as (run, _):
        run.kill()
        text, _ = run.communicate()
    done = Result(0, text).ran
    assert "partition:m" in done
    result = project.doit("export_qnn")
    assert result.code == 0
    assert not (done & result.ran), "what was done and said so is not done again"


def test_a_killed_worker_ends_the_run(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "p")
    with project.stuck("graph0_net.json") as (run, worker):
        os.kill(worker, signal.SIGKILL)
        text, _ = run.communicate(timeout=150)
    assert run.returncode not in (0, None)
    assert "worker process was ended by signal 9" in text
    assert "Traceback" not in text
    assert project.doit("export_qnn").code == 0


_HANDLER = """
import sys
from mnnqnn_tasks.tasks import signals
sys.modules.pop("encodings.ascii", None)
before = set(sys.modules)
signals._forks.append(True)
signals._child_changed(0, None)
print(*sorted(set(sys.modules) - before))
"""


def test_the_signal_handler_imports_nothing() -> None:
    """It may run in the middle of an import, which must not be entered again."""
    run = [sys.executable, "-c", _HANDLER]
    out = subprocess.run(run, cwd=REPO, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""


_FAILING_SAVE = """
import multiprocessing, os, queue, sys, time
from doit.exceptions import InvalidTask
from mnnqnn_tasks.tasks import ledger, session, signals
os.chdir(sys.argv[1])
os.mkdir("journal")
session.current().running = True
signals.install(lambda: None, lambda: None)
worker = multiprocessing.Process(target=time.sleep, args=(60,))
worker.start()
book = ledger.Ledger("journal")
try:
    book.set("a", "deps:", [])
except InvalidTask as error:
    print("said" if "cannot write" in str(error) else error)
worker.terminate()
try:
    multiprocessing.Queue().get(timeout=1)
except queue.Empty:
    print("quiet")
"""


def test_workers_that_doit_ends_are_no_news(tmp_path: Path) -> None:
    run = [sys.executable, "-c", _FAILING_SAVE, str(tmp_path)]
    out = subprocess.run(run, cwd=REPO, capture_output=True, text=True)
    assert out.stdout.split() == ["said", "quiet"], out.stderr
