"""A throw-away project for the tests of the tasks: its files, and the real ``doit`` in it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
MODEL = REPO / "models" / "tiny-qwen3-w8"

#: A line of the reporter for a task that ran.
_RAN = re.compile(r"^(\S+)  \d+\.\d s")


@dataclass(frozen=True)
class Result:
    """An ended ``doit``: exit code, output, and the names of the tasks that it executed."""

    code: int
    text: str

    @property
    def ran(self) -> set[str]:
        return {m.group(1) for line in self.text.splitlines() if (m := _RAN.match(line))}

    def ran_of(self, stage: str) -> set[str]:
        """Executed tasks of a stage, without the stage's name."""
        return {name.partition(":")[2] for name in self.ran if name.startswith(stage + ":")}


_STUCK = """
import os, time

_main, _replace = os.getpid(), os.replace


def _stuck(source, target):
    if os.getpid() != _main and {part!r} in str(target):
        with open("stuck.tmp", "w") as note:
            note.write(str(os.getpid()))
        _replace("stuck.tmp", "stuck")
        time.sleep(600)
    _replace(source, target)


os.replace = _stuck
"""


class Project:
    """A folder with ``dodo.py``, ``pipelines/p.yaml`` and a copy of the demo model."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def create(cls, root: Path, **changes: Any) -> Project:
        project = cls(root)
        root.mkdir(parents=True)
        shutil.copyfile(REPO / "dodo.py", root / "dodo.py")
        shutil.copytree(MODEL, root / "model", copy_function=shutil.copyfile)
        (root / "pipelines").mkdir()
        project.pipeline(**changes)
        return project

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def build(self) -> Path:
        return self.root / "build" / "m"

    def bundle(self, target: str = "a") -> Path:
        return self.root / "dist" / "m" / target

    def pipeline(
        self,
        *,
        name: str = "p.yaml",
        path: str = "../model",
        chunk_sizes: tuple[int, ...] = (16,),
        targets: tuple[dict[str, Any], ...] = ({"name": "a", "soc_id": 57},),
        **more: Any,
    ) -> None:
        """Write a pipeline; JSON is YAML."""
        value = {
            "version": 1,
            "models": [{"name": "m", "path": path, "chunk_sizes": list(chunk_sizes)}],
            "targets": list(targets),
            "build_dir": "../build",
            "dist_dir": "../dist",
            **more,
        }
        (self.root / "pipelines" / name).write_text(json.dumps(value, indent=1), "utf-8")

    def start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "doit", *args],
            cwd=options.pop("cwd", self.root),
            env={**os.environ, "PYTHONPATH": str(REPO), **options.pop("env", {})},
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.STDOUT),
            encoding="utf-8",
            **options,
        )

    @contextlib.contextmanager
    def stuck(self, part: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
        """An export in which a worker hangs just before a file appears whose path has ``part``.

        Gives the run, and the worker's process id.
        """
        dodo = self.root / "dodo.py"
        text = dodo.read_text("utf-8")
        dodo.write_text(text + _STUCK.format(part=part), "utf-8")
        note = self.root / "stuck"
        with self.start("export_qnn") as run:
            while not note.exists():
                assert run.poll() is None, run.stdout and run.stdout.read()
                time.sleep(0.01)
            dodo.write_text(text, "utf-8")
            yield run, int(note.read_text())
        note.unlink()

    def doit(self, *args: str, **options: Any) -> Result:
        with self.start(*args, **options) as process:
            text, _ = process.communicate(timeout=600)
        return Result(process.returncode, text)

    def tree(self) -> dict[str, bytes]:
        """Content of every file of the bundles."""
        top = self.root / "dist"
        return {
            str(path.relative_to(top)): path.read_bytes()
            for path in sorted(top.rglob("*"))
            if path.is_file()
        }


@functools.cache
def _template() -> Path:
    """A project that was exported once, as a pattern for copies."""
    top = Path(tempfile.mkdtemp(prefix="mnnqnn-test-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    project = Project.create(top / "p")
    result = project.doit("export_qnn")
    assert result.code == 0, result.text
    return project.root


def exported(root: Path) -> Project:
    """An exported project in the new folder ``root``; nothing in it is stale."""
    shutil.copytree(_template(), root, copy_function=shutil.copy2)
    return Project(root)


def flip_weight(project: Project, piece: int) -> None:
    """Change one weight value that only NPU piece ``piece`` reads."""
    plan = json.loads((project.build / "plan.json").read_text("utf-8"))
    pieces = [p for p in plan["pieces"] if p["place"] == "npu"]
    weight = next(w for w in pieces[piece]["weights"] if w["role"] == "weight")
    with open(project.model / "llm.mnn.weight", "r+b") as stream:
        stream.seek(weight["offset"] + weight["size"] // 2)
        byte = stream.read(1)[0]
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 2]))
