"""Stores behind a URL: real ones, damaged ones, and some that do not answer."""

from __future__ import annotations

import functools
import http.server
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cache_stores import CONTENT, file_system, files_of, key, place, read, s3_server, write

from mnnqnn_tasks.cache.config import cache_settings
from mnnqnn_tasks.cache.entry import Entry
from mnnqnn_tasks.cache.local import LocalStore
from mnnqnn_tasks.cache.remote import RemoteStore
from mnnqnn_tasks.cache.store import Cache, open_cache
from mnnqnn_tasks.errors import ToolMissing

#: Seconds that a test waits for a server that will never answer, and for one that will.
SHORT = 1.0
PATIENT = 120.0


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with s3_server("bucket") as environ:
        yield environ


@pytest.fixture(params=["memory", "file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty store."""
    if request.param == "s3":
        for name, value in request.getfixturevalue("s3").items():
            monkeypatch.setenv(name, value)
        return f"s3://bucket/{tmp_path.name}/the cache"
    if request.param == "file":
        return (tmp_path / "remote 'r'").as_uri().replace("%20", " ").replace("%27", "'")
    return f"memory://{tmp_path.name}"


class User:
    """Somebody with a machine of their own, and what the cache tells them."""

    def __init__(
        self, folder: Path, url: str | RemoteStore, *, local: bool = True, **options: Any
    ) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.local = LocalStore(folder / "store", 10**9) if local else None
        if not isinstance(url, RemoteStore):
            url = RemoteStore(url, **{"timeout": PATIENT, **options})
        self.remote = url
        self.cache = Cache(self.local, self.remote, warn=self.said.append)

    def save(self, content: dict[str, bytes] = CONTENT, name: str = "a") -> Entry | None:
        files = write(self.folder / f"made-{name}", content)
        return self.cache.save(key(name), "test/1", files, {"v": 1}, 1.0)

    def restore(self, name: str = "a") -> dict[str, bytes] | None:
        entry = self.cache.lookup(key(name))
        out = self.folder / f"out-{name}"
        if entry is None or not self.cache.restore(entry, place(out)):
            assert not out.exists() or read(out) == {}
            return None
        return read(out)


def put(url: str, path: str, data: bytes) -> None:
    file_system(url)[0].pipe_file(path, data)


@pytest.mark.parametrize("local", [True, False])
def test_what_one_saves_another_restores(tmp_path: Path, url: str, local: bool) -> None:
    one, other = User(tmp_path / "1", url, local=local), User(tmp_path / "2", url, local=local)
    assert other.cache.lookup(key("a")) is None and other.cache.contains(key("a")) is None
    saved = one.save()
    assert saved is not None
    assert other.cache.contains(key("a")) == "remote"
    assert other.cache.lookup(key("a")) == saved
    assert other.restore() == CONTENT
    assert other.cache.contains(key("a")) == ("local" if local else "remote")
    assert not one.said + other.said
    names = [path.rpartition("/")[2] for path in files_of(url)]
    assert sorted(names) == sorted({f.sha256 for f in saved.files} | {key("a")})


def test_many_keys_are_compared_with_a_listing(tmp_path: Path, url: str) -> None:
    user, other = User(tmp_path / "1", url), User(tmp_path / "2", url, local=False)
    for name in "ab":
        user.save({"f": name.encode()}, name)
    for count in (3, 1000):
        keys = [key(str(i)) for i in range(count)] + [key("a"), key("b")]
        assert other.cache.contains_many(keys) == {key("a"): "remote", key("b"): "remote"}
    assert not user.said + other.said


def test_a_read_only_remote_gets_nothing(tmp_path: Path, url: str) -> None:
    user, reader = User(tmp_path / "1", url), User(tmp_path / "2", url, read_only=True)
    user.save()
    before = files_of(url)
    assert reader.save({"f": b"x"}, "b") is not None, "the local store takes it"
    assert reader.restore() == CONTENT
    assert files_of(url) == before
    assert not user.said + reader.said


def test_flipped_bits_never_give_a_wrong_file(tmp_path: Path, url: str) -> None:
    user = User(tmp_path / "1", url)
    user.save()
    rng = random.Random(5)
    paths = sorted(path for path, data in files_of(url).items() if data)
    for i in range(len(paths) * (1 if url.startswith("s3") else 4)):
        path = paths[i % len(paths)]
        good = files_of(url)[path]
        bad = bytearray(good[: rng.randrange(len(good))] if i % 4 == 3 else good)
        if i % 4 == 3:
            bad = bad[:-1]  # truncated
        else:
            bit = rng.randrange(8 * len(bad))
            bad[bit // 8] ^= 1 << bit % 8
        put(url, path, bytes(bad))
        other = User(tmp_path / f"o{i}", user.remote, local=bool(i % 2))
        assert other.restore() is None
        assert len(other.said) == 1 and "damaged" in other.said[0]
        assert other.restore() is None and len(other.said) == 1, "it was dropped"
        assert other.save() is not None, "and is made anew"
        assert User(tmp_path / f"p{i}", user.remote).restore() == CONTENT


def test_a_damaged_local_store_is_healed_by_the_remote(tmp_path: Path, url: str) -> None:
    user = User(tmp_path / "1", url)
    entry = user.save()
    assert entry is not None and user.local is not None
    path = user.local.object_path(entry.files[1].sha256)
    for i, damage in enumerate((b"?", b"longer")):
        os.chmod(path, 0o644)
        path.write_bytes(path.read_bytes()[:-1] + damage)
        assert user.restore() == CONTENT
        assert len(user.said) == i + 1 and "damaged" in user.said[i]
    path.unlink()
    assert user.restore() == CONTENT and len(user.said) == 2


def test_large_files_go_in_pieces(tmp_path: Path, url: str) -> None:
    data = random.Random(0).randbytes(17 << 20)
    user = User(tmp_path / "1", url)
    user.save({"big": data})
    user.save({"big": data, "small": b"x"}, "b")
    other = User(tmp_path / "2", url)
    assert other.restore("b") == {"big": data, "small": b"x"}
    assert not user.said + other.said


def test_forked_processes_have_connections_of_their_own(tmp_path: Path, url: str) -> None:
    if url.startswith("memory"):
        return  # that store is of one process
    user = User(tmp_path / "1", url)
    user.save()
    context = multiprocessing.get_context("fork")
    other = User(tmp_path / "2", url)
    assert other.cache.contains(key("a")) == "remote"
    with context.Pool(2) as pool:
        results = pool.map(functools.partial(_in_child, other), ["x", "y"])
    assert results == [CONTENT, CONTENT]
    assert other.restore("x") == CONTENT


def _in_child(user: User, name: str) -> dict[str, bytes] | None:
    user.save(CONTENT, name)
    found = user.restore(name)
    assert not user.said
    return found


# Servers that do not work


class Mute:
    """A server that accepts connections, perhaps answers some, then says nothing."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def mute() -> Iterator[Mute]:
    server = Mute()
    yield server
    server.close()


@pytest.fixture(params=["s3", "http"])
def at_port(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], str]:
    """Makes the URL of a store at a port of this machine."""

    def make(port: int) -> str:
        address = f"http://127.0.0.1:{port}"
        if request.param == "http":
            return f"{address}/cache"
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        return "s3://bucket/cache"

    return make


def _leave_out(user: User) -> None:
    """Everything still works, and is said once."""
    assert user.cache.contains(key("a")) is None
    assert user.cache.contains_many([key(str(i)) for i in range(300)]) == {}
    assert user.restore() is None
    assert user.save() is not None
    assert user.restore() == CONTENT
    assert len(user.said) == 1 and "is left out" in user.said[0], user.said


def test_a_server_that_hangs(tmp_path: Path, mute: Mute, at_port: Callable[[int], str]) -> None:
    user = User(tmp_path, at_port(mute.port), timeout=SHORT)
    _leave_out(user)
    assert f"no answer for {SHORT:g} s" in user.said[0]


def test_the_setting_is_how_long_a_hanging_server_is_waited_for(mute: Mute) -> None:
    said: list[str] = []
    given = {"remote": f"http://127.0.0.1:{mute.port}", "timeout_s": 0.3}
    settings = cache_settings(given, {"MNNQNN_CACHE_DIR": "off"})
    cache = open_cache(settings, warn=said.append)
    assert cache is not None and cache.contains(key("a")) is None
    assert len(said) == 1 and "no answer for 0.3 s" in said[0]


def test_a_slow_import_is_no_waiting(tmp_path: Path) -> None:
    code = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "fsspec":
            time.sleep(1)
sys.meta_path.insert(0, Slow())
from mnnqnn_tasks.cache.remote import RemoteStore
print(RemoteStore(sys.argv[1], timeout=0.5).has("0" * 64))
"""
    command = [sys.executable, "-c", code, (tmp_path / "r").as_uri()]
    run = subprocess.run(command, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "False\n", "")


def test_a_server_that_is_not_there(
    tmp_path: Path, mute: Mute, at_port: Callable[[int], str]
) -> None:
    mute.close()  # and its port refuses
    _leave_out(User(tmp_path, at_port(mute.port), timeout=SHORT))


def test_one_warning_in_all_processes_of_a_run(
    tmp_path: Path, mute: Mute, at_port: Callable[[int], str]
) -> None:
    user = User(tmp_path, at_port(mute.port), timeout=SHORT)
    context = multiprocessing.get_context("fork")
    with context.Pool(4, initializer=_USERS.append, initargs=(user,)) as pool:
        said = pool.map(_warnings, range(16), chunksize=1)
    assert sum(map(len, said)) == 1
    assert user.cache.lookup(key("a")) is None and not user.said, "known here as well"


_USERS: list[User] = []


def _warnings(_: int) -> list[str]:
    (user,) = _USERS
    user.said.clear()
    assert user.cache.lookup(key("a")) is None
    return list(user.said)


def test_a_server_that_stops_in_the_middle_of_a_file(tmp_path: Path) -> None:
    """Headers and a few bytes come, then nothing."""
    user = User(tmp_path / "1", (tmp_path / "r").as_uri())
    user.save()
    stop = threading.Event()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def copyfile(self, source: Any, outputfile: Any) -> None:
            if "objects" not in self.path:
                return super().copyfile(source, outputfile)
            outputfile.write(source.read(10))
            outputfile.flush()
            stop.wait()

    serve = functools.partial(Handler, directory=str(tmp_path / "r"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            other = User(tmp_path / "2", url, timeout=SHORT)
            assert other.cache.contains(key("a")) == "remote"
            assert other.restore() is None
            assert len(other.said) == 1 and "is left out" in other.said[0]
            assert other.save() is not None and other.restore() == CONTENT
        finally:
            stop.set()
            server.shutdown()
            thread.join()


def test_http_is_read_only(tmp_path: Path) -> None:
    user = User(tmp_path / "1", (tmp_path / "r").as_uri())
    user.save()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    serve = functools.partial(Handler, directory=str(tmp_path / "r"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            other = User(tmp_path / "2", f"http://127.0.0.1:{server.server_address[1]}/")
            keys = [key(str(i)) for i in range(300)] + [key("a")]
            assert other.cache.contains_many(keys) == {key("a"): "remote"}
            assert other.cache.lookup(key("b")) is None
            assert other.restore() == CONTENT
            assert other.save(CONTENT, "b") is not None
            assert not other.said
        finally:
            server.shutdown()
            thread.join()
    assert User(tmp_path / "3", (tmp_path / "r").as_uri()).cache.contains(key("b")) is None


def test_a_bucket_that_there_is_not(
    tmp_path: Path, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    user = User(tmp_path, "s3://nowhere/x")
    assert user.restore() is None
    assert user.save() is not None and user.restore() == CONTENT
    assert len(user.said) == 1 and "no such bucket" in user.said[0]


def test_a_full_local_disk_is_no_reason_not_to_restore(tmp_path: Path) -> None:
    user = User(tmp_path / "1", (tmp_path / "r").as_uri())
    user.save()
    other = User(tmp_path / "2", (tmp_path / "r").as_uri())
    write(tmp_path / "2", {"store": b"a file where the folder should be"})
    assert other.restore() == CONTENT and other.restore() == CONTENT
    assert len(other.said) == 1 and "cannot be read" in other.said[0], "told once"


def test_no_secrets_in_messages() -> None:
    remote = RemoteStore("https://user:secret@host/cache?sig=secret")
    assert remote.name == "https://host/cache"


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """gcsfs is not among what the tests install."""
    if __import__("importlib.util").util.find_spec("gcsfs"):
        RemoteStore("gs://bucket")
        return
    with pytest.raises(ToolMissing) as caught:
        RemoteStore("gs://bucket")
    assert "gcsfs" in caught.value.what and "mnnqnn[gs]" in (caught.value.todo or "")


def test_opening_is_cheap_and_a_copy_works_elsewhere(tmp_path: Path) -> None:
    """fsspec is for runs that ask the remote; and workers get caches by pickle."""
    code = """
import pickle, sys
from pathlib import Path
from mnnqnn_tasks.cache.config import cache_settings
from mnnqnn_tasks.cache.store import open_cache
settings = cache_settings({"dir": sys.argv[1], "remote": sys.argv[2]}, {})
cache = pickle.loads(pickle.dumps(open_cache(settings, warn=print)))
heavy = {"fsspec", "numpy", "asyncio", "concurrent.futures", "aiohttp", "s3fs"}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
assert cache.contains("0" * 64) is None
cache = pickle.loads(pickle.dumps(cache))
path = Path(sys.argv[1] + ".txt")
path.write_text("x")
assert cache.save("0" * 64, "test/1", {"x": path}, {}, 1.0)
assert cache.contains("0" * 64) == "local"
"""
    place = [str(tmp_path / "s"), (tmp_path / "r").as_uri()]
    run = subprocess.run([sys.executable, "-c", code, *place], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert RemoteStore(place[1]).has("0" * 64)


@pytest.mark.parametrize("works", [True, False])
def test_a_process_that_used_s3_ends_quietly(
    tmp_path: Path, s3: dict[str, str], mute: Mute, works: bool
) -> None:
    """Connections that are open at the end, or hang, neither keep it nor make it talk."""
    code = """
import sys
from mnnqnn_tasks.cache.remote import RemoteStore, RemoteTrouble
try:
    print(RemoteStore("s3://bucket/x", timeout=float(sys.argv[1])).has("0" * 64))
except RemoteTrouble as error:
    print(error)
"""
    environ = {**os.environ, **s3}
    if not works:
        environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{mute.port}"
    run = subprocess.run(
        [sys.executable, "-c", code, "60" if works else "0.5"],
        capture_output=True,
        text=True,
        env=environ,
        timeout=300,
    )
    said = "False\n" if works else "no answer for 0.5 s\n"
    assert (run.returncode, run.stdout, run.stderr) == (0, said, "")
