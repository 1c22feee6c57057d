"""What the tests of the cache share: folders to store, and stores to put them in."""

from __future__ import annotations

import contextlib
import functools
import os
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mnnqnn_tasks.cache.entry import Entry
from mnnqnn_tasks.cache.keys import action_key
from mnnqnn_tasks.cache.local import LocalStore
from mnnqnn_tasks.cache.store import Cache

#: Files of a small result: an empty one, a twin of another, a folder, odd names.
CONTENT = {
    "graph0.bin": b"context binary" * 500,
    "qnn/图 'x'.raw": b"weights" * 700,
    "qnn/twin.raw": b"weights" * 700,
    "empty": b"",
}


def key(name: str) -> str:
    return action_key("test/1", {"name": name})


def write(folder: Path, content: dict[str, bytes]) -> dict[str, Path]:
    """The files on disk, by name."""
    paths = {}
    for name, data in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        paths[name] = path
    return paths


def place(folder: Path) -> Callable[[str], Path]:
    return lambda name: folder / name


def read(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


class Stored:
    """A cache with one entry in a local store, and the warnings that it gives."""

    def __init__(self, folder: Path, content: dict[str, bytes] | None = None) -> None:
        self.folder = folder
        self.content = CONTENT if content is None else content
        self.said: list[str] = []
        self.local = LocalStore(folder / "store", 10**9)
        self.cache = Cache(self.local, warn=self.said.append)
        self.files = write(folder / "made", self.content)
        self.key = key("a")

    def save(self) -> Entry:
        entry = self.cache.save(self.key, "test/1", self.files, {"v": [1]}, 1.5)
        assert entry is not None, self.said
        return entry

    def store_files(self) -> list[Path]:
        return sorted(path for path in self.local.root.rglob("*") if path.is_file())


@contextlib.contextmanager
def s3_server(bucket: str) -> Iterator[dict[str, str]]:
    """A real S3 server on loopback with an empty bucket: the environment that leads to it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        environ = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        request = urllib.request.Request(f"http://{host}:{port}/{bucket}", method="PUT")
        urllib.request.urlopen(request).close()
        yield environ
    finally:
        server.stop()


def file_system(url: str) -> tuple[Any, str]:
    """The file system behind a URL, and the path of the store in it."""
    return _file_system(url, os.environ.get("AWS_ENDPOINT_URL"))


@functools.cache
def _file_system(url: str, endpoint: str | None) -> tuple[Any, str]:
    import fsspec

    fs, root = fsspec.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    return fs, root


def files_of(url: str) -> dict[str, bytes]:
    """Everything in the store at a URL, by its path there."""
    fs, root = file_system(url)
    return {path: fs.cat_file(path) for path in fs.find(root)}
