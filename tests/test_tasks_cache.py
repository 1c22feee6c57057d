"""Exports that share a cache: nothing is done twice, and nothing wrong ever comes out."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tasks_project import Project, flip_weight
from tasks_shared import TWO, Shared, outcomes

from mnnqnn_tasks.files import TEMP_PREFIX


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return Shared(tmp_path)


def built(project: Project) -> dict[str, bytes]:
    """The files that stages made, without what the run remembers for itself."""
    return {
        str(path.relative_to(project.build)): path.read_bytes()
        for path in project.build.rglob("*")
        if path.is_file()
    }


def test_the_second_checkout_builds_nothing(shared: Shared) -> None:
    first = shared.exported("one", targets=TWO)
    second = shared.project("two", targets=TWO)
    why = shared.doit(second, "why", "export_qnn").text
    assert why.count("the cache has it") == 2 and "translate" not in why
    assert shared.doit(second, "export_qnn").ran == {"bundle:m:a", "bundle:m:b"}
    assert second.tree() == first.tree()
    assert not second.build.exists()
    again = shared.doit(second, "bundle:m")
    assert (again.code, again.ran) == (0, set()), again.text
    assert "nothing would run" in shared.doit(second, "why", "export_qnn").text


@pytest.mark.parametrize("place", ["file", "memory"])
def test_through_a_remote_alone(tmp_path: Path, place: str) -> None:
    url = f"{place}://{tmp_path / 'remote'}"
    shared = Shared(tmp_path, MNNQNN_CACHE_DIR="off", MNNQNN_CACHE_REMOTE=url)
    first = shared.exported("one")
    second = shared.exported("two")
    assert second.tree() == first.tree()
    # What is in the memory of a process ends with it: only that nothing breaks can be seen.
    assert second.build.exists() == (place == "memory")


def test_every_stage_comes_from_the_cache(shared: Shared) -> None:
    first, second = shared.exported("one", targets=TWO), shared.project("two", targets=TWO)
    assert shared.doit(first, "io").code == 0
    result = shared.doit(second, "link", "io")
    assert result.code == 0, result.text
    found = outcomes(second)
    assert {task for task, outcome in found.items() if outcome != "hit"} == {
        "model:m",
        "validate:m",
        "validate:m:a",
        "validate:m:b",
    }
    assert shared.doit(second, "export_qnn").ran == {"bundle:m:a", "bundle:m:b"}
    assert built(second) == built(first)
    assert second.tree() == first.tree()


def test_every_action_has_a_key_of_its_own(shared: Shared) -> None:
    project = shared.project("one", chunk_sizes=(16, 24), targets=TWO)
    assert shared.doit(project, "export_qnn", "io").code == 0
    keys = []
    for line in (project.root / "build" / ".mnnqnn" / "tasks.jsonl").read_text().splitlines():
        _, record = json.loads(line)
        keys.append(record["_values_:"].get("cache", {}).get("key"))
    keys = [key for key in keys if key]
    assert len(keys) > 30 and len(set(keys)) == len(keys)


def test_a_changed_layer_after_a_restore(shared: Shared) -> None:
    first, second = shared.exported("one"), shared.exported("two")
    flip_weight(first, 1)
    shutil.copyfile(first.model / "llm.mnn.weight", second.model / "llm.mnn.weight")
    assert shared.doit(second, "export_qnn").code == 0
    missed = {task for task, outcome in outcomes(second).items() if outcome == "miss"}
    assert missed == {
        "partition:m",
        "translate:m:graph1",
        "translate:m:graph1_1",
        "link:m:a:graph1",
    }
    assert first.doit("export_qnn").code == 0  # without the cache
    assert second.tree() == first.tree()


def test_options_are_part_of_the_key(shared: Shared) -> None:
    shared.exported("one")
    other = shared.exported("two", targets=({"name": "a", "soc_id": 57, "vtcm_mb": 4},))
    assert {t for t, o in outcomes(other).items() if t.startswith("link:") and o == "hit"} == set()
    named = shared.exported("three", runtime={"thread_num": 2})
    config = json.loads((named.bundle() / "config_qnn.json").read_text("utf-8"))
    assert config["thread_num"] == 2
    assert all(o == "hit" for t, o in outcomes(named).items() if t.startswith("link:"))


def test_a_restored_cut_leaves_nothing_of_an_older_one(shared: Shared) -> None:
    fresh = shared.exported("one")
    project = shared.exported("two", chunk_sizes=(16, 24))
    project.pipeline()
    assert shared.doit(project, "export_qnn").code == 0
    assert outcomes(project)["partition:m"] == "hit"
    ours = {n for n in built(project) if "24" not in n and not n.startswith("blobs/")}
    assert ours == {n for n in built(fresh) if not n.startswith("blobs/")}
    assert project.tree() == fresh.tree()


def test_an_edited_bundle_is_restored(shared: Shared) -> None:
    shared.exported("one")
    project = shared.exported("two")
    good = project.tree()
    with open(project.bundle() / "qnn" / "graph0.bin", "ab") as stream:
        stream.write(b"x")
    (project.bundle() / "notes.txt").write_text("mine", "utf-8")
    assert (
        "graph0.bin was altered; the cache has it" in shared.doit(project, "why", "export_qnn").text
    )
    assert shared.doit(project, "export_qnn").ran == {"bundle:m:a"}
    assert project.tree() == good
    assert shared.doit(project, "export_qnn").ran == set()


def test_a_restored_bundle_is_cleaned_and_forgotten(shared: Shared) -> None:
    shared.exported("one", targets=TWO)
    project = shared.exported("two", targets=TWO)
    assert "bundle:m:a" in shared.doit(project, "list", "--all").text
    assert shared.doit(project, "clean").code == 0
    assert project.tree() == {}
    assert shared.doit(project, "export_qnn").ran == {"bundle:m:a", "bundle:m:b"}
    assert shared.doit(project, "forget", "export_qnn:m:a").code == 0
    assert shared.doit(project, "export_qnn").ran == {"bundle:m:a"}
    assert shared.doit(project, "clean", "bundle:m:b").code == 0
    assert {name.split("/")[1] for name in project.tree()} == {"a"}


def test_damage_costs_the_work_and_nothing_else(shared: Shared) -> None:
    first = shared.exported("one")
    dice = random.Random(3)
    for path in sorted(p for p in shared.cache.rglob("*") if p.is_file()):
        data = bytearray(path.read_bytes())
        if data and dice.random() < 0.5:
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
            path.chmod(0o644)
            path.write_bytes(data)
    second = shared.project("two")
    result = shared.doit(second, "export_qnn")
    assert result.code == 0, result.text
    assert "was damaged" in result.text and "Traceback" not in result.text
    assert second.tree() == first.tree()
    third = shared.exported("three")  # mended
    assert not third.build.exists() and third.tree() == first.tree()


@pytest.mark.parametrize("kind", ["file", "missing"])
def test_a_cache_that_cannot_be_used(tmp_path: Path, kind: str) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("no folder", "utf-8")
    shared = Shared(tmp_path)
    where = {"file": blocked, "missing": Path("/proc/nothing/cache")}[kind]
    shared.env["MNNQNN_CACHE_DIR"] = str(where)
    result = shared.doit(shared.project("one"), "export_qnn")
    assert result.code == 0, result.text
    assert result.text.count("WARNING") == 1


def test_bad_settings_are_named(shared: Shared) -> None:
    project = shared.project("one")
    result = project.doit("export_qnn", env={**shared.env, "MNNQNN_CACHE_REMOTE": "nowhere"})
    assert result.code == 3 and "MNNQNN_CACHE_REMOTE" in result.text
    assert "Traceback" not in result.text


@contextlib.contextmanager
def killer(run: Any, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, lambda: run.poll() is None and run.send_signal(signal.SIGKILL))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@pytest.mark.slow
def test_eight_exports_at_once_killed_at_random(shared: Shared) -> None:
    """Overlapping models, one cache, kills without mercy: every bundle is right in the end."""
    projects = [shared.project(str(n)) for n in range(8)]
    for n, project in enumerate(projects):
        if n % 2:
            weight = project.model / "llm.mnn.weight"
            data = bytearray(weight.read_bytes())
            data[1000 * (n // 4 + 1)] ^= 2
            weight.write_bytes(data)
    dice = random.Random(8)
    errors: list[str] = []

    def export(project: Project, kills: int) -> None:
        for left in range(kills, -1, -1):
            with (
                project.start("-n", "1", "export_qnn", env=shared.env) as run,
                killer(run, 1 + 5 * dice.random()) if left else contextlib.nullcontext(),
            ):
                text, _ = run.communicate()
            if run.returncode not in (0, -signal.SIGKILL) or "Traceback" in text:
                errors.append(text)

    threads = [threading.Thread(target=export, args=(p, 2)) for p in projects]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for project in projects:
        wanted = project.tree()
        shutil.rmtree(project.root / "build", ignore_errors=True)
        shutil.rmtree(project.root / "dist")
        assert project.doit("export_qnn").code == 0  # without the cache
        assert project.tree() == wanted
    assert shared.doit(projects[0], "cache", "verify").code == 0
    os.utime(shared.cache)
    assert shared.doit(projects[0], "cache", "gc").code == 0
    assert list(shared.root.rglob(f"dist/**/{TEMP_PREFIX}*")) == []
