"""``doit cache``, as a user types it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cache_stores import Stored, key, s3_server, write
from tasks_project import Project, Result

from mnnqnn_tasks.cache.local import LocalStore
from mnnqnn_tasks.spec.load import load_pipeline


class Shop:
    """A project with a cache of its own that holds two results."""

    def __init__(self, folder: Path, **cache: object) -> None:
        self.stored = Stored(folder)
        self.stored.save()
        files = write(folder / "made2", {"f": b"x" * 5000})
        assert self.stored.cache.save(key("b"), "link/1", files, {}, 60.0)
        self.project = Project.create(folder / "p", cache={"dir": "../../store", **cache})

    def doit(self, *args: str, **environ: str) -> Result:
        result = self.project.doit("cache", *args, env=environ)
        assert "Traceback" not in result.text
        return result


def test_stats_gc_and_verify(tmp_path: Path) -> None:
    shop = Shop(tmp_path, max_size="7 kB")
    store = shop.stored.local
    result = shop.doit("stats")
    assert result.code == 0
    assert str(store.root) in result.text and "2 results, 4 different files" in result.text
    assert "link/1: 1, 5.0 kB, took 60.0 s" in result.text
    stats = json.loads(shop.doit("stats", "--json").text)
    assert stats["dir"] == str(store.root) and stats["max_bytes"] == 7000
    assert stats["kinds"]["link/1"] == {"entries": 1, "bytes": 5000, "seconds": 60.0}
    os.utime(store.action_path(shop.stored.key), (1, 1))
    assert "deleted 1 results and 3 files" in shop.doit("gc").text
    assert store.has(key("b")) and not store.has(shop.stored.key)
    assert shop.doit("verify").code == 0
    (path,) = store.objects.rglob("*/*")
    os.chmod(path, 0o644)
    path.write_bytes(b"y" + path.read_bytes()[1:])
    result = shop.doit("verify")
    assert result.code == 1 and f"deleted content {path.name}" in result.text
    assert shop.doit("verify").code == 0
    assert "0 B are left" in shop.doit("gc", "--max-size", "1 kB").text


def test_push_and_pull_through_s3(tmp_path: Path) -> None:
    shop = Shop(tmp_path, remote="s3://bucket/team", read_only=True)
    with s3_server("bucket") as environ:
        result = shop.doit("push", **environ)
        assert result.code == 3 and "the remote cache is read-only" in result.text
        result = shop.doit("push", MNNQNN_CACHE_READ_ONLY="no", **environ)
        assert result.code == 0 and "pushed to s3://bucket/team: 2 results" in result.text
        other = tmp_path / "other"
        result = shop.doit("pull", MNNQNN_CACHE_DIR=str(other), **environ)
        assert result.code == 0 and "pulled from s3://bucket/team: 2 results" in result.text
        store = LocalStore(other, 1)
        assert store.has(key("b")) and store.has(shop.stored.key)
        result = shop.doit("pull", **environ)
        assert "0 results, 0 B; 2 were there" in result.text


@pytest.mark.parametrize(
    ("args", "environ", "words"),
    [
        ((), {}, "doit cache stats|gc|verify|push|pull"),
        (("stats", "gc"), {}, "one action is needed"),
        (("veriify",), {}, "did you mean verify?"),
        (("push",), {}, "there is no remote store"),
        (("gc", "--max-size", "much"), {}, "500 MB"),
        (("stats",), {"MNNQNN_CACHE_MAX_SIZE": "much"}, "MNNQNN_CACHE_MAX_SIZE: 'much'"),
        (("gc",), {"MNNQNN_CACHE_DIR": "off"}, "there is no local store"),
        (("pull",), {"MNNQNN_CACHE_REMOTE": "http://127.0.0.1:1/x"}, "cannot list"),
    ],
)
def test_mistakes_are_told_in_words(
    tmp_path: Path, args: tuple[str, ...], environ: dict[str, str], words: str
) -> None:
    result = Shop(tmp_path).doit(*args, **environ)
    assert result.code == 3 and words in result.text


def test_the_cache_of_a_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    project = Project.create(tmp_path / "p")
    file = project.root / "pipelines" / "p.yaml"
    assert load_pipeline(file).cache == {}
    for said, expected in (
        ("../c", project.root / "c"),
        ("/c d", Path("/c d")),
        ("~/c", tmp_path / "home" / "c"),
    ):
        project.pipeline(cache={"dir": said, "remote": "s3://b"})
        assert load_pipeline(file).cache == {"dir": str(expected), "remote": "s3://b"}


@pytest.mark.parametrize(
    "wrong",
    [{"dirr": "x"}, {"max_size": "20"}, {"max_size": 20}, {"remote": "/x"}, {"read_only": "no"}],
    ids=str,
)
def test_a_wrong_cache_is_refused_with_its_place(tmp_path: Path, wrong: dict[str, object]) -> None:
    project = Project.create(tmp_path / "p", cache=wrong)
    result = project.doit("cache", "stats")
    assert result.code == 3 and "p.yaml:" in result.text and "cache" in result.text
    assert "Traceback" not in result.text
