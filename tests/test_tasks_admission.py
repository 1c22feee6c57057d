"""One memory limit for all workers of a run."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qnn_graphs import Weights, matmul, save
from tasks_project import REPO, Project

from mnnqnn_tasks.peak import Meter
from mnnqnn_tasks.tasks import admission
from mnnqnn_tasks.tasks.admission import Memory, available
from mnnqnn_tasks.toolchain.memory import needed

MB = 10**6
MIB = 1 << 20
fork = multiprocessing.get_context("fork")


def meet(memory: Memory, need: int, barrier: Any) -> None:
    with memory.admitted("t", need):
        barrier.wait(60)


def test_tasks_that_fit_run_together() -> None:
    memory, barrier = Memory(100 * MIB), fork.Barrier(4)
    workers = [fork.Process(target=meet, args=(memory, 25 * MIB, barrier)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4  # they met inside


def count(memory: Memory, need: int, inside: Any, most: Any, times: int) -> None:
    for _ in range(times):
        with memory.admitted("t", need):
            with inside.get_lock(), most.get_lock():
                inside.value += need
                most.value = max(most.value, inside.value)
            os.sched_yield()
            with inside.get_lock():
                inside.value -= need


def test_tasks_never_take_more_than_there_is() -> None:
    memory = Memory(100 * MIB)
    inside, most = fork.Value("q", 0), fork.Value("q", 0)
    needs = [60 * MIB, 45 * MIB, 100 * MIB, 30 * MIB]
    workers = [fork.Process(target=count, args=(memory, n, inside, most, 30)) for n in needs]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert 100 * MIB >= most.value >= 100 * MIB - 1 and inside.value == 0


def hold(memory: Memory, need: int, held: Any) -> None:
    with memory.admitted("t", need):
        held.set()
        signal.pause()


def test_a_killed_worker_gives_its_memory_back() -> None:
    memory, held = Memory(10 * MIB), fork.Event()
    victim = fork.Process(target=hold, args=(memory, 8 * MIB, held))
    victim.start()
    assert held.wait(60)
    barrier = fork.Barrier(2)
    waiting = fork.Process(target=meet, args=(memory, 5 * MIB, barrier))
    waiting.start()
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    barrier.wait(60)
    waiting.join()
    victim.join()
    assert (waiting.exitcode, victim.exitcode) == (0, -signal.SIGKILL)


def test_threads_share_it_too() -> None:
    memory, barrier = Memory(10 * MIB), fork.Event()
    with memory.admitted("t", 6 * MIB):
        code = (
            f"import os, fcntl, sys; sys.path.insert(0, {str(Path.cwd())!r});"
            "from mnnqnn_tasks.tasks import admission as a;"
            f"print(list(a._free(os.open('/proc/self/fd/{memory._file}', os.O_RDWR), 0, 10)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            pass_fds=[memory._file],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "[(6, 4)]\n"
        fd = os.open(f"/proc/self/fd/{memory._file}", os.O_RDWR)  # as another thread has it
        assert list(admission._free(fd, 0, 10)) == [(6, 4)]
        os.close(fd)
    assert not barrier.is_set()


def test_a_task_that_needs_more_runs_alone_with_one_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    memory = Memory(10 * MIB)
    for name in ("link:big", "link:other"):
        with memory.admitted(name, 50 * MIB):
            fd = os.open(f"/proc/self/fd/{memory._file}", os.O_RDWR)
            assert list(admission._free(fd, 0, 10)) == []
            os.close(fd)
    told = capsys.readouterr().err
    assert told.count("WARNING") == 1 and "link:big may need 0.05 GB" in told


def test_what_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    assert 0 < available() <= total
    one, two = tmp_path / "v2", tmp_path / "v1"
    for folder, files in (
        (one, ("memory.max", "memory.current", "inactive_file")),
        (two, ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ):
        folder.mkdir()
        (folder / files[0]).write_text("9000000\n")
        (folder / files[1]).write_text("5000000\n")
        (folder / "memory.stat").write_text(f"anon 1\n{files[2]} 2000000\n")
    assert admission._cgroup_free(str(one)) == admission._cgroup_free(str(two)) == 6000000
    (one / "memory.max").write_text("max\n")
    assert admission._cgroup_free(str(one)) is None
    monkeypatch.setattr(admission, "_cgroups", lambda: iter([str(one), str(two)]))
    assert available() == 6000000


def spans(project: Project) -> list[tuple[float, float]]:
    lines = (project.root / "times").read_text("utf-8").splitlines()
    calls = [json.loads(line) for line in lines]
    return sorted((c["begin"], c["end"]) for c in calls if c["call"] == "link")


def overlaps(found: list[tuple[float, float]]) -> int:
    return sum(b < end for (_, end), (b, _) in itertools.pairwise(found))


@pytest.mark.parametrize(("limit", "together"), [("300 MB", False), ("8 GB", True)])
def test_links_share_the_limit(tmp_path: Path, limit: str, together: bool) -> None:
    project = Project.create(tmp_path / "p", max_memory=limit)
    times = {"MNNQNN_TIMES": str(project.root / "times")}
    result = project.doit("-n", "2", "export_qnn", env=times)
    assert result.code == 0, result.text
    found = spans(project)
    assert len(found) == len(result.ran_of("link")) >= 4
    assert (overlaps(found) > 0) == together, found
    assert "WARNING" not in result.text


def test_a_limit_that_is_too_small_for_anything(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "p", max_memory="1 MB")
    result = project.doit("-n", "2", "export_qnn")
    assert result.code == 0, result.text
    assert result.text.count("WARNING") == 1 and "it runs alone" in result.text


def graphs(folder: Path) -> Iterator[tuple[str, list[Path]]]:
    small, large = Weights(64, 64), Weights(1024, 4096)
    yield "small", [save(folder, matmul("small", 1, small, folder / "blobs"))]
    nets = [save(folder, matmul(f"large{r}", r, large, folder / "blobs")) for r in (1, 256)]
    yield "weights", nets[:1]
    yield "shared weights", nets
    wide = Weights(64, 16384)
    yield "activations", [save(folder, matmul("wide", 1024, wide, folder / "blobs"))]


_LINK = """
import sys
from pathlib import Path
from mnnqnn_tasks.peak import Meter
from mnnqnn_tasks.qnn import run
from mnnqnn_tasks.qnn.options import TargetOptions
folder, *nets = map(Path, sys.argv[1:])
with Meter() as meter:
    run.link(nets, folder / "blobs", TargetOptions(57, "v75"), folder / "out.bin")
print(meter.peak)
"""


@pytest.mark.parametrize("case", ["small", "weights", "shared weights", "activations"])
def test_a_link_stays_below_its_bound(tmp_path: Path, case: str) -> None:
    nets = [str(net) for net in dict(graphs(tmp_path))[case]]
    bound = needed("link", {"nets": nets})
    # In a small process: this one may be larger than what it measures.
    code = [sys.executable, "-c", _LINK, str(tmp_path), *nets]
    out = subprocess.run(code, cwd=REPO, capture_output=True, text=True, check=True).stdout
    assert 90 * MB < int(out) <= bound < 4 * int(out)


def test_the_meter_sees_what_this_process_held_meanwhile() -> None:
    with Meter() as before:
        pass
    with Meter() as meter:
        np.ones(64 * MIB, np.uint8)
    with Meter() as after:
        pass
    assert meter.peak - before.peak > 60 * MIB
    assert after.peak < meter.peak


def test_unreadable_inputs_need_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("[1]")
    assert needed("link", {"nets": [str(tmp_path / "bad.json")]}) == 0
    assert needed("link", {"nets": [str(tmp_path / "none.json")]}) == 0
    assert needed("bundle", {}) == 0
