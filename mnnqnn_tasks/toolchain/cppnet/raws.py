"""Raw data beside a source: ``NAME.raw`` in its folder, or in the tar made of them.

``npu_convert.py`` packs the raw files of ``qnn/graph0/`` into ``qnn/graph0/graph0.bin``,
and newer ones delete them then.  Nothing is unpacked: what is needed is read at its place
in the tar.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, cast

from mnnqnn_tasks.errors import SourceFileError

#: Entries of a tar; a graph has some hundred static tensors.
_MAX_ENTRIES = 100_000
#: Headers of a tar are read in pieces of at most this many bytes.
_MAX_HEADER = 1 << 20
_CHUNK = 1 << 20

_NAME = re.compile(r"[A-Za-z0-9_]{1,200}")
_TODO = "have compilefornpu write the graph again"


@dataclass(frozen=True)
class Range:
    """Bytes of a file."""

    path: Path
    offset: int
    size: int


#: Finds the bytes of a tensor by its name.
Raws = Callable[[str], Range]


def find_raws(folder: Path, graph: str) -> Raws:
    """The raw data of a graph in ``folder``: its raw files, else ``<graph>.bin``.

    Raises:
        SourceFileError: the tar is damaged, or holds what is no raw file.  The same from
            the function that is returned, where a tensor has no data.
    """
    tar = folder / f"{graph}.bin"
    if any(path.suffix == ".raw" for path in folder.iterdir()) or not tar.exists():
        return lambda name: _in_folder(folder, name)
    places = _tar_places(tar)

    def in_tar(name: str) -> Range:
        if name not in places:
            raise _missing(name, tar, "the tar has no such file")
        return places[name]

    return in_tar


def _missing(name: str, where: Path, why: str) -> SourceFileError:
    return SourceFileError(f"{name}.raw cannot be read", where=str(where), why=why, todo=_TODO)


def _in_folder(folder: Path, name: str) -> Range:
    path = folder / f"{name}.raw"
    if not _NAME.fullmatch(name):
        raise _missing(name[:80], folder, "such a name is no file name that MNN writes")
    try:
        # A link could lead out of the folder.
        info = path.lstat()
    except OSError as error:
        raise _missing(name, path, error.strerror or str(error)) from error
    if not stat.S_ISREG(info.st_mode):
        raise _missing(name, path, "it is no plain file")
    return Range(path, 0, info.st_size)


class _Bounded:
    """A file whose headers cannot make the reader allocate more than a header is long."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.seek, self.tell, self.close = stream.seek, stream.tell, stream.close

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._stream.read(size)


def _tar_places(tar: Path) -> dict[str, Range]:
    places: dict[str, Range] = {}
    with _tar_errors(tar), open_plain(tar, os.O_NOFOLLOW) as stream:
        total = os.fstat(stream.fileno()).st_size
        bounded = cast("IO[bytes]", _Bounded(stream))
        with tarfile.open(fileobj=bounded, mode="r:", errorlevel=2) as archive:
            while (entry := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # else it keeps all headers
                if len(places) == _MAX_ENTRIES:
                    raise tarfile.ReadError(f"more than {_MAX_ENTRIES} files")
                name = _entry_name(entry.name)
                if name in places:
                    raise tarfile.ReadError(f"{entry.name} is there twice")
                places[name] = _entry_range(entry, tar, places, total)
    return places


def _entry_name(path: str) -> str:
    name, suffix = os.path.splitext(path.removeprefix("./"))
    if suffix != ".raw" or not _NAME.fullmatch(name):
        raise tarfile.ReadError(f"{path[:80]!r} is no name of a raw file")
    return name


def _entry_range(entry: tarfile.TarInfo, tar: Path, places: dict[str, Range], total: int) -> Range:
    if entry.islnk():  # two names of one file, the first of which is in the tar
        target = _entry_name(entry.linkname)
        if target not in places:
            raise tarfile.ReadError(f"{entry.name} is a link to {target}.raw, which is not there")
        return places[target]
    if not entry.isreg() or entry.issparse():
        raise tarfile.ReadError(f"{entry.name} is no plain file")
    if entry.offset_data + entry.size > total:
        raise tarfile.ReadError(f"it ends inside {entry.name}")
    return Range(tar, entry.offset_data, entry.size)


@contextlib.contextmanager
def _tar_errors(tar: Path) -> Iterator[None]:
    try:
        yield
    # The reader lets what int() and decode() say of damaged headers through.
    except (tarfile.TarError, OSError, ValueError, OverflowError, EOFError) as error:
        raise SourceFileError(
            "the tar of a graph's raw data cannot be read",
            where=str(tar),
            why=str(error) or type(error).__name__,
            todo=_TODO,
        ) from error


def open_plain(path: Path, flags: int = 0) -> BinaryIO:
    """Open a plain file for reading; a pipe in its place is not waited for.

    Raises:
        OSError: it cannot be opened, or is no plain file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    stream = os.fdopen(fd, "rb")
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return stream
    stream.close()
    raise OSError(errno.EINVAL, "it is no plain file", str(path))


def chunks(place: Range) -> Iterator[bytes]:
    """The bytes of a range, 1 MiB at a time.

    Raises:
        SourceFileError: they cannot be read, or are not there any more.
    """
    left = place.size
    try:
        with open_plain(place.path, os.O_NOFOLLOW) as stream:
            stream.seek(place.offset)
            while left > 0 and (piece := stream.read(min(left, _CHUNK))):
                left -= len(piece)
                yield piece
    except OSError as error:
        raise _missing(place.path.stem, place.path, error.strerror or str(error)) from error
    if left:
        raise _missing(
            place.path.stem, place.path, f"it got {left} bytes shorter while it was read"
        )
