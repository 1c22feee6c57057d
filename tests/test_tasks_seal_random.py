"""Whatever happens to a project, with its seals it is told the same as without them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from doit.doit_cmd import DoitMain
from tasks_project import MODEL, Project, flip_weight
from tasks_shared import TWO

from mnnqnn_tasks.tasks import session

THREE = (*TWO, {"name": "c", "soc_id": 43})


class World:
    """A project, and what the next change of it depends on."""

    def __init__(self, root: Path, seed: int) -> None:
        self.project = Project.create(root, targets=TWO)
        self.random = random.Random(seed)
        self.options: dict[str, Any] = {"targets": TWO}
        self.history: list[str] = []

    @property
    def state(self) -> Path:
        return self.project.root / "build" / ".mnnqnn"

    @property
    def seal(self) -> Path:
        return self.state / "seals" / "m.json"

    def pipeline(self, **changes: Any) -> None:
        self.options |= changes
        self.project.pipeline(**self.options)

    def some(self, *tops: Path) -> Path | None:
        """A file under one of ``tops``."""
        found = sorted(p for top in tops for p in top.rglob("*") if p.is_file())
        return self.random.choice(found) if found else None

    def model_file(self) -> Path:
        return self.random.choice(sorted(self.project.model.iterdir()))

    def export(self, *names: str) -> None:
        """Export, with the seals of most models written: younger files are no matter."""
        ages = [time.time() - path.stat().st_ctime for path in self.project.model.iterdir()]
        time.sleep(max(0.0, 2.1 - min(ages, default=9)))
        result = self.project.doit("-n", "2", *(names or ("export_qnn",)))
        assert "Traceback" not in result.text and "internal" not in result.text, result.text


def answer(project: Project, *arguments: str) -> tuple[int, str]:
    """What ``doit`` says, in this process: exit code and output."""
    out = io.StringIO()
    sys.modules.pop("dodo", None)
    said = contextlib.redirect_stdout(out), contextlib.redirect_stderr(out)
    with contextlib.chdir(project.root), said[0], said[1]:
        code = DoitMain().run([*arguments])
    return int(code), out.getvalue()


@contextlib.contextmanager
def unsealed(world: World) -> Iterator[None]:
    """Without seals every task is asked."""
    folder, away = world.state / "seals", world.state / "away"
    there = folder.is_dir()
    if there:
        folder.rename(away)
    try:
        yield
    finally:
        if there:
            away.rename(folder)


ASKED = (
    ("ci_plan", "--json"),
    ("ci_plan", "--json", "export_qnn:m:a"),
    ("ci_plan", "bundle:m:b"),
    ("why", "export_qnn"),
    ("why", "export_qnn:m:b"),
)


def told_the_same(world: World) -> bool:
    """Compare; whether a seal stood."""
    stood = False
    for arguments in ASKED:
        told = answer(world.project, *arguments)
        stood |= bool(session.current().sealed)
        with unsealed(world):
            plain = answer(world.project, *arguments)
            assert not session.current().sealed
        assert told == plain, (arguments, world.history)
    return stood


def rewrite(path: Path, change: Callable[[bytes], bytes], *, times: bool) -> None:
    """Another content, in place; ``times``: the modification time stays."""
    info = path.stat()
    path.write_bytes(change(path.read_bytes()))
    if times:
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:] if data else b"x"


def edit(world: World, *tops: Path) -> None:
    path = world.some(*tops)
    if path is None:
        return
    change = world.random.choice([flipped, lambda data: data[:-1], lambda data: data + b" "])
    rewrite(path, change, times=world.random.random() < 0.3)


def drop(world: World, *tops: Path) -> None:
    path = world.some(*tops)
    if path is not None:
        path.unlink()


def touch(world: World, *tops: Path) -> None:
    path = world.some(*tops)
    if path is not None:
        os.utime(path, world.random.choice([None, (1, 1), (4e9, 4e9)]))


def add(world: World, *tops: Path) -> None:
    """A file or folder that was not there."""
    top = world.random.choice(tops)
    folders = sorted(p for p in (top, *top.rglob("*")) if p.is_dir())
    if folders:
        path = world.random.choice(folders) / world.random.choice(["more", "tokenizer.x"])
        if path.exists():
            return
        if world.random.random() < 0.3:
            path.mkdir()
        else:
            path.write_bytes(b"x")


def swap(world: World, *tops: Path) -> None:
    """One file under another one's name: a link, or a copy with its times."""
    one, other = world.some(*tops), world.some(*tops)
    if one is None or other is None or one == other:
        return
    other.unlink()
    if world.random.random() < 0.5:
        other.symlink_to(one)
    else:
        shutil.copy2(one, other)


def again(world: World, *tops: Path) -> None:
    """The same file anew, as a copy of the folder has it."""
    path = world.some(*tops)
    if path is not None:
        shutil.copy2(path, path.with_name("copy"))
        path.with_name("copy").rename(path)


def journal(world: World) -> None:
    """A person edits the journal."""
    path = world.state / "tasks.jsonl"
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    at = world.random.randrange(len(lines)) if lines else 0
    ways: list[Callable[[], object]] = [
        lambda: lines.pop(at),
        lambda: lines.append(lines[at]),
        lambda: lines.__setitem__(at, lines[at][: len(lines[at]) // 2]),
        lambda: lines.insert(at, b"nonsense\n"),
        lambda: lines.append(b'["link:m:a:graph0", null]\n'),
        lambda: lines.append(b'["bundle:m:b", {}]\n'),
        lambda: lines.append(b' ["bundle:m:b", null]\n'),
        lambda: lines.append(b'["bundle:\\u006d:b", null]\n'),
        lambda: lines.append(lines[at].replace(b'"vtcm_mb": 8', b'"vtcm_mb": 4')),
        lambda: world.random.shuffle(lines),
    ]
    if lines:
        world.random.choice(ways)()
    path.write_bytes(b"".join(lines))


def options(**changes: Any) -> Callable[[World], None]:
    """Other values in the pipeline."""
    return lambda world: world.pipeline(**changes)


def second(world: World) -> None:
    """Another pipeline: of another model, or of the same."""
    other = world.project.root / "other"
    path = world.project.root / "pipelines" / "q.yaml"
    if path.exists():
        path.unlink()
        return
    name = world.random.choice(["m", "n", "n"])
    if not other.exists():
        shutil.copytree(MODEL, other, copy_function=shutil.copyfile)
    models = [{"name": name, "path": "../other", "chunk_sizes": [16]}]
    world.project.pipeline(name="q.yaml", models=models)


def damage_seal(world: World) -> None:
    if world.seal.exists():
        ways = [flipped, lambda data: data[: len(data) // 2], lambda _: b"", lambda _: b"\0\xff"]
        rewrite(world.seal, world.random.choice(ways), times=False)


def old_seal(world: World) -> None:
    """A seal that was right once, or in another checkout."""
    kept = world.project.root / "kept"
    if kept.exists() and world.seal.parent.is_dir():
        shutil.copyfile(kept, world.seal)
    elif world.seal.exists():
        shutil.copyfile(world.seal, kept)


def weight(world: World) -> None:
    """Another weight, with the old modification time."""
    path = world.project.model / "llm.mnn.weight"
    if not (world.project.build / "plan.json").exists() or not path.is_file():
        return
    info = path.stat()
    with contextlib.suppress(ValueError, KeyError, StopIteration, OSError, IndexError):
        flip_weight(world.project, world.random.randrange(2))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def moved(world: World) -> None:
    """A folder of results is gone, or was copied."""
    top = world.random.choice([world.project.bundle("b"), world.project.build / "blobs"])
    if top.is_dir():
        copy = top.with_name("copied")
        if world.random.random() < 0.5:
            shutil.copytree(top, copy, symlinks=True)
        shutil.rmtree(top)
        if copy.exists():
            copy.rename(top)


def command(world: World) -> None:
    """What a user may run."""
    ways = [
        ("clean", "export_qnn:m:b"),
        ("clean", "bundle:m:a"),
        ("forget", "link:m"),
        ("forget", "export_qnn:m:a"),
        ("ignore", "bundle:m:b"),
        ("clean", "--old"),
        ("partition:m",),
        ("io:m:output",),
        ("export_qnn:m:a",),
        ("-a", "bundle:m:a"),
    ]
    world.export(*world.random.choice(ways))


CHANGES: dict[str, Callable[[World], None]] = {
    "edit of a result": lambda w: edit(w, w.project.build, w.project.bundle().parent),
    "edit of a bundle": lambda w: edit(w, w.project.bundle(), w.project.bundle("b")),
    "edit of the model": lambda w: rewrite(w.model_file(), flipped, times=True),
    "a result is gone": lambda w: drop(w, w.project.build, w.project.bundle().parent),
    "a result was touched": lambda w: touch(w, w.project.build, w.project.bundle().parent),
    "the model was touched": lambda w: touch(w, w.project.model),
    "a file more in a bundle": lambda w: add(w, w.project.bundle(), w.project.bundle("b")),
    "a file more": lambda w: add(w, w.project.build, w.project.bundle(), w.project.model),
    "a file for another": lambda w: swap(w, w.project.build, w.project.bundle()),
    "the same anew": lambda w: again(w, w.project.build, w.project.model, w.project.bundle("b")),
    "the journal": journal,
    "a target less": options(targets=TWO[:1]),
    "a target more": options(targets=THREE),
    "targets in another order": options(targets=TWO[::-1]),
    "option of a target": options(targets=(TWO[0], TWO[1] | {"vtcm_mb": 4})),
    "another chip": options(targets=(TWO[0], TWO[1] | {"soc_id": 43})),
    "chunk sizes": options(chunk_sizes=(16, 24)),
    "runtime": options(runtime={"max_new_tokens": 7}),
    "a second pipeline": second,
    "a damaged seal": damage_seal,
    "an old seal": old_seal,
    "a weight": weight,
    "a folder": moved,
    "a command": command,
}


def put_right(world: World) -> None:
    """All as it was when ``keep`` was made of it, so that the next changes meet a seal."""
    root = world.project.root
    for name in ("build", "dist", "model"):
        shutil.rmtree(root / name, ignore_errors=True)
        shutil.copytree(root.with_name("keep") / name, root / name)
    (root / "pipelines" / "q.yaml").unlink(missing_ok=True)
    world.pipeline(targets=TWO, chunk_sizes=(16,), runtime={})
    world.export()
    world.history.append("put right")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_of_changes(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path / "p", seed)
    world.export()
    shutil.copytree(world.project.root, tmp_path / "keep")
    stood = [told_the_same(world)]
    for number, first in enumerate(world.random.sample(list(CHANGES), len(CHANGES))):
        more = world.random.choices(list(CHANGES), k=world.random.randrange(3))
        for name in (first, *more):
            world.history.append(name)
            CHANGES[name](world)
            stood.append(told_the_same(world))
        if number % 3 == seed % 3:
            exported_the_same(world)
        put_right(world)
        assert told_the_same(world), world.history
    assert not all(stood)


def exported_the_same(world: World) -> None:
    """A run does the same with the seals as a run without does in a copy of the project."""
    twin = Project(world.project.root.with_name("twin"))
    shutil.rmtree(twin.root, ignore_errors=True)
    shutil.copytree(world.project.root, twin.root, symlinks=True, copy_function=shutil.copy2)
    shutil.rmtree(twin.root / "build" / ".mnnqnn" / "seals", ignore_errors=True)
    # In one process: two translations at once may each make a blob that both have.
    result, plain = (p.doit("-n", "1", "export_qnn") for p in (world.project, twin))
    assert (result.code, result.ran) == (plain.code, plain.ran), (world.history, result.text)
    assert world.project.tree() == twin.tree(), world.history
    reports = [
        json.loads((p.root / "build/report.json").read_text()) for p in (world.project, twin)
    ]
    told = [{n: (t["outcome"], t["files"]) for n, t in r["tasks"].items()} for r in reports]
    assert told[0] == told[1], world.history
