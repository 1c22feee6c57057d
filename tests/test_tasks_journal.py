"""The task database: nothing lost by a kill, nothing believed that is damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mnnqnn_tasks.errors import BusyError, DiskError
from mnnqnn_tasks.files import TEMP_PREFIX
from mnnqnn_tasks.tasks.journal import Journal, PathNames
from mnnqnn_tasks.tasks.lock import FolderLock, sweep


def _write(path: Path, count: int) -> None:
    journal = Journal(path)
    for n in range(count):
        journal.records[f"t{n}"] = {"n": n}
        journal.save(f"t{n}")


def test_records_come_back(tmp_path: Path) -> None:
    _write(tmp_path / "j", 3)
    journal = Journal(tmp_path / "j")
    assert journal.records == {"t0": {"n": 0}, "t1": {"n": 1}, "t2": {"n": 2}}
    del journal.records["t1"]
    journal.save("t1")
    assert set(Journal(tmp_path / "j").records) == {"t0", "t2"}


def test_any_cut_keeps_every_whole_line(tmp_path: Path) -> None:
    """A kill in the middle of an append, at every byte; the next append is whole again."""
    _write(tmp_path / "j", 3)
    data = (tmp_path / "j").read_bytes()
    for end in range(len(data)):
        path = tmp_path / f"cut{end}"
        path.write_bytes(data[:end])
        whole = data[:end].count(b"\n")
        journal = Journal(path)
        assert len(journal.records) == whole
        journal.records["new"] = {}
        journal.save("new")
        assert len(Journal(path).records) == whole + 1


@pytest.mark.parametrize("name", ["j", "lock"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"no newline at the end")
    path = tmp_path / "state" / name
    path.parent.mkdir()
    path.symlink_to(foreign)
    with pytest.raises(DiskError, match="link"):
        _write(path, 1) if name == "j" else FolderLock(path).acquire()
    assert foreign.read_bytes() == b"no newline at the end"


def test_no_waiting_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "j")
    with pytest.raises(DiskError, match="device"):
        _write(tmp_path / "j", 1)


def test_only_a_line_of_ours_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b"somebody's notes")
    _write(path, 2)
    assert path.read_bytes().startswith(b"somebody's notes\n[")
    assert set(Journal(path).records) == {"t0", "t1"}


def test_damaged_lines_are_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write(tmp_path / "j", 3)
    lines = (tmp_path / "j").read_bytes().splitlines(keepends=True)
    (tmp_path / "j").write_bytes(b"\xff\n" + lines[0] + b"[]\n42\n[1, 2]\n" + lines[2])
    assert set(Journal(tmp_path / "j").records) == {"t0", "t2"}
    assert capsys.readouterr().err.count("WARNING") == 1


def test_compaction_keeps_the_last_state(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    for n in range(300):
        journal.records["t"] = {"n": n}
        journal.save("t")
    journal.compact()
    text = (tmp_path / "j").read_text("utf-8")
    assert [json.loads(line) for line in text.splitlines()] == [["t", {"n": 299}]]


def test_path_names_follow_a_moved_folder() -> None:
    old = PathNames({"@build": "/a/build/m", "@model": "/a"})
    new = PathNames({"@build": "/b/m", "@model": "/c d"})
    for path, now in [("/a/build/m/x", "/b/m/x"), ("/a/w", "/c d/w"), ("/z", "/z")]:
        assert new.expand(old.shorten(path)) == now
    assert old.shorten("/ab/x") == "/ab/x"  # a name that only begins like the folder


_HOLD = """
import sys, time
from pathlib import Path
from mnnqnn_tasks.tasks.lock import FolderLock
FolderLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_lock_names_its_holder_and_tells_of_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "state" / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        cwd=Path(__file__).parents[1],
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(BusyError, match=f"process {holder.pid}"):
        FolderLock(path).acquire()
    holder.kill()
    holder.wait()
    holder.stdout.close()
    lock = FolderLock(path)
    assert lock.acquire() is True
    lock.release(clean=True)
    assert lock.acquire() is False
    lock.release(clean=False)
    assert lock.acquire() is True
    lock.release(clean=True)


def test_sweep_takes_only_temporary_things(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "kept").write_text("x")
    (tmp_path / "a" / f"{TEMP_PREFIX}file").write_text("x")
    (tmp_path / f"{TEMP_PREFIX}dir").mkdir()
    (tmp_path / f"{TEMP_PREFIX}dir" / "inside").write_text("x")
    assert sweep(tmp_path) == 2
    assert [p.name for p in tmp_path.rglob("*")] == ["a", "kept"]
