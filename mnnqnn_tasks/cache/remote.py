"""The store behind a URL, through fsspec: the same folders as in the local one.

Every operation has a deadline of our own, whatever the library below does: a server that
accepts and says nothing costs seconds.  Nothing read is trusted, see `local`.  Where writing
a file makes it visible before it is whole, it is written under ``tmp/`` and moved.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from mnnqnn_tasks.cache.config import DEFAULT_TIMEOUT_S, CacheSettings
from mnnqnn_tasks.cache.entry import Damaged, Entry, File, from_bytes, is_digest, to_bytes
from mnnqnn_tasks.cache.local import Missing
from mnnqnn_tasks.cache.patience import Beat, Stalled, patiently
from mnnqnn_tasks.cache.pool import at_once
from mnnqnn_tasks.cache.protocols import PIECE, PROTOCOLS, S3, Protocol, library_options, require
from mnnqnn_tasks.errors import DiskError
from mnnqnn_tasks.files import disk_errors, sha256_file

T = TypeVar("T")

#: A slower line, in bytes per second, is taken for a broken one where nothing tells the
#: progress: within a piece that is uploaded, and within a file on a mounted file system.
_SLOW = 256 << 10

#: Up to this many keys are asked for one by one; more are compared with a listing.
_FEW = 200

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RemoteTrouble(Exception):
    """The remote store does not work; the text says why, in a few words."""


class RemoteStore:
    """The store at ``url``.

    Opening neither imports fsspec nor connects.  Instances may be used by several threads
    and by processes forked from this one.

    Args:
        url: ``s3://BUCKET/FOLDER``, ``gs://``, ``file://``, ``memory://``, ``http(s)://``.
        read_only: nothing is written; always so for ``http(s)``.
        timeout: seconds without an answer, or without progress, after which an operation
            is given up; also an attribute.

    Raises:
        ToolMissing: a package that the protocol needs is not installed.
    """

    def __init__(
        self, url: str, *, read_only: bool = False, timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self.url = url
        self._scheme = url.partition("://")[0].lower()
        self._protocol = PROTOCOLS.get(self._scheme, Protocol())
        self.read_only = read_only or not self._protocol.writable
        self.timeout = timeout
        self._opened: tuple[int, Any, str] | None = None
        require(self._scheme, self._protocol)

    @classmethod
    def of(cls, settings: CacheSettings) -> RemoteStore | None:
        """The remote store that the settings name, if they do.

        Raises:
            ToolMissing: a package that the protocol needs is not installed.
        """
        if settings.remote is None:
            return None
        return cls(settings.remote, read_only=settings.read_only, timeout=settings.timeout_s)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}  # connections stay where they are

    @property
    def name(self) -> str:
        """The URL without what may be a secret, for messages."""
        return re.sub(r"//[^/@]*@", "//", self.url).partition("?")[0]

    def open(self) -> None:
        """Make the file system, so that threads do not all begin with that.

        Raises:
            RemoteTrouble: it cannot be made.
        """
        if self._opened is None or self._opened[0] != os.getpid():
            self._do(lambda fs, _: None)

    # Entries

    def read(self, key: str) -> Entry | None:
        """The entry of ``key``, ``None`` if there is none.

        Raises:
            Damaged: it is not what was written.
            RemoteTrouble: the remote does not work.
        """
        path = self._path("actions", key)
        try:
            data = self._do(lambda fs, _: fs.cat_file(self._at(path)))
        except FileNotFoundError:
            return None
        return from_bytes(data, key)

    def has(self, key: str) -> bool:
        """Whether there is an entry; it is not read.

        Raises:
            RemoteTrouble: the remote does not work.
        """
        return self._size(self._path("actions", key)) is not None

    def has_many(self, keys: Iterable[str]) -> set[str]:
        """The keys that have an entry.

        Raises:
            RemoteTrouble: the remote does not work.
        """
        wanted = set(keys)
        if len(wanted) > _FEW and self._protocol.writable:
            return wanted.intersection(self.keys())
        asked = sorted(wanted)
        self.open()
        return {k for k, there in zip(asked, at_once(self.has, asked), strict=True) if there}

    def keys(self) -> set[str]:
        """The keys of all entries.

        Raises:
            RemoteTrouble: the remote does not work, or cannot list.
        """
        if not self._protocol.writable:
            raise RemoteTrouble(f"{self._scheme} cannot list what there is")
        try:
            # A listing has pages and no progress to tell of; a large one takes its time.
            found = self._do(lambda fs, _: fs.find(self._at("actions")), patience=6)
        except FileNotFoundError:
            return set()
        return {key for path in found if is_digest(key := path.rpartition("/")[2])}

    def write(self, entry: Entry, sources: Mapping[str, Path]) -> int:
        """Add an entry and those of its contents that are not there yet, these first.

        Args:
            sources: a file with the content, by digest.

        Returns:
            How many bytes of contents were sent.

        Raises:
            RemoteTrouble: the remote does not work, or is read-only.
        """

        def send(content: tuple[str, int]) -> int:
            digest, size = content
            if size >= PIECE:
                return self.add(digest, size, sources[digest])
            self._put(self._path("objects", digest), sources[digest], size)
            return size

        self.open()
        sent = sum(at_once(send, entry.contents().items()))
        data = to_bytes(entry)
        goal = self._path("actions", entry.key)
        self._write(goal, len(data), lambda fs, path, _: fs.pipe_file(path, data))
        return sent

    def add(self, sha256: str, size: int, source: Path) -> int:
        """Add a content that may be there already.

        Args:
            source: a file with it.

        Returns:
            How many bytes were sent.

        Raises:
            RemoteTrouble: the remote does not work, or is read-only.
        """
        path = self._path("objects", sha256)
        if self._size(path) == size:
            return 0
        self._put(path, source, size)
        return size

    def drop_entry(self, key: str) -> bool:
        """Delete an entry; False if that did not work."""
        if self.read_only:
            return False
        with contextlib.suppress(RemoteTrouble, OSError):
            self._do(lambda fs, _: fs.rm_file(self._at(self._path("actions", key))))
            return True
        return False

    def drop_object(self, sha256: str) -> None:
        """Delete a content, if that works."""
        if not self.read_only:
            with contextlib.suppress(RemoteTrouble, OSError):
                self._do(lambda fs, _: fs.rm_file(self._at(self._path("objects", sha256))))

    # Contents

    def fetch(self, file: File, target: Path) -> None:
        """Write the content that ``file`` says to ``target``.

        Raises:
            Missing: the remote does not have it.
            Damaged: what it has is another content; the file holds some of it.
            DiskError: there is no room for ``target``.
            RemoteTrouble: the remote does not work.
        """
        path = self._path("objects", file.sha256)
        more = self._protocol.download
        extra = file.size / _SLOW if self._protocol.mounted else 0.0

        def get(fs: Any, beat: Beat) -> None:
            fs.get_file(
                self._at(path), os.fspath(target), callback=_callback(beat, file.size), **more
            )

        try:
            self._do(get, extra=extra)
        except FileNotFoundError:
            raise Missing(file.sha256) from None
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise RemoteTrouble(_words(error)) from error
            with disk_errors(target):
                raise
        if os.path.getsize(target) != file.size or sha256_file(target) != file.sha256:
            raise Damaged("its digest is wrong")

    def _size(self, path: str) -> int | None:
        try:
            if not self._protocol.writable:  # http, whose info hides why it has none
                there = self._do(lambda fs, _: fs.exists(self._at(path), strict=True))
                return 0 if there else None
            size: int = self._do(lambda fs, _: fs.info(self._at(path)))["size"]
            return size
        except FileNotFoundError:
            return None

    def _put(self, path: str, source: Path, size: int) -> None:
        more = self._protocol.upload

        def put(fs: Any, goal: str, beat: Beat) -> None:
            fs.put_file(os.fspath(source), goal, callback=_callback(beat), **more)

        piece = min(size, 2 * PIECE) if more else size
        self._write(path, piece, put)

    def _write(self, path: str, size: int, work: Callable[[Any, str, Beat], object]) -> None:
        """Make the file ``path`` appear whole; ``size`` bytes of it tell no progress."""
        if self.read_only:
            raise RemoteTrouble("it is read-only")

        def write(fs: Any, beat: Beat) -> None:
            goal = self._at(path)
            if self._protocol.whole:
                work(fs, goal, beat)
                return
            temp = self._at(f"tmp/{os.urandom(16).hex()}")
            for file in (temp, goal):
                fs.makedirs(file.rpartition("/")[0], exist_ok=True)
            try:
                work(fs, temp, beat)
                beat()
                fs.mv(temp, goal)
            except BaseException:
                with contextlib.suppress(Exception):
                    fs.rm_file(temp)
                raise

        try:
            self._do(write, extra=size / _SLOW)
        except OSError as error:
            raise RemoteTrouble(_words(error)) from error

    # The file system

    def _path(self, kind: str, digest: str) -> str:
        return f"{kind}/{digest[:2]}/{digest}"

    def _at(self, path: str) -> str:
        assert self._opened is not None
        return f"{self._opened[2]}/{path}"

    def _do(
        self, work: Callable[[Any, Beat], T], *, patience: float = 1.0, extra: float = 0.0
    ) -> T:
        """``work`` on the file system, with a deadline.

        Raises:
            FileNotFoundError, or an OSError about room on the disk: as they come.
            RemoteTrouble: anything else.
        """

        def run(beat: Beat) -> T:
            return work(self._filesystem(beat), beat)

        try:
            self._import()
            return patiently(run, self.timeout * patience + extra)
        except FileNotFoundError as error:
            if _is_no_bucket(error):
                raise RemoteTrouble("there is no such bucket") from error
            raise
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise
            raise RemoteTrouble(_words(error)) from error
        except (DiskError, RemoteTrouble, Damaged):
            raise
        except Exception as error:  # libraries have errors of their own
            raise RemoteTrouble(_words(error)) from error

    def _import(self) -> None:
        # Work and no waiting: seconds on a machine that has other things to do.
        if self._opened is None:
            import fsspec

            with contextlib.suppress(ValueError, ImportError):  # opening it says so
                fsspec.get_filesystem_class(self._scheme)

    def _filesystem(self, beat: Beat) -> Any:
        # Connections and threads do not survive a fork.
        if self._opened is None or self._opened[0] != os.getpid():
            import fsspec

            options = dict(library_options(self._protocol, self.timeout))
            fs, root = fsspec.url_to_fs(
                self.url, skip_instance_cache=True, use_listings_cache=False, **options
            )
            beat()
            if self._protocol is S3:
                fs.connect()  # which is work, and would count as waiting later
            beat()
            self._opened = os.getpid(), fs, root.rstrip("/")
        return self._opened[1]


def _callback(beat: Beat, limit: int | None = None) -> Any:
    """What fsspec tells of progress; more bytes than ``limit`` are not taken."""
    from fsspec.callbacks import Callback

    class Progress(Callback):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            super().relative_update(inc)
            beat()
            if limit is not None and self.value > limit:
                raise Damaged("it is too large")

    return Progress()


def _is_no_bucket(error: BaseException) -> bool:
    response = getattr(error.__cause__, "response", None)
    return isinstance(response, dict) and response.get("Error", {}).get("Code") == "NoSuchBucket"


def _words(error: BaseException) -> str:
    if isinstance(error, Stalled):
        return str(error)
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]
