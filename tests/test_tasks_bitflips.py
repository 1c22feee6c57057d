"""Flipped bits in the cache of an export: what comes out is right, or does not come out."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tasks_project import Project
from tasks_shared import Shared

from mnnqnn_tasks.cache.local import LocalStore
from mnnqnn_tasks.cache.store import Cache
from mnnqnn_tasks.files import sha256_file
from mnnqnn_tasks.spec.load import load_pipeline
from mnnqnn_tasks.tasks import cached, chains, exports, session
from mnnqnn_tasks.tasks.plan import read_plan
from mnnqnn_tasks.tasks.session import Job

FLIPS = 200


@dataclass(frozen=True)
class Result:
    """A result in the cache: of a stage, or a whole bundle.

    Attributes:
        action: ``None`` for the bundle.
        uses: the files of the store that it is read from.
        files: what is put in place, by path.
        values: what the stage remembers.
    """

    key: str
    action: cached.Action | None
    uses: frozenset[Path]
    files: dict[Path, bytes]
    values: Any


class Export:
    """An exported project, and everything that its cache has of it."""

    def __init__(self, project: Project, root: Path) -> None:
        here = session.reset()
        pipeline = load_pipeline(project.root / "pipelines" / "p.yaml")
        here.add(pipeline)
        self.job: Job = here.jobs["m"]
        self.store = LocalStore(root, 10**9)
        self.kept = {
            path: path.read_bytes()
            for folder in (self.store.objects, self.store.actions)
            for path in folder.rglob("*")
            if path.is_file()
        }
        self.out = project.bundle()
        self.said: list[str] = []
        self.results = [*self._stages(), self._bundle()]

    def cache(self) -> Cache:
        """The cache as a new run finds it."""
        self.said.clear()
        cache = Cache(self.store, warn=self.said.append)
        session.current().caches[self.job.pipeline.file] = cache
        return cache

    def _uses(self, key: str) -> frozenset[Path]:
        entry = self.store.read(key)
        assert entry is not None
        objects = {self.store.object_path(digest) for digest in entry.contents()}
        return frozenset({self.store.action_path(key), *objects})

    def _stages(self) -> Iterator[Result]:
        plan = read_plan(self.job.layout)
        assert plan is not None
        tasks = [*chains.static_tasks(self.job), *chains.planned_tasks(self.job, plan, {})]
        for task in tasks:
            action = task.actions[0].args[-1] if task.actions else None
            key = action.digest() if action and all(map(_there, action.reads.values())) else ""
            entry = self.store.read(key) if key else None
            if entry is None:
                continue  # it is not cached, or was not asked for
            taken = cached.take(self.cache(), self.job, action, key)
            assert taken is not None
            made, values = taken
            blobs = [Path(self.job.layout.blobs, digest) for digest in values.get("blobs", ())]
            files = {path: path.read_bytes() for path in [*map(Path, made), *blobs]}
            yield Result(key, action, self._uses(key), files, _lasting(values))

    def _bundle(self) -> Result:
        (bundle,) = exports.bundles(self.job, self.job.model.targets)
        files = {path: path.read_bytes() for path in self.out.rglob("*") if path.is_file()}
        return Result(bundle.key, None, self._uses(bundle.key), files, None)

    def take(self, result: Result) -> bool:
        """Take a result out into emptied places: whether it came; what came must be right."""
        for path in result.files:
            path.unlink(missing_ok=True)
        if result.action is None:
            shutil.rmtree(self.out, ignore_errors=True)
        self.said = []
        cache = self.cache()
        values = None
        if result.action is None:
            wanted = [(self.job, self.job.model.targets)]
            came = bool(exports.short_cuts(wanted, restore=True))
            there = {path for path in self.out.rglob("*") if path.is_file()}
            assert there == (set(result.files) if came else set())
        else:
            taken = cached.take(cache, self.job, result.action, result.key)
            came, values = taken is not None, _lasting(taken[1]) if taken else None
        for path, good in result.files.items():
            if came or path.exists():
                assert path.read_bytes() == good, path
        assert not came or values == result.values
        self.mend(result.files)
        return came

    @staticmethod
    def mend(files: dict[Path, bytes]) -> None:
        """Put files back that are gone."""
        for path, good in files.items():
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(good)


def _there(path: str) -> bool:
    return Path(path).is_file()


def _lasting(values: dict[str, Any]) -> dict[str, Any]:
    """Values without the times of the blobs."""
    return {**values, "blobs": sorted(values.get("blobs", ()))}


@pytest.fixture
def export(tmp_path: Path) -> Iterator[Export]:
    shared = Shared(tmp_path)
    yield Export(shared.exported("p"), shared.cache)
    session.reset()


def test_every_flipped_bit_is_found(export: Export) -> None:
    stages = {result.action.stage for result in export.results if result.action}
    assert stages == {f"{n}/1" for n in ("io_input", "cut", "partition", "translate", "link")}
    used = frozenset().union(*(result.uses for result in export.results))
    assert used == set(export.kept), "nothing else is in the cache"
    for path in export.kept:
        path.chmod(0o644)
    dice = random.Random(20)
    paths = sorted(export.kept)
    sizes = [len(export.kept[path]) for path in paths]
    paths = [p for p, size in zip(paths, sizes, strict=True) if size]
    sizes = [size for size in sizes if size]
    for flip in range(FLIPS):
        path = dice.choice(paths) if flip % 2 else dice.choices(paths, sizes)[0]
        good = export.kept[path]
        bit = dice.randrange(8 * len(good))
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        readers = [result for result in export.results if path in result.uses]
        for result in readers:
            path.unlink(missing_ok=True)  # a build folder may hold a link to it
            path.write_bytes(bad)
            assert not export.take(result), f"{path}: bit {bit}"
            assert len(export.said) == 1 and "was damaged" in export.said[0]
            assert not path.exists() or path.read_bytes() == good
            export.mend(export.kept)
    for result in export.results:
        assert export.take(result) and export.said == []
    assert all(sha256_file(p) == p.name for p in export.kept if p.parent.parent.name == "objects")
