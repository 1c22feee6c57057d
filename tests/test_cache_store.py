"""Saving and restoring with a store in a folder."""

from __future__ import annotations

import multiprocessing
import os
import random
import stat
import tempfile
from pathlib import Path

import pytest
from cache_stores import CONTENT, Stored, key, place, read, write

from mnnqnn_tasks.cache.entry import File
from mnnqnn_tasks.cache.store import Cache
from mnnqnn_tasks.errors import DiskError, StaleInputError
from mnnqnn_tasks.files import clone_file, sha256_file


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    saved = stored.save()
    assert stored.cache.contains(stored.key) == "local"
    entry = stored.cache.lookup(stored.key)
    assert entry == saved and entry is not None
    assert entry.values == {"v": [1]} and entry.cost_seconds == 1.5
    assert stored.cache.restore(entry, place(tmp_path / "out"))
    assert read(tmp_path / "out") == CONTENT
    assert len(list(stored.local.objects.rglob("*/*"))) == 3, "twins are stored once"
    assert not stored.said


def test_an_unknown_key_is_a_quiet_miss(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    assert stored.cache.lookup(key("b")) is None
    assert stored.cache.contains(key("b")) is None
    stored.save()
    assert stored.cache.contains_many([key("b"), stored.key]) == {stored.key: "local"}
    assert not stored.said


def test_a_restore_replaces_what_lies_there(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    entry = stored.save()
    write(tmp_path / "out", {"graph0.bin": b"old", "other": b"kept"})
    for _ in range(2):
        assert stored.cache.restore(entry, place(tmp_path / "out"))
    assert read(tmp_path / "out") == {**CONTENT, "other": b"kept"}


def test_restored_files_and_stored_ones_are_independent(tmp_path: Path) -> None:
    """Writing through a restored file, where that is possible at all, damages nothing else."""
    stored = Stored(tmp_path)
    entry = stored.save()
    for exclusive in (False, True):
        out = tmp_path / f"out{exclusive}"
        assert stored.cache.restore(entry, place(out), exclusive=exclusive)
        for name in CONTENT:
            path = out / name
            if exclusive:
                assert path.stat().st_nlink == 1 and os.access(path, os.W_OK)
            if os.access(path, os.W_OK):
                path.write_bytes(b"edited")
            else:
                assert not path.stat().st_mode & 0o222
        assert stored.cache.restore(entry, place(tmp_path / "again"))
        assert read(tmp_path / "again") == CONTENT
    assert not stored.said


def test_stored_contents_are_read_only_and_keep_their_time(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    entry = stored.save()
    paths = [stored.local.object_path(f.sha256) for f in entry.files]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o444}
    before = [path.stat().st_mtime_ns for path in paths]
    stored.save()
    assert stored.cache.restore(entry, place(tmp_path / "out"))
    assert [path.stat().st_mtime_ns for path in paths] == before


def test_flipped_bits_never_give_a_wrong_file(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    entry = stored.save()
    rng = random.Random(3)
    files = [path for path in stored.store_files() if path.stat().st_size]
    assert len(files) == 3, "two contents that can be flipped, one entry"
    for i in range(200):
        path = files[i % len(files)]
        info = path.stat()
        bad = bytearray(path.read_bytes())
        bit = rng.randrange(8 * len(bad))
        bad[bit // 8] ^= 1 << bit % 8
        os.chmod(path, 0o644)
        path.write_bytes(bad)
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))  # as a failing disk would
        stored.said.clear()
        out = tmp_path / f"out{i}"
        found = stored.cache.lookup(stored.key)
        assert found in (None, entry)
        assert found is None or not stored.cache.restore(found, place(out))
        assert len(stored.said) == 1 and "damaged" in stored.said[0]
        assert not out.exists() or read(out) == {}
        assert stored.cache.lookup(stored.key) is None, "it is reported once"
        assert stored.save() == entry
        assert stored.cache.restore(entry, place(out)) and read(out) == CONTENT


def test_a_lost_content_is_a_miss(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    entry = stored.save()
    stored.local.object_path(entry.files[0].sha256).unlink()
    assert not stored.cache.restore(entry, place(tmp_path / "out"))
    assert read(tmp_path / "out") == {}
    assert stored.cache.contains(stored.key) is None
    assert stored.save() == entry
    assert stored.cache.restore(entry, place(tmp_path / "out"))


def test_a_source_that_is_missing_or_changes(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    gone = {**stored.files, "gone": tmp_path / "gone"}
    assert stored.cache.save(stored.key, "test/1", gone, {}, 1.0) is None
    assert len(stored.said) == 1 and "gone cannot be read" in stored.said[0]
    path = stored.files["graph0.bin"]
    file = File("graph0.bin", sha256_file(path), path.stat().st_size)
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(StaleInputError):
        stored.local.add(path, file)
    assert not stored.local.holds(file.sha256, file.size)
    assert not list(stored.local.root.rglob(".tmp-*"))
    assert stored.save().files[1].sha256 != file.sha256, "the store is in use as before"


def test_a_store_that_vanishes_in_the_middle(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    entry = stored.save()
    os.rename(stored.local.root, tmp_path / "gone")
    assert stored.cache.lookup(stored.key) is None
    assert not stored.cache.restore(entry, place(tmp_path / "out"))
    assert stored.save() == entry
    assert stored.cache.restore(entry, place(tmp_path / "out"))
    assert not stored.said


@pytest.mark.parametrize("at", [".", "objects", "actions"])
def test_a_file_in_the_place_of_a_folder(tmp_path: Path, at: str) -> None:
    stored = Stored(tmp_path)
    path = stored.local.root / at
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    for _ in range(3):
        assert stored.cache.save(stored.key, "test/1", stored.files, {}, 1) is None
        assert stored.cache.lookup(stored.key) is None
    written = [line for line in stored.said if "takes nothing more in" in line]
    assert len(written) == 1 and "no folder" in written[0]
    assert len(stored.said) <= 2


def test_read_only_adds_and_deletes_nothing(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    entry = stored.save()
    before = stored.store_files()
    cache = Cache(stored.local, warn=stored.said.append, read_only=True)
    assert cache.save(key("b"), "test/1", stored.files, {}, 1) is None
    assert cache.lookup(stored.key) == entry
    stored.local.object_path(entry.files[0].sha256).unlink()
    assert not cache.restore(entry, place(tmp_path / "out"))
    assert stored.store_files() == [p for p in before if p.exists()]
    assert cache.contains(stored.key) == "local"


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    entry = stored.save()
    write(tmp_path, {"out": b"a file"})
    with pytest.raises(DiskError, match="no folder"):
        stored.cache.restore(entry, place(tmp_path / "out"))
    (tmp_path / "full" / "graph0.bin").mkdir(parents=True)
    with pytest.raises(DiskError, match="a folder lies where"):
        stored.cache.restore(entry, place(tmp_path / "full"))
    assert not list(tmp_path.rglob(".tmp-*"))
    assert stored.cache.lookup(stored.key) == entry


def test_many_bytes_on_threads(tmp_path: Path) -> None:
    content = {f"g{i}.bin": random.Random(i).randbytes(1 << 20) for i in range(8)}
    stored = Stored(tmp_path, content)
    entry = stored.save()
    assert stored.cache.restore(entry, place(tmp_path / "out"))
    assert read(tmp_path / "out") == content
    stored.local.object_path(entry.files[5].sha256).unlink()
    assert not stored.cache.restore(entry, place(tmp_path / "second"))
    assert read(tmp_path / "second") == {}


def _as_user(folder: Path) -> None:
    """In a process of an ordinary user: save, restore, and look at the links."""
    if os.geteuid() == 0:
        os.setuid(65534)
    stored = Stored(folder / "user")
    entry = stored.save()
    for name in ("one", "two"):
        assert stored.cache.restore(entry, place(folder / name))
        assert read(folder / name) == CONTENT
    for file in entry.files:
        kept = stored.local.object_path(file.sha256).stat()
        for name in ("one", "two"):
            path = folder / name / file.name
            assert path.stat().st_ino == kept.st_ino and path.stat().st_mode & 0o777 == 0o444
            with pytest.raises(PermissionError):
                path.write_bytes(b"mine")
            assert path.stat().st_mtime_ns == kept.st_mtime_ns
    assert stored.files["empty"].stat().st_mode & 0o200, "what was saved stays writable"
    # A user who insists: the others notice, and the store does.
    os.chmod(folder / "one" / "graph0.bin", 0o644)
    (folder / "one" / "graph0.bin").write_bytes(b"mine")
    assert not stored.cache.restore(entry, place(folder / "three"))
    assert len(stored.said) == 1 and "damaged" in stored.said[0]
    assert stored.cache.restore(stored.save(), place(folder / "two"))
    assert read(folder / "two") == CONTENT


def test_an_ordinary_user_gets_links_and_cannot_write_through_them() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "open to all")
        folder.mkdir()
        os.chmod(name, 0o777)
        os.chmod(folder, 0o777)
        clone = _clones(folder)
        child = multiprocessing.get_context("fork").Process(target=_as_user, args=(folder,))
        if not clone:
            child.start()
            child.join()
            assert child.exitcode == 0


def _clones(folder: Path) -> bool:
    """Whether the file system has reflinks; then there are no links."""
    with open(folder / "a", "w+b") as a, open(folder / "b", "w+b") as b:
        a.write(b"x" * 5000)
        a.flush()
        return clone_file(a.fileno(), b.fileno())
