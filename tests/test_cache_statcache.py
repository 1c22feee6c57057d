"""The memory of file digests: what is read again, and what is not."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from mnnqnn_tasks.cache import statcache
from mnnqnn_tasks.cache.statcache import DigestCache
from mnnqnn_tasks.errors import ModelFileError, StaleInputError


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def short_window(monkeypatch: pytest.MonkeyPatch) -> float:
    """A racy window of 50 ms, which is above the tick of the file systems tests run on."""
    monkeypatch.setattr(statcache, "_COARSE_NS", 50_000_000)
    monkeypatch.setattr(statcache, "_FINE_NS", 50_000_000)
    return 0.06


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record every real reading of a file."""
    seen: list[str] = []
    real = hashlib.file_digest

    def spy(stream: object, name: str) -> object:
        seen.append(os.path.basename(stream.name))  # type: ignore[attr-defined]
        return real(stream, name)  # type: ignore[arg-type]

    monkeypatch.setattr(hashlib, "file_digest", spy)
    return seen


def test_a_settled_file_is_read_once(
    tmp_path: Path, short_window: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "权重 'w'.bin"
    file.write_bytes(b"weights")
    time.sleep(short_window)
    seen = reads(monkeypatch)
    for _ in range(3):  # a new object is a new run
        assert DigestCache(tmp_path / "log").digest(file) == sha(b"weights")
    assert len(seen) == 1
    os.utime(file)  # touched: read once more, then remembered again
    time.sleep(short_window)
    for _ in range(3):
        assert DigestCache(tmp_path / "log").digest(file) == sha(b"weights")
    assert len(seen) == 2


def test_a_file_just_written_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"aaaa")
    seen = reads(monkeypatch)
    cache = DigestCache(tmp_path / "log")
    assert cache.digest(file) == sha(b"aaaa")
    assert cache.digest(file) == sha(b"aaaa")
    assert len(seen) == 2
    assert not (tmp_path / "log").exists()


def test_same_size_and_time_but_other_bytes_are_noticed(
    tmp_path: Path, short_window: float
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"aaaa")
    time.sleep(short_window)
    cache = DigestCache(tmp_path / "log")
    assert cache.digest(file) == sha(b"aaaa")
    before = file.stat()
    file.write_bytes(b"bbbb")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cache.digest(file) == sha(b"bbbb")


def test_a_large_file_just_written_is_waited_for(
    tmp_path: Path, short_window: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statcache, "_WAIT_BYTES", 4)
    file = tmp_path / "f"
    file.write_bytes(b"large")
    seen = reads(monkeypatch)
    for _ in range(2):
        assert DigestCache(tmp_path / "log").digest(file) == sha(b"large")
    assert len(seen) == 1


def test_a_file_that_changes_while_it_is_read_has_no_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    real = hashlib.file_digest

    def slow(stream: object, name: str) -> object:
        result = real(stream, name)  # type: ignore[arg-type]
        file.write_bytes(b"newer")
        return result

    monkeypatch.setattr(hashlib, "file_digest", slow)
    with pytest.raises(StaleInputError, match="changed while"):
        DigestCache(tmp_path / "log").digest(file)


def test_damage_to_the_log_costs_a_reading_only(
    tmp_path: Path, short_window: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    files = [tmp_path / name for name in "abc"]
    for file in files:
        file.write_bytes(file.name.encode())
    time.sleep(short_window)
    for file in files:
        DigestCache(log).digest(file)
    whole = log.read_bytes()
    for cut in range(0, len(whole), 7):
        log.write_bytes(whole[:cut] + b"\xff{garbage")
        cache = DigestCache(log)
        assert [cache.digest(f) for f in files] == [sha(f.name.encode()) for f in files]
    log.write_bytes(whole.replace(sha(b"a").encode(), sha(b"z").encode()))
    assert DigestCache(log).digest(files[0]) == sha(b"a")
    log.unlink()
    log.mkdir()  # not a file at all
    assert DigestCache(log).digest(files[0]) == sha(b"a")


def test_the_log_does_not_grow_without_end(
    tmp_path: Path, short_window: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statcache, "_SLACK", 10)
    monkeypatch.setattr(statcache, "_COARSE_NS", -1)
    monkeypatch.setattr(statcache, "_FINE_NS", -1)
    file = tmp_path / "f"
    for i in range(40):
        file.write_bytes(b"%d" % i)
        assert DigestCache(tmp_path / "log").digest(file) == sha(b"%d" % i)
    assert (tmp_path / "log").read_bytes().count(b"\n") <= 2 * 14 + 2


def _hash_all(log: Path, files: list[Path]) -> list[str]:
    cache = DigestCache(log)
    return [cache.digest(f) for f in files]


def test_processes_share_one_log(
    tmp_path: Path, short_window: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"f{i}" for i in range(40)]
    for file in files:
        file.write_bytes(file.name.encode() * 100)
    time.sleep(short_window)
    log = tmp_path / "log"
    with multiprocessing.get_context("fork").Pool(2) as pool:
        a, b = pool.starmap(_hash_all, [(log, files), (log, files[::-1])])
    assert a == b[::-1] == [sha(f.name.encode() * 100) for f in files]
    seen = reads(monkeypatch)
    assert _hash_all(log, files) == a
    assert seen == []


def test_what_another_process_finds_is_seen_at_once(
    tmp_path: Path, short_window: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"f{i}" for i in range(3)]
    for file in files:
        file.write_bytes(file.name.encode())
    time.sleep(short_window)
    log = tmp_path / "log"
    ours, theirs = DigestCache(log), DigestCache(log)
    ours.digest(files[0])
    theirs.digest(files[1])
    numbers, start = statcache.numbers_of(files[2].stat()), time.time_ns()
    theirs.learn(files[2], numbers, start, sha(b"f2"))
    seen = reads(monkeypatch)
    assert [ours.digest(f) for f in files] == [sha(b"f0"), sha(b"f1"), sha(b"f2")]
    log.unlink()
    theirs.learn(files[2], numbers, start, sha(b"f2"))  # a log of its own, as after a rewrite
    assert [ours.digest(f) for f in files] == [sha(b"f0"), sha(b"f1"), sha(b"f2")]
    assert seen == []


def test_what_is_learnt_of_a_file_just_written_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"new")
    cache = DigestCache(tmp_path / "log")
    cache.learn(file, statcache.numbers_of(file.stat()), time.time_ns(), sha(b"old"))
    assert cache.digest(file) == sha(b"new")


@pytest.mark.parametrize(
    ("changed", "age", "settled"),
    [
        (1_700_000_000_123_456_789, 150_000_000, False),
        (1_700_000_000_123_456_789, 250_000_000, True),
        (1_700_000_000_000_000_000, 250_000_000, False),  # whole seconds: a coarse clock
        (1_700_000_000_120_000_000, 1_900_000_000, False),  # FAT has steps of 10 ms
        (1_700_000_000_000_000_000, 2_100_000_000, True),
    ],
)
def test_how_long_a_file_may_change_unseen(
    tmp_path: Path, changed: int, age: int, settled: bool
) -> None:
    cache, file = DigestCache(tmp_path / "log"), tmp_path / "f"
    cache.learn(file, (1, changed, changed, 7), changed + age, sha(b""))
    assert (tmp_path / "log").exists() == settled


@pytest.mark.parametrize("name", ["missing", "", "nul\0byte"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFileError, match="cannot read"):
        DigestCache(tmp_path / "log").digest(f"{tmp_path}/{name}")


def test_the_log_does_not_follow_a_link(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"kept")
    (tmp_path / "log").symlink_to(foreign)
    path = tmp_path / "file"
    path.write_bytes(b"x")
    time.sleep(0.3)  # a younger file is not remembered
    assert DigestCache(tmp_path / "log").digest(path) == hashlib.sha256(b"x").hexdigest()
    assert foreign.read_bytes() == b"kept"
