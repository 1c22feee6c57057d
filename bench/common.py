"""What the benchmarks share: a throw-away project, and runs of ``doit`` measured by the kernel.

Every benchmark prints ratios of things measured in one run on one machine, never a time
to compare with another machine's.  This module imports nothing of ours: a child of a
small process starts small, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
MODELS = REPO.parent / "shared" / "models"
SMOLLM2 = MODELS / "smollm2-135m-w8"
DEMO = REPO / "models" / "tiny-qwen3-w8"


_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Run:
    """One ended process and everything that it waited for.

    Attributes:
        wall, cpu: seconds; ``cpu`` is user and system time of the whole process tree.
        peak_mb: largest resident size of any single process of the tree, MB (10^6).
        code: exit code, negative for a signal.
        output: standard output and error.
    """

    wall: float
    cpu: float
    peak_mb: float
    code: int
    output: str


@dataclass(frozen=True)
class Call:
    """A call into the QNN library that a link noted down (``mnnqnn_tasks/qnn/times.py``).

    Attributes:
        call: ``finalize``, ``serialize``, or ``link`` for the whole of it.
        cpu: CPU seconds.
        begin, end: seconds since the epoch.
    """

    call: str
    name: str
    cpu: float
    begin: float
    end: float


@dataclass
class Project:
    """A folder with a ``dodo.py`` and one pipeline, removed at the end."""

    root: Path
    models: list[dict[str, object]] = field(default_factory=list)
    targets: list[dict[str, object]] = field(default_factory=list)

    @property
    def build(self) -> Path:
        """The build folder."""
        return self.root / "build"

    @property
    def dist(self) -> Path:
        """The folder of bundles."""
        return self.root / "dist"

    @property
    def cache(self) -> Path:
        """The cache of results: empty at first, for this project alone."""
        return self.root / "cache"

    def write(self) -> None:
        """Write the pipeline; JSON is YAML."""
        pipeline = {
            "version": 1,
            "models": self.models,
            "targets": self.targets,
            "build_dir": "../build",
            "dist_dir": "../dist",
        }
        folder = self.root / "pipelines"
        folder.mkdir(exist_ok=True)
        (folder / "bench.yaml").write_text(json.dumps(pipeline, indent=1), "utf-8")

    def times(self) -> list[Call]:
        """The calls into the QNN library of all runs so far, in order."""
        path = self.root / "times.jsonl"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [Call(**json.loads(line)) for line in lines]

    def start(self, *args: str, cores: int = 2) -> subprocess.Popen[bytes]:
        """Start ``doit`` in a process group of its own, output to ``doit.log``."""
        with open(self.root / "doit.log", "wb") as log:
            return subprocess.Popen(
                command(*args, cores=cores),
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "MNNQNN_CACHE_DIR": str(self.cache),
                    "MNNQNN_CACHE_REMOTE": "off",
                    "PYTHONPATH": str(REPO),
                    "MNNQNN_TIMES": str(self.root / "times.jsonl"),
                },
            )

    def doit(self, *args: str, cores: int = 2) -> Run:
        """Run ``doit`` to its end.

        Raises:
            SystemExit: with its output, when it fails.
        """
        adopt_orphans()
        begin = time.perf_counter()
        process = self.start(*args, cores=cores)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            kill_group(process)
            raise
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        usages = [usage, *orphans()]
        run = Run(
            wall,
            sum(u.ru_utime + u.ru_stime for u in usages),
            max(u.ru_maxrss for u in usages) * 1024 / 1e6,
            process.returncode,
            (self.root / "doit.log").read_text("utf-8", "replace"),
        )
        if run.code != 0:
            sys.exit(f"{' '.join(args)} ended with {run.code}:\n{run.output[-4000:]}")
        return run


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends first (prctl(2)).

    What a process used is told to the one that waits for it: without this, a worker
    that outlives ``doit`` by a moment would be missing from the sums.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def orphans() -> Iterator[resource.struct_rusage]:
    """Wait for every remaining descendant; what each used."""
    with contextlib.suppress(ChildProcessError):
        while True:
            yield os.wait4(-1, 0)[2]


def command(*args: str, cores: int) -> list[str]:
    """The command line of ``doit``; a run takes ``-n``, other commands do not."""
    parallel = ["-n", str(cores)] if args and args[0].startswith("export_qnn") else []
    return [sys.executable, "-m", "doit", *parallel, *args]


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL the process that `Project.start` began, and its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def parser(doc: str | None, model: Path = SMOLLM2) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    result = argparse.ArgumentParser(description=doc)
    result.add_argument("--model", type=Path, default=model, help="folder of an MNN LLM")
    result.add_argument("--chunk", type=int, default=128, help="chunk size of the export")
    return result


@contextlib.contextmanager
def project(model: Path, chunk: int, *, copy: bool = False) -> Iterator[Project]:
    """A project that exports ``model`` for SoC 57; leaves nothing behind.

    Args:
        copy: put a copy of the model into the project, for a benchmark that edits it.
    """
    model = model.resolve()
    if not model.is_dir():
        sys.exit(f"there is no model folder {model}; name one with --model")
    # As pip does when it installs a wheel.  Where the environment forbids Python to write
    # bytecode, every process of every run would compile the modules of a checkout again.
    subprocess.run([sys.executable, "-m", "compileall", "-q", REPO / "mnnqnn_tasks"], check=True)
    with tempfile.TemporaryDirectory(prefix="mnnqnn-bench-") as folder:
        root = Path(folder)
        shutil.copyfile(REPO / "dodo.py", root / "dodo.py")
        if copy:
            model = Path(shutil.copytree(model, root / "model", copy_function=shutil.copyfile))
            for path in (model, *model.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
        made = Project(root)
        made.models = [{"name": "m", "path": str(model), "chunk_sizes": [chunk]}]
        made.targets = [{"name": "t57", "soc_id": 57, "dsp_arch": "v75"}]
        made.write()
        yield made


def tree(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below ``folder`` by relative path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def say(name: str, ratio: float, limit: float, parts: Sequence[tuple[str, str]]) -> int:
    """Print one result; returns the exit code, 1 when it is over its limit."""
    detail = ", ".join(f"{key} {value}" for key, value in parts)
    verdict = "ok" if ratio <= limit else "OVER THE LIMIT"
    print(f"{name}: {ratio:.3f} (at most {limit:g}) {verdict}  [{detail}]", flush=True)
    return 0 if ratio <= limit else 1
