"""One store, many processes that are killed, and disks that do not play along."""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cache_stores import CONTENT, Stored, key, place, read, write

from mnnqnn_tasks.cache import upkeep
from mnnqnn_tasks.cache.local import LocalStore
from mnnqnn_tasks.cache.store import Cache

PROCESSES = 8
ENTRIES = 12
KILLS = 80

#: Half of what all entries need, so that there is always something to delete.
SIZE = 1_500_000


def content(number: int) -> dict[str, bytes]:
    """The files of an entry: one of its own, one that three share, one that all share."""
    sizes = {f"own{number}": 200_000, f"third{number % 3}": 100_000, "all": 50_000}
    return {name: random.Random(name).randbytes(size) for name, size in sizes.items()}


def work(root: Path, folder: Path, seed: int, steps: int) -> None:
    """Build or restore entries for ever; each step is a byte to ``steps``: restored, saved,
    a warning or Error, Wrong."""
    rng = random.Random(seed)
    said: list[str] = []
    store = LocalStore(root, SIZE)
    cache = Cache(store, warn=said.append)
    expected = {number: content(number) for number in range(ENTRIES)}
    made = {number: write(folder / f"made{number}", expected[number]) for number in expected}
    while True:
        number = rng.randrange(ENTRIES)
        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        entry = cache.lookup(key(str(number)))
        if entry is not None and cache.restore(entry, place(out)):
            outcome = b"r" if read(out) == expected[number] else b"W"
        else:
            saved = cache.save(key(str(number)), "test/1", made[number], {}, 1.0)
            outcome = b"s" if saved is not None else b"E"
        if rng.random() < 0.1:
            cache.gc()
        if said and outcome != b"W":
            outcome = b"w"  # a warning
            with open(folder.parent / "said", "a") as stream:
                stream.writelines(f"{line}\n" for line in said)
            said.clear()
        os.write(steps, outcome)


@contextlib.contextmanager
def crowd(root: Path, folder: Path, steps: int) -> Iterator[Callable[[int], None]]:
    """Processes that work; gives a function that kills one and starts another."""
    context = multiprocessing.get_context("fork")
    seeds = iter(range(10**6))

    def start() -> Any:
        seed = next(seeds)
        process = context.Process(target=work, args=(root, folder / str(seed), seed, steps))
        process.start()
        return process

    def replace(which: int) -> None:
        os.kill(running[which].pid, signal.SIGKILL)
        running[which].join()
        running[which] = start()

    running = [start() for _ in range(PROCESSES)]
    try:
        yield replace
    finally:
        for process in running:
            os.kill(process.pid, signal.SIGKILL)
            process.join()


def test_eight_processes_killed_at_random_share_a_store(tmp_path: Path) -> None:
    root = tmp_path / "store"
    rng = random.Random(0)
    reader, writer = os.pipe()
    seen: collections.Counter[bytes] = collections.Counter()
    with crowd(root, tmp_path / "work", writer) as replace:
        for _ in range(KILLS):
            for _ in range(rng.randrange(1, 12)):
                seen[os.read(reader, 1)] += 1
            replace(rng.randrange(PROCESSES))  # whatever it is doing
    os.close(writer)
    seen.update(bytes([byte]) for byte in os.read(reader, 1 << 16))
    os.close(reader)
    said = tmp_path / "work" / "said"
    assert seen.keys() <= {b"r", b"s"}, (seen, said.exists() and said.read_text())
    assert seen[b"r"] > 20 and seen[b"s"] > 20
    store = LocalStore(root, SIZE)
    upkeep.gc(store)
    assert not list(root.rglob(".tmp-*")), "temporary files of the dead are gone"
    found = upkeep.verify(store)
    assert found.damaged == () and found.bytes <= SIZE
    assert found.entries > 0
    kinds = {path.parent.parent.name for path in root.rglob("*") if path.is_file()}
    assert kinds == {"objects", "actions"}, "and no lock"


def test_a_store_deleted_under_its_users(tmp_path: Path) -> None:
    root = tmp_path / "store"
    reader, writer = os.pipe()
    seen: collections.Counter[bytes] = collections.Counter()
    with crowd(root, tmp_path / "work", writer):
        for _ in range(20):
            for _ in range(10):
                seen[os.read(reader, 1)] += 1
            with contextlib.suppress(OSError):
                shutil.rmtree(root)
    os.close(reader)
    os.close(writer)
    assert seen.keys() <= {b"r", b"s", b"E", b"w"}, f"wrong files: {seen}"
    assert seen[b"s"] > 10, "it is made anew"
    store = LocalStore(root, SIZE)
    cache = Cache(store, warn=pytest.fail)
    for number in range(ENTRIES):
        entry = cache.lookup(key(str(number)))
        if entry is not None and cache.restore(entry, place(tmp_path / str(number))):
            assert read(tmp_path / str(number)) == content(number)


# Disks


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 256 KiB at ``folder``."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user cannot mount; the same is tested with a limit on file sizes")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def small_files(folder: Path) -> Iterator[None]:
    """No file that this process writes may have more than 20 KiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limit", [small_disk, small_files])
def test_a_full_disk(
    tmp_path: Path, limit: Callable[[Path], contextlib.AbstractContextManager[None]]
) -> None:
    stored = Stored(tmp_path)
    big = {"big": random.Random(1).randbytes(1 << 20)}
    files = write(tmp_path / "made2", big)
    with limit(tmp_path / "store"):
        entry = stored.save()
        for name in "bcd":
            assert stored.cache.save(key(name), "test/1", files, {}, 1.0) is None
        assert len(stored.said) == 1 and "takes nothing more in" in stored.said[0]
        assert "full" in stored.said[0] or "larger than" in stored.said[0]
        assert stored.cache.lookup(stored.key) == entry
        assert stored.cache.restore(entry, place(tmp_path / "out"))
        assert read(tmp_path / "out") == CONTENT
        assert stored.cache.contains_many(map(key, "bcd")) == {}
        stored.cache.gc()
        assert not list(stored.local.root.rglob(".tmp-*"))


def test_a_read_only_disk(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    with small_disk(tmp_path / "store"):
        entry = stored.save()
        bad = stored.cache.save(key("b"), "test/1", write(tmp_path / "b", {"f": b"x"}), {}, 1.0)
        assert bad is not None
        path = stored.local.object_path(bad.files[0].sha256)
        path.chmod(0o644)
        path.write_bytes(b"y")
        remount = ["mount", "-o", "remount,ro", str(tmp_path / "store")]
        subprocess.run(remount, check=True)
        for _ in range(3):
            assert stored.cache.save(key("c"), "test/1", stored.files, {}, 1.0) is None
            assert stored.cache.lookup(stored.key) == entry
            assert stored.cache.restore(entry, place(tmp_path / "out"))
            assert read(tmp_path / "out") == CONTENT
            assert not stored.cache.restore(bad, place(tmp_path / "never"))
        assert len(stored.said) == 2, "each once"
        assert "file system is read-only" in stored.said[0] and "damaged" in stored.said[1]
        collected = stored.cache.gc(0)
        assert collected is not None and collected.freed == 0
        subprocess.run(["mount", "-o", "remount,rw", str(tmp_path / "store")], check=True)
