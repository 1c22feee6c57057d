"""Graph sources that MNN's ``compilefornpu`` wrote, made ready for the native link."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mnnqnn_tasks.errors import SourceFileError
from mnnqnn_tasks.files import sha256_bytes
from mnnqnn_tasks.partition.write import write
from mnnqnn_tasks.qnn import netjson
from mnnqnn_tasks.qnn.ir import Blob, Graph, Tensor
from mnnqnn_tasks.toolchain.cppnet.listing import check_listed
from mnnqnn_tasks.toolchain.cppnet.merges import read_merges
from mnnqnn_tasks.toolchain.cppnet.parse import parse
from mnnqnn_tasks.toolchain.cppnet.raws import Range, Raws, chunks, find_raws, open_plain
from mnnqnn_tasks.translate import blobstore

#: A source holds numbers per channel and block, no weights; the largest seen have a few MB.
_MAX_SOURCE = 256 << 20


@dataclass(frozen=True)
class ImportedGraph:
    """A graph that was read.

    Attributes:
        name: its name in the binary.
        net: its ``<name>_net.json``.
        sha256: digest of that file, which names all bytes that the graph is made of: the
            same digest means the same graph.
        blobs: digests of its static data.
    """

    name: str
    net: Path
    sha256: str
    blobs: tuple[str, ...]


@dataclass(frozen=True)
class ImportedBinary:
    """A context binary to be linked: its path ``qnn/graph0.bin``, and its graphs in order."""

    path: str
    graphs: tuple[ImportedGraph, ...]


def import_sources(folder: Path, out: Path) -> list[ImportedBinary]:
    """Read everything that a run of ``compilefornpu`` left in ``folder``.

    Args:
        folder: its working folder, with ``npu_postreat.json``, ``qnn/graph*/graph*.cpp``
            and the raw data beside each source, as files or packed in ``graph*.bin``.
        out: where to write; ``folder`` itself is fine.  Gets ``qnn/NAME/NAME_net.json``
            per graph and the content store ``blobs/``, as the native translation writes
            them, so that ``native.link`` takes them.  Files that would not change are
            left alone.

    Returns:
        The binaries in the order of ``npu_postreat.json``.

    Raises:
        SourceFileError: the merges, a source or raw data are missing, damaged or altered,
            or a path leads out of ``folder``.
        DiskError: when something cannot be written.
    """
    made = []
    for merge in read_merges(folder):
        pairs = zip(merge.graphs, merge.graph_names(), strict=True)
        graphs = tuple(
            import_graph(folder / graph, out / "qnn" / name / f"{name}_net.json", out / "blobs")
            for graph, name in pairs
        )
        made.append(ImportedBinary(merge.binary, graphs))
    return made


def import_graph(
    source: Path, net: Path, blobs: Path, listed: Mapping[str, str] | None = None
) -> ImportedGraph:
    """Read one graph.

    Args:
        source: its folder ``qnn/graph0`` with ``graph0.cpp`` and the raw data.
        net: the ``net.json`` to write, last and whole.
        blobs: the content store for static data; several graphs may be read at once.
        listed: SHA-256 by name that its files should have.

    Raises:
        SourceFileError, DiskError: see `import_sources`.
        StaleInputError: a file is another one than ``listed``.
    """
    graph = read_graph(source, blobs, listed)
    text = netjson.dumps(graph).encode()
    write(net, text)
    digests = tuple(dict.fromkeys(blob.sha256 for blob in graph.blobs()))
    return ImportedGraph(graph.name, net, sha256_bytes(text), digests)


def read_graph(source: Path, blobs: Path, listed: Mapping[str, str] | None = None) -> Graph:
    """The graph of a source folder; its static data is put into ``blobs``.

    Memory: the source, and 1 MiB of raw data at a time.

    Raises:
        SourceFileError, StaleInputError, DiskError: see `import_graph`.
    """
    path = source / f"{source.name}.cpp"
    data = _read(path)
    check_listed(listed or {}, path, sha256_bytes(data))
    parsed = parse(data, str(path))
    if parsed.graph.name != source.name:
        raise SourceFileError(
            f"the source is of the graph {parsed.graph.name[:80]!r}", where=str(path)
        )
    raws = find_raws(source, source.name)
    places = {tensor.name: _place(raws, tensor) for tensor in parsed.statics}
    stored = {name: _store(place, blobs) for name, place in places.items()}
    for name, blob in stored.items():
        check_listed(listed or {}, source / f"{name}.raw", blob.sha256)
    return parsed.with_blobs(stored)


def _read(path: Path) -> bytes:
    try:
        with open_plain(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > _MAX_SOURCE:
                raise SourceFileError(
                    "the source of a graph is absurdly long", where=str(path), why=f"{size} bytes"
                )
            return stream.read(size)
    except OSError as error:
        raise SourceFileError(
            "the source of a graph cannot be read", where=str(path), why=error.strerror
        ) from error


def _place(raws: Raws, tensor: Tensor) -> Range:
    place = raws(tensor.name)
    if place.size != tensor.size:
        raise SourceFileError(
            f"{tensor.name}.raw has another size than its tensor",
            where=str(place.path),
            why=f"{place.size} bytes for {tensor.dtype} {list(tensor.dims)}, {tensor.size} bytes",
            todo="have compilefornpu write the graph again",
        )
    return place


def _store(place: Range, blobs: Path) -> Blob:
    digest = hashlib.sha256()
    for piece in chunks(place):
        digest.update(piece)
    name = digest.hexdigest()
    blobstore.put_pieces(blobs, name, chunks(place), str(place.path))
    return Blob(name, place.size)
