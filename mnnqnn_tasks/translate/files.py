"""From the files of the partition stage to the files of one graph."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import ModelFileError, StaleInputError, TranslateError
from mnnqnn_tasks.partition.subgraph import ByteRef, Subgraph
from mnnqnn_tasks.partition.subgraph_json import from_json
from mnnqnn_tasks.translate.builder import Translated
from mnnqnn_tasks.translate.emit import emit
from mnnqnn_tasks.translate.translate import translate


class SourceReader:
    """Reads byte ranges of a model by content, through a memory map.

    Pages come and go with the map, so memory is bounded by what a graph reads.
    """

    def __init__(self, sources: Mapping[str, Any], model_dir: Path) -> None:
        self._sources = sources
        self._model_dir = model_dir
        self._maps: dict[str, memoryview] = {}
        self._known: dict[str, memoryview] = {}

    def __call__(self, ref: ByteRef) -> memoryview:
        """The bytes of ``ref``, checked.

        Raises:
            StaleInputError: when the file now holds other bytes there, or fewer.
            TranslateError: when ``sources.json`` does not know the digest.
        """
        if ref.sha256 not in self._known:
            self._known[ref.sha256] = self._read(ref)
        return self._known[ref.sha256]

    def _read(self, ref: ByteRef) -> memoryview:
        try:
            place = self._sources[ref.sha256]
            file, offset, size = str(place["file"]), int(place["offset"]), int(place["size"])
        except (KeyError, TypeError, ValueError) as error:
            raise TranslateError(
                "sources.json does not say where some bytes lie",
                why=f"no usable entry for {ref.sha256}",
                todo="run the partition again",
            ) from error
        if Path(file).name != file:
            raise TranslateError(
                "sources.json names a file outside the model folder",
                why=file,
                todo="run the partition again",
            )
        data = self._map(file)[offset : offset + size]
        if size != ref.size or hashlib.sha256(data).hexdigest() != ref.sha256:
            raise StaleInputError(
                "the model file changed since it was partitioned",
                where=str(self._model_dir / file),
                why=f"bytes {offset} to {offset + size} are not what they were",
                todo="run again; nothing made from the changed file was kept",
            )
        return data

    def _map(self, file: str) -> memoryview:
        if file not in self._maps:
            path = self._model_dir / file
            try:
                with path.open("rb") as stream:
                    mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise ModelFileError(
                    "cannot read the model file",
                    where=str(path),
                    why=str(error),
                    todo="check the path of the model folder in the pipeline",
                ) from error
            self._maps[file] = memoryview(mapped)
        return self._maps[file]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise TranslateError(
            "cannot read what the partition wrote",
            where=str(path),
            why=str(error),
            todo="delete it and run the partition again",
        ) from error


def translate_files(subgraph_json: Path, sources_json: Path, model_dir: Path) -> Translated:
    """Translate the subgraph in ``subgraph_json`` without writing anything.

    Raises:
        TranslateError, UnsupportedOp: when it cannot be translated.
        StaleInputError: when the model changed since it was partitioned.
        ModelFileError: when the model cannot be read.
    """
    subgraph: Subgraph = from_json(_json(subgraph_json))
    return translate(subgraph, SourceReader(_json(sources_json), model_dir))


def translate_file(
    subgraph_json: Path, sources_json: Path, model_dir: Path, out_dir: Path, blob_store: Path
) -> None:
    """Translate one subgraph and write its files; see `translate.emit`.

    Args:
        subgraph_json: ``subgraphs/<graph>.json``.
        sources_json: ``sources.json``, which says where bytes lie; what is read through
            it is checked by content.
        model_dir: the model folder.
        out_dir: folder of the graph's files.
        blob_store: content store of static data, shared by all graphs of the model.

    Raises:
        TranslateError, UnsupportedOp: when it cannot be translated.
        StaleInputError: when the model changed since it was partitioned.
        ModelFileError: when the model cannot be read.
        DiskError: when a file cannot be written.
    """
    made = translate_files(subgraph_json, sources_json, model_dir)
    emit(made.graph, made.blobs, out_dir, blob_store)
