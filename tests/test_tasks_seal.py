"""Seals: one look at a model says no more than the ordinary check of every task would."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tasks_project import Project, flip_weight
from tasks_shared import TWO

from mnnqnn_tasks.spec.load import load_any
from mnnqnn_tasks.spec.pipeline import Pipeline
from mnnqnn_tasks.tasks import keys, seal, session

NOTHING = "nothing would run\n"


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """An exported project with a seal; whoever changes it puts it right again."""
    project = Project.create(tmp_path_factory.mktemp("seal") / "p", targets=TWO)
    project.pipeline(targets=TWO, runtime={"max_new_tokens": 32})
    time.sleep(max(0.0, 2.1 - _age(project)))  # younger files are read again, see statcache
    result = project.doit("export_qnn")
    assert result.code == 0, result.text
    assert stands(project), "the run that makes all has written it"
    return project


def _age(project: Project) -> float:
    return time.time() - max(path.stat().st_ctime for path in project.model.iterdir())


def stands(project: Project) -> bool:
    """Whether the seal holds, asked of it alone."""
    here = session.reset()
    pipeline = load_any(project.root / "pipelines" / "p.yaml")
    assert isinstance(pipeline, Pipeline)
    here.add(pipeline)
    return "m" in seal.standing({"m": here.jobs["m"].model.targets})


@contextlib.contextmanager
def unsealed(project: Project) -> Iterator[None]:
    """Without seals every task is asked."""
    folder = project.root / "build" / ".mnnqnn" / "seals"
    folder.rename(folder.with_name("away"))
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_name("away").rename(folder)


@contextlib.contextmanager
def without(path: Path) -> Iterator[None]:
    """``path`` is gone for a while; its times and its folder's stay what they were."""
    away, times = path.parents[2] / "away", path.parent.stat()
    path.rename(away)
    try:
        yield
    finally:
        away.rename(path)
        os.utime(path.parent, ns=(times.st_atime_ns, times.st_mtime_ns))


@contextlib.contextmanager
def holding(path: Path, data: bytes) -> Iterator[None]:
    """``path`` is another file for a while."""
    old, times = (path.read_bytes(), path.stat()) if path.exists() else (None, None)
    path.write_bytes(data)
    try:
        yield
    finally:
        if old is None or times is None:
            path.unlink()
        else:
            path.write_bytes(old)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@contextlib.contextmanager
def touched(path: Path) -> Iterator[None]:
    times = path.stat()
    os.utime(path)
    try:
        yield
    finally:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@contextlib.contextmanager
def lines(project: Project, change: Callable[[list[Any]], None]) -> Iterator[None]:
    """Another journal for a while."""
    path = project.root / "build" / ".mnnqnn" / "tasks.jsonl"
    read = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    change(read)
    text = "".join(json.dumps(line) + "\n" for line in read)
    with holding(path, text.encode("utf-8")):
        yield


@contextlib.contextmanager
def pipeline(project: Project, **changes: Any) -> Iterator[None]:
    path = project.root / "pipelines" / "p.yaml"
    old = path.read_bytes()
    project.pipeline(**({"targets": TWO, "runtime": {"max_new_tokens": 32}} | changes))
    try:
        yield
    finally:
        path.write_bytes(old)


def _edit(path: Path) -> contextlib.AbstractContextManager[None]:
    data = path.read_bytes()
    return holding(path, bytes([data[0] ^ 1]) + data[1:])


def _chip(**option: Any) -> tuple[dict[str, Any], ...]:
    return (TWO[0], TWO[1] | option)


Change = Callable[[Project], contextlib.AbstractContextManager[None]]

#: What makes tasks stale.
STALE: dict[str, Change] = {
    "a result is gone": lambda p: without(p.build / "plan.json"),
    "a graph is gone": lambda p: without(p.build / "qnn" / "graph0" / "graph0_net.json"),
    "a blob is gone": lambda p: without(max((p.build / "blobs").iterdir())),
    "a binary was edited": lambda p: _edit(p.build / "targets" / "b" / "graph0.bin"),
    "a bundle's file was edited": lambda p: _edit(p.bundle("b") / "config_qnn.json"),
    "a bundle's file is gone": lambda p: without(p.bundle() / "qnn" / "llm.mnn"),
    "a bundle is gone": lambda p: without(p.bundle("b")),
    "a bundle has another file": lambda p: holding(p.bundle() / "note", b""),
    "and deeper": lambda p: holding(p.bundle() / "qnn" / "note", b""),
    "option of a target": lambda p: pipeline(p, targets=_chip(vtcm_mb=4)),
    "another chip": lambda p: pipeline(p, targets=_chip(soc_id=43)),
    "another target": lambda p: pipeline(p, targets=(*TWO, {"name": "c", "soc_id": 43})),
    "a target less": lambda p: pipeline(p, targets=TWO[:1]),
    "chunk sizes": lambda p: pipeline(p, chunk_sizes=(16, 32)),
    "runtime": lambda p: pipeline(p, runtime={"max_new_tokens": 33}),
    "no journal": lambda p: holding(p.root / "build" / ".mnnqnn" / "tasks.jsonl", b""),
    "a task was forgotten": lambda p: lines(p, lambda found: found.append(["model:m", None])),
    "a record has another option": lambda p: lines(p, _other_option),
    "a line is damaged": lambda p: lines(p, lambda found: found.__setitem__(0, [])),
    "a file more in the model": lambda p: holding(p.model / "tokenizer.more", b"x"),
}

#: What leaves them fresh, as their content is what counts, or does not concern them.
FRESH: dict[str, Change] = {
    "a result was touched": lambda p: touched(p.build / "qnn" / "llm.mnn"),
    "a bundle's file was touched": lambda p: touched(p.bundle() / "llm_config.json"),
    "another note in the model": lambda p: holding(p.model / "README.txt", b"x"),
    "another note in the build folder": lambda p: holding(p.build / "note", b"x"),
    "a line about nothing": lambda p: lines(p, lambda found: found.append(["x:y", {}])),
    "the seal is damaged": lambda p: _edit(p.root / "build" / ".mnnqnn" / "seals" / "m.json"),
}


def _other_option(found: list[Any]) -> None:
    record = next(line[1] for line in found if line[0] == "link:m:a:graph0")
    record["_values_:"]["key"]["vtcm_mb"] = 1


@pytest.mark.parametrize("name", STALE)
def test_no_seal_holds_where_a_task_is_stale(sealed: Project, name: str) -> None:
    with STALE[name](sealed):
        assert not stands(sealed)
        assert sealed.doit("why", "export_qnn").text != NOTHING
    assert stands(sealed), "the test did not put it right"


@pytest.mark.parametrize("name", FRESH)
def test_what_is_fresh_stays_fresh(sealed: Project, name: str) -> None:
    with FRESH[name](sealed):
        assert sealed.doit("why", "export_qnn").text == NOTHING
    assert stands(sealed), "the test did not put it right"


@pytest.mark.parametrize("what", ["code", "MNN", "QNN"])
def test_no_seal_holds_for_other_versions(
    sealed: Project, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = keys.code_version
    ways: dict[str, Any] = {
        "code": ("code_version", lambda room: own(room) + "1" * (room == "tasks")),
        "MNN": ("mnn_version", lambda: "0"),
        "QNN": ("qnn_identity", lambda: "0"),
    }
    monkeypatch.setattr(keys, *ways[what])
    assert not stands(sealed)
    monkeypatch.undo()
    assert stands(sealed)


def _counted(project: Project, *names: str) -> tuple[str, Any, Any]:
    """What a run says, and its report without the time."""
    result = project.doit(*names)
    assert result.code == 0 and not result.ran, result.text
    report = json.loads((project.root / "build" / "report.json").read_text("utf-8"))
    report.pop("seconds")
    rows = [{**row, "seconds": 0} for row in report.pop("exports")]
    return result.text.split(";")[0], rows, report


@pytest.mark.parametrize(
    "names", [("export_qnn",), ("export_qnn:m:b",), ("bundle:m:a",), ("bundle:m",)]
)
def test_a_run_tells_of_every_task(sealed: Project, names: tuple[str, ...]) -> None:
    with unsealed(sealed):
        counted = _counted(sealed, *names)
    assert stands(sealed)
    assert _counted(sealed, *names) == counted


def test_a_copy_gets_a_seal_of_its_own(sealed: Project, tmp_path: Path) -> None:
    copy = Project(tmp_path / "p")
    shutil.copytree(sealed.root, copy.root, copy_function=shutil.copyfile)  # all times are new
    time.sleep(2.1)
    assert not stands(copy)
    assert copy.doit("export_qnn").ran == set()
    assert stands(copy)


def test_ci_plan_says_the_same(sealed: Project) -> None:
    told = sealed.doit("ci_plan", "--json").text
    with unsealed(sealed):
        assert sealed.doit("ci_plan", "--json").text == told
    assert {part["state"] for part in json.loads(told)["parts"]} == {"fresh"}


def test_commands_that_want_tasks_have_them(sealed: Project) -> None:
    assert "link:m:a:graph0" in sealed.doit("list", "--all").text
    assert sealed.doit("-a", "bundle:m:a").ran >= {"model:m", "bundle:m:a"}


def test_a_users_own_task_may_name_any_of_ours(sealed: Project) -> None:
    dodo = sealed.root / "dodo.py"
    with holding(
        dodo,
        dodo.read_bytes()
        + b"""
from doit.task import result_dep

def task_after():
    return {"actions": ["true"], "task_dep": ["link:m:a"], "uptodate": [True]}

def task_told():
    return {"actions": ["true"], "uptodate": [result_dep("bundle:m:a")]}
""",
    ):
        result = sealed.doit("export_qnn", "after", "told")
        assert result.code == 0 and result.ran <= {"after", "told"}, result.text
        result = sealed.doit("export_qnn", "after", "told")
        assert result.code == 0 and "\n0 run, " in f"\n{result.text}", result.text


def test_a_changed_model_is_exported_again(sealed: Project) -> None:
    """The last test: it changes the model."""
    time.sleep(0.3)  # the test before has made files anew
    assert sealed.doit("export_qnn").code == 0
    assert stands(sealed)
    os.utime(sealed.model / "llm.mnn.weight")
    assert not stands(sealed)
    time.sleep(0.3)  # a younger file is not remembered
    assert sealed.doit("export_qnn").ran == set()
    assert stands(sealed)
    with without(sealed.model / "llm_config.json"):
        assert not stands(sealed)
    flip_weight(sealed, 0)
    assert not stands(sealed)
    time.sleep(0.3)
    assert sealed.doit("export_qnn:m:b").ran_of("bundle") == {"m:b"}
    assert not stands(sealed), "one of the bundles is stale"
    assert sealed.doit("export_qnn").ran_of("bundle") == {"m:a"}
    time.sleep(0.3)  # some results were written anew and are the same: their content decides
    assert sealed.doit("export_qnn").ran == set()
    assert stands(sealed)
