"""What a store forgets, and what it finds out about itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from cache_stores import Stored, key, place, read, write

from mnnqnn_tasks.cache import transfer, upkeep
from mnnqnn_tasks.cache.local import LocalStore
from mnnqnn_tasks.cache.remote import RemoteStore
from mnnqnn_tasks.cache.store import Cache
from mnnqnn_tasks.cache.tempfiles import owned_temp
from mnnqnn_tasks.errors import CacheError

HOUR = 3600


def fill(stored: Stored, names: str, size: int = 1000) -> None:
    """One entry per name, the first the least recently used, with a file of its own and one
    that all share."""
    for i, name in enumerate(names):
        content = {"own": name.encode() * size, "shared": b"s" * size}
        files = write(stored.folder / "made" / name, content)
        assert stored.cache.save(key(name), f"kind{i % 2}/1", files, {}, 2.0)
        age(stored.local.action_path(key(name)), (len(names) - i) * HOUR)


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def names_in(stored: Stored, names: str) -> str:
    return "".join(name for name in names if stored.cache.contains(key(name)))


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    fill(stored, "abcdef")
    entry = stored.cache.lookup(key("b"))
    assert entry is not None and stored.cache.restore(entry, place(tmp_path / "out"))
    before = upkeep.stats(stored.local)
    done = stored.cache.gc(before.bytes)
    assert done is not None and (done.entries, done.contents, done.freed) == (0, 0, 0)
    done = stored.cache.gc(before.bytes - 3000)
    assert names_in(stored, "abcdef") == "bef", "a, c, d: two are not enough"
    assert done is not None and (done.entries, done.contents) == (3, 3)
    assert before.bytes - done.freed == done.left == upkeep.stats(stored.local).bytes
    for name in "bef":
        entry = stored.cache.lookup(key(name))
        assert entry is not None and stored.cache.restore(entry, place(tmp_path / name))
    done = stored.cache.gc(0)
    assert done is not None and done.left == 0 and stored.store_files() == []
    assert not stored.said


def test_the_order_of_use_is_kept_by_a_lookup_that_restores(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    fill(stored, "abc")
    assert upkeep.keys(stored.local) == [key(name) for name in "cba"]
    entry = stored.cache.lookup(key("a"))
    assert upkeep.keys(stored.local) == [key(name) for name in "cba"], "looking is no use"
    assert entry is not None and stored.cache.restore(entry, place(tmp_path / "out"))
    assert upkeep.keys(stored.local) == [key(name) for name in "acb"]


def test_a_store_stays_near_its_size_while_it_is_filled(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.local.max_bytes = 100_000
    for i in range(100):
        files = write(tmp_path / "made", {"f": os.urandom(5_000)})
        assert stored.cache.save(key(str(i)), "test/1", files, {}, 1.0)
        assert upkeep.stats(stored.local).bytes < 120_000
    assert upkeep.stats(stored.local).bytes > 80_000
    assert stored.cache.contains(key("99")) and not stored.cache.contains(key("0"))


def test_contents_without_an_entry_go_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Stored(tmp_path)
    entry = stored.save()
    stored.local.drop_entry(stored.key)
    stored.cache.gc()
    assert all(stored.local.holds(f.sha256, f.size) for f in entry.files), "just written"
    monkeypatch.setattr(upkeep, "_GRACE_NS", 0)
    done = stored.cache.gc()
    assert done is not None and (done.entries, done.contents, done.left) == (0, 3, 0)


def test_damaged_and_incomplete_entries_go(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    fill(stored, "abc")
    stored.local.action_path(key("a")).write_bytes(b"?")
    entry = stored.cache.lookup(key("b"))
    assert entry is not None
    stored.local.object_path(entry.files[0].sha256).unlink()
    done = stored.cache.gc()
    assert done is not None and done.entries == 2
    assert names_in(stored, "abc") == "c"


def test_files_of_others_in_the_store_are_left_alone(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.save()
    files = ["objects/note", "actions/ab/README", "objects/ab/" + "A" * 64, "x"]
    write(stored.local.root, dict.fromkeys(files, b"mine"))
    stored.cache.gc(0)
    stored.cache.verify()
    assert sorted(read(stored.local.root)) == sorted(files)


def test_temporary_files_go_when_their_writer_is_no_more(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, 10**9)
    folder = store.objects / "ab"
    ready, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if not child:  # a writer that is killed in the middle
        with owned_temp(folder) as (stream, _):
            stream.write(b"x")
            os.write(ready[1], b"1")
            os.read(go_on[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    with owned_temp(folder) as (_, mine):
        upkeep.gc(store)
        assert len(os.listdir(folder)) == 2, "both live"
        os.kill(child, 9)
        os.waitpid(child, 0)
        upkeep.gc(store)
        assert os.listdir(folder) == [mine.name]
    assert os.listdir(folder) == []
    for fd in (*ready, *go_on):
        os.close(fd)


def test_verify_reads_everything(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    fill(stored, "abcd")
    good = stored.cache.verify()
    stats = stored.cache.stats()
    assert good is not None and stats is not None
    assert (good.entries, good.contents, good.bytes) == (4, 5, stats.bytes)
    assert good.damaged == () and good.incomplete == 0
    entry = stored.cache.lookup(key("a"))
    assert entry is not None
    path = stored.local.object_path(entry.files[0].sha256)
    os.chmod(path, 0o644)
    path.write_bytes(b"b" + path.read_bytes()[1:])
    data = stored.local.action_path(key("b")).read_bytes()
    stored.local.action_path(key("b")).write_bytes(data.replace(b"kind", b"king"))
    found = stored.cache.verify()
    assert found is not None and (found.entries, found.incomplete) == (2, 1)
    assert sorted(line.split(":")[0] for line in found.damaged) == [
        f"content {entry.files[0].sha256}",
        f"entry {key('b')}",
    ]
    assert names_in(stored, "abcd") == "cd"
    again = stored.cache.verify()
    assert again is not None and again.damaged == () and again.incomplete == 0


def test_stats_by_action(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    empty = stored.cache.stats()
    assert empty == upkeep.Stats(0, 0, 0, {}, empty.oldest if empty else 1)
    fill(stored, "abc")
    stats = stored.cache.stats()
    assert stats is not None and (stats.entries, stats.contents) == (3, 4)
    assert stats.kinds == {
        "kind0/1": upkeep.Kind(2, 4000, 4.0),
        "kind1/1": upkeep.Kind(1, 2000, 2.0),
    }
    assert 3 * HOUR - 60 < stats.oldest < 3 * HOUR + 600


# Between stores


def test_push_and_pull(tmp_path: Path) -> None:
    url = (tmp_path / "r").as_uri()
    stored = Stored(tmp_path / "1")
    fill(stored, "abc")
    remote = RemoteStore(url)
    sent = transfer.push(stored.local, remote, [key("a"), key("x")])
    assert (sent.entries, sent.bytes, sent.known) == (1, 2000, 0)
    sent = transfer.push(stored.local, remote)
    assert (sent.entries, sent.known, sent.left_out) == (2, 1, ())
    assert transfer.push(stored.local, remote).entries == 0
    other = LocalStore(tmp_path / "2", 10**9)
    got = transfer.pull(other, remote, [key("b"), key("x")])
    assert (got.entries, got.bytes, got.known) == (1, 2000, 0)
    got = transfer.pull(other, remote)
    assert (got.entries, got.bytes, got.known) == (2, 2000, 1)
    cache = Cache(other, warn=stored.said.append)
    for name in "abc":
        entry = cache.lookup(key(name))
        assert entry is not None and cache.restore(entry, place(tmp_path / name))
        assert read(tmp_path / name) == read(stored.folder / "made" / name)
    assert not stored.said


def test_nothing_damaged_is_pushed_or_pulled(tmp_path: Path) -> None:
    stored = Stored(tmp_path / "1")
    fill(stored, "abc")
    remote = RemoteStore((tmp_path / "r").as_uri())
    entry = stored.cache.lookup(key("a"))
    assert entry is not None
    path = stored.local.object_path(entry.files[0].sha256)
    os.chmod(path, 0o644)
    path.write_bytes(b"b" * path.stat().st_size)
    sent = transfer.push(stored.local, remote)
    assert sent.entries == 2 and len(sent.left_out) == 1 and key("a") in sent.left_out[0]
    entry = stored.cache.lookup(key("b"))
    assert entry is not None
    write(tmp_path / "r" / "objects" / entry.files[0].sha256[:2], {entry.files[0].sha256: b"?"})
    other = LocalStore(tmp_path / "2", 10**9)
    got = transfer.pull(other, remote)
    assert got.entries == 1 and len(got.left_out) == 1 and key("b") in got.left_out[0]
    assert upkeep.keys(other) == [key("c")]


def test_pull_stops_where_the_store_is_full(tmp_path: Path) -> None:
    stored = Stored(tmp_path / "1")
    fill(stored, "abcd")
    remote = RemoteStore((tmp_path / "r").as_uri())
    transfer.push(stored.local, remote)
    other = LocalStore(tmp_path / "2", 4500)
    got = transfer.pull(other, remote)
    assert 1 <= got.entries <= 3 and len(got.left_out) == 4 - got.entries
    assert all("no room" in line for line in got.left_out)


def test_trouble_of_a_command_is_an_error(tmp_path: Path) -> None:
    stored = Stored(tmp_path / "1")
    stored.save()
    with pytest.raises(CacheError, match="read-only"):
        transfer.push(stored.local, RemoteStore((tmp_path / "r").as_uri(), read_only=True))
    with pytest.raises(CacheError, match="cannot list"):
        transfer.pull(stored.local, RemoteStore("http://127.0.0.1:1/x"))
    write(tmp_path, {"r": b"a file"})
    with pytest.raises(CacheError, match="does not work"):
        transfer.push(stored.local, RemoteStore((tmp_path / "r").as_uri()))
