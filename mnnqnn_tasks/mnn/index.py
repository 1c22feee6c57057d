"""``model.json``: what a model folder holds, by content.

Later stages depend on these digests and not on the folder, so a model that was touched,
moved or copied is not exported again.  The schema is ``schemas/model.schema.json``.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnnqnn_tasks.cache.statcache import DigestCache, Numbers, numbers_of
from mnnqnn_tasks.errors import ModelFileError, StaleInputError
from mnnqnn_tasks.files import sha256_file
from mnnqnn_tasks.mnn.folder import ModelFolder, open_folder
from mnnqnn_tasks.mnn.spans import Span, SpanMemory

VERSION = 1
_CHUNK = 4 << 20


@dataclass(frozen=True)
class FileDigest:
    """Content of a file: hex SHA-256 and size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class ModelIndex:
    """Digests of a model.

    Attributes:
        model: name of the model file, a key of ``files``.
        weight: name of the weight file, or ``None`` if no op reads one.
        files: every file of the model by its name in the folder.
        ranges: SHA-256 of each byte range (offset, size) of the weight file that an op
            reads.
    """

    model: str
    weight: str | None
    files: Mapping[str, FileDigest]
    ranges: Mapping[Span, str]

    def to_json(self) -> dict[str, Any]:
        """The content of ``model.json``."""
        return {
            "version": VERSION,
            "model": self.model,
            "weight": self.weight,
            "files": {
                name: {"sha256": digest.sha256, "size": digest.size}
                for name, digest in self.files.items()
            },
            "ranges": [
                {"offset": offset, "size": size, "sha256": self.ranges[offset, size]}
                for offset, size in sorted(self.ranges)
            ],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ModelIndex:
        """What `to_json` gave.

        Raises:
            ModelFileError: when ``value`` is something else.
        """
        try:
            if value["version"] != VERSION:
                raise ValueError(f"its version is {value['version']}, not {VERSION}")
            return cls(
                value["model"],
                value["weight"],
                {name: FileDigest(d["sha256"], d["size"]) for name, d in value["files"].items()},
                {(r["offset"], r["size"]): r["sha256"] for r in value["ranges"]},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelFileError(
                "not a model.json of this tool",
                why=f"{type(error).__name__}: {error}",
                todo="delete it and run again",
            ) from error


def _numbers(path: Path) -> Numbers:
    try:
        return numbers_of(os.stat(path))
    except OSError as error:
        raise ModelFileError(
            "cannot read a file of the model", where=str(path), why=error.strerror
        ) from error


def index_model(
    model_dir: str | os.PathLike[str],
    memory: SpanMemory | None = None,
    known: DigestCache | None = None,
) -> ModelIndex:
    """Digest the model in ``model_dir``; every file is read at most once, in pieces.

    Args:
        memory: where to look, before the model file is decoded, for what was found when it
            was decoded the last time.
        known: where to look for digests of whole files, and to remember them.

    Raises:
        ModelFileError: when a file is missing, cut short or not of a model, when the
            model has an op that the schema does not know, when an op reads past the end
            of the weight file, or when the folder's parts do not fit (`check_complete`).
        StaleInputError: when a file changed while it was read.
    """
    folder = open_folder(model_dir)
    begin = time.time_ns()
    stamps = {name: _numbers(folder.path / name) for name in folder.files}
    ranges: dict[Span, str] = {}
    try:
        digest = known.digest if known else sha256_file
        digests = {n: digest(folder.path / n) for n in folder.files if n != folder.weight}
        sizes = {name: stamp[0] for name, stamp in stamps.items()}
        spans = memory.recall(digests, sizes) if memory else None
        if spans is None:
            spans = _spans(folder, stamps)
            if memory:
                memory.keep(digests, sizes, spans)
        if folder.weight in stamps:
            weight, stamp = folder.path / folder.weight, stamps[folder.weight]
            was = known.remembered(weight) if known else None
            if was and was[0] == stamp:
                digests[folder.weight], ranges = was[1], _range_digests(weight, spans)
            else:
                digests[folder.weight], ranges = _digest_ranges(weight, spans)
    except OSError as error:
        raise ModelFileError(
            "cannot read a file of the model",
            where=error.filename or str(folder.path),
            why=error.strerror,
        ) from error
    for name, stamp in stamps.items():
        now = _numbers(folder.path / name)
        # The change time moves as well when somebody makes a hard link to the file.
        if (*now[:2], now[3]) != (*stamp[:2], stamp[3]):
            raise StaleInputError(
                "a file of the model changed while it was read",
                where=str(folder.path / name),
                why="its size or time stamp is not what it was a moment ago",
                todo="run again when the file is complete",
            )
        if known is not None and now == stamp:
            known.learn(folder.path / name, stamp, begin, digests[name])
    files = {name: FileDigest(digests[name], stamps[name][0]) for name in sorted(digests)}
    return ModelIndex(folder.model, folder.weight if spans else None, files, ranges)


def _spans(folder: ModelFolder, stamps: Mapping[str, Numbers]) -> list[Span]:
    """The byte ranges that the model reads, each once; the model is whole and fits together."""
    # Imported late: a model of which only the weights changed needs none of it.
    from mnnqnn_tasks.mnn.complete import check_complete
    from mnnqnn_tasks.mnn.params import check_range, net_ranges
    from mnnqnn_tasks.mnn.reader import check_ops, read

    path = folder.path / folder.model
    net = read(path)
    check_ops(net, str(path))
    needed = list(net_ranges(net))
    if needed and folder.weight not in stamps:
        raise ModelFileError(
            "the weight file of the model is missing",
            where=str(folder.path / folder.weight),
            why=f"op {needed[0].op} and others read {len(needed)} ranges of it",
            todo="copy the whole model folder, or export the model again",
        )
    for item in needed:
        check_range(item, stamps[folder.weight][0], str(folder.path / folder.weight))
    check_complete(folder, net)
    return sorted({(item.offset, item.size) for item in needed})


def _range_digests(path: Path, spans: list[Span]) -> dict[Span, str]:
    """SHA-256 of each of ``spans`` (sorted), of a file whose own digest is known."""
    half = sum(size for _, size in spans) // 2
    before = itertools.accumulate((size for _, size in spans), initial=0)
    middle = sum(at < half for at in list(before)[:-1])
    with ThreadPoolExecutor(2) as pool:
        parts = pool.map(lambda part: _each_range(path, part), (spans[:middle], spans[middle:]))
        return {span: digest for part in parts for span, digest in part.items()}


def _each_range(path: Path, spans: list[Span]) -> dict[Span, str]:
    digests = {}
    with open(path, "rb") as stream:
        for offset, size in spans:
            state, left = hashlib.sha256(), size
            stream.seek(offset)
            while left:
                chunk = stream.read(min(left, _CHUNK))
                if not chunk:
                    raise _ended(path, offset + size - left)
                state.update(chunk)
                left -= len(chunk)
            digests[offset, size] = state.hexdigest()
    return digests


def _ended(path: Path, position: int) -> StaleInputError:
    return StaleInputError(
        "the weight file changed while it was read",
        where=str(path),
        why=f"it ended at byte {position}",
        todo="run again when the file is complete",
    )


def _digest_ranges(path: Path, spans: list[Span]) -> tuple[str, dict[Span, str]]:
    """SHA-256 of the file and of each of ``spans`` (sorted), in one pass over it.

    Two threads share the work, one for the file and one for the ranges: hashlib lets go
    of the interpreter.
    """
    whole = hashlib.sha256()
    digests: dict[Span, str] = {}
    active: list[tuple[Span, Any]] = []
    upcoming = 0
    position = 0
    pending: Future[None] | None = None
    with ThreadPoolExecutor(1) as helper, open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            if pending is not None:
                pending.result()
            pending = helper.submit(whole.update, chunk)
            end = position + len(chunk)
            view = memoryview(chunk)
            while upcoming < len(spans) and spans[upcoming][0] < end:
                active.append((spans[upcoming], hashlib.sha256()))
                upcoming += 1
            still = []
            for span, state in active:
                offset, size = span
                state.update(view[max(0, offset - position) : offset + size - position])
                if offset + size <= end:
                    digests[span] = state.hexdigest()
                else:
                    still.append((span, state))
            active = still
            position = end
        if pending is not None:
            pending.result()
    if len(digests) != len(spans):
        raise _ended(path, position)
    return whole.hexdigest(), digests
