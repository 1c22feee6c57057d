"""A real Dask scheduler and real Dask workers, each a program of its own, on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tasks_project import REPO

#: Stops a helper just before a file appears whose path has a given part, the first that
#: comes there in any helper that shares the note.
_STUCK = """
import os, sys, time

if "mnnqnn_tasks.cluster.helper" in sys.orig_argv:
    _replace = os.replace

    def _stuck(source, target):
        if os.environ["STUCK_AT"] in str(target):
            try:
                note = os.open(os.environ["STUCK_NOTE"], os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                pass
            else:
                os.write(note, b"%d\\n" % os.getpid())
                time.sleep(600)
        _replace(source, target)

    os.replace = _stuck
"""


def sticking(folder: Path, part: str) -> dict[str, str]:
    """Environment in which a helper stops at ``part``; see `stuck_at`."""
    (folder / "hook").mkdir(parents=True)
    (folder / "hook" / "sitecustomize.py").write_text(_STUCK, "utf-8")
    return {
        "PYTHONPATH": os.pathsep.join([str(folder / "hook"), str(REPO)]),
        "STUCK_AT": part,
        "STUCK_NOTE": str(folder / "note"),
    }


def stuck_at(folder: Path, run: subprocess.Popen[str]) -> int:
    """Wait until a helper has stopped; its process id."""
    note = folder / "note"
    wait_until(lambda: note.exists() and note.read_text().endswith("\n"), run)
    return int(note.read_text())


def wait_until(true: Callable[[], bool], run: subprocess.Popen[str]) -> None:
    while not true():
        assert run.poll() is None, run.stdout and run.stdout.read()
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def become_gone(pids: set[int]) -> bool:
    deadline = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


@contextlib.contextmanager
def program(
    *args: str, env: dict[str, str], blind: Blind | None = None
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-P", "-m", "dask", *args]
    if blind is not None:
        command, env = blind.command(command), blind.env(env)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(REPO), **env},
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=log,  # no pipe: it says much, and would wait for a reader
            encoding="utf-8",
        )
        try:
            yield process
        except BaseException:
            log.seek(0)
            print(*command, log.read()[-5000:], sep="\n")
            raise
        finally:
            process.kill()
            process.wait()


#: Hides a folder from a program, its notes from nobody: a mount namespace does it where that
#: is permitted, and Python's own view of files everywhere.
_BLIND = """
import os, sys

def _look(event, args):
    if event in ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.link"):
        for path in args[:2]:
            if str(path).startswith(os.environ["HIDDEN"]):
                os.write(_NOTE, f"{path}\\n".encode())
                raise FileNotFoundError(2, "hidden", str(path))

_NOTE = os.open(os.environ["HIDDEN_NOTE"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
sys.addaudithook(_look)
for _folder in sys.path:
    _next = os.path.join(_folder, "sitecustomize.py")
    if os.path.exists(_next) and not os.path.samefile(_next, __file__):
        exec(open(_next).read())
        break
"""


class Blind:
    """Programs that do not see the folder ``hidden``."""

    def __init__(self, folder: Path, hidden: Path) -> None:
        self._hidden = hidden
        self._note = folder / "looked for"
        (folder / "hook").mkdir(parents=True)
        (folder / "hook" / "sitecustomize.py").write_text(_BLIND, "utf-8")
        self._hook = folder / "hook"

    def env(self, env: dict[str, str]) -> dict[str, str]:
        path = os.pathsep.join([str(self._hook), env.get("PYTHONPATH", str(REPO))])
        told = {"HIDDEN": str(self._hidden), "HIDDEN_NOTE": str(self._note)}
        return {**env, **told, "PYTHONPATH": path}

    def command(self, command: list[str]) -> list[str]:
        """``command`` in a namespace of its own, in which the folder is empty."""
        own = [] if os.geteuid() == 0 else ["--map-root-user"]
        space = ["unshare", "--mount", *own, "--"]
        if subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
            return command
        script = 'mount -t tmpfs none "$0" && exec "$@"'
        return [*space, "sh", "-c", script, str(self._hidden), *command]

    def looked_for(self) -> set[str]:
        """What they tried to open in it."""
        return set(self._note.read_text("utf-8").splitlines())


class Cluster:
    """A scheduler; workers are added and leave."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.address = address

    @classmethod
    @contextlib.contextmanager
    def started(cls, folder: Path) -> Iterator[Cluster]:
        note = folder / "scheduler.json"
        options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
        with program("scheduler", *options, "--scheduler-file", str(note), env={}) as process:
            wait_until(lambda: note.exists() and note.read_text().endswith("}"), process)
            yield cls(folder, json.loads(note.read_text())["address"])

    @contextlib.contextmanager
    def workers(
        self, *environments: dict[str, str], blind: Blind | None = None
    ) -> Iterator[list[subprocess.Popen[str]]]:
        """Workers of one thread, one per environment; all are there when the block begins."""
        from distributed import Client

        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"]
        options += ["--local-directory", str(self.folder), "--memory-limit", "0"]
        with contextlib.ExitStack() as stack:
            started = [
                stack.enter_context(program("worker", self.address, *options, env=env, blind=blind))
                for env in environments
            ]
            with Client(self.address, set_as_default=False) as client:
                client.wait_for_workers(len(started), timeout=600)
            yield started
            for process in started:
                process.kill()
            with Client(self.address, set_as_default=False) as client:
                while client.nthreads():
                    time.sleep(0.01)
