"""What the graphs of a Genie model are, by content: known before anything is made of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import StaleInputError
from mnnqnn_tasks.files import canonical_json, sha256_bytes

#: Size, times and inode: whether a file was written to.
_Numbers = tuple[int, int, int, int]


def files(source: str) -> dict[str, str]:
    """The files that a graph is read from, by the names that its model has for them.

    Raises:
        GenieError: an ``.onnx`` that is none.
    """
    found = {os.path.basename(source): source}
    if not source.endswith(".json"):
        from mnnqnn_tasks.genie.onnx_name import external_files

        folder = os.path.dirname(source)
        found |= {name: os.path.join(folder, name) for name in external_files(Path(source))}
    return found


def listing(source: str, graph: str, digest: Callable[[str], str]) -> dict[str, Any]:
    """What stands for a graph in the keys of what is made of it, as JSON.

    Args:
        graph: its planned name.
        digest: gives the SHA-256 of a file.

    Raises:
        GenieError: an ``.onnx`` that is none.
        ModelFileError, StaleInputError: from ``digest``.
    """
    digests = {name: digest(path) for name, path in files(source).items()}
    return {"graph": graph, "model": os.path.basename(source), "files": digests}


def listing_bytes(said: dict[str, Any]) -> bytes:
    """The file of a listing."""
    return (canonical_json(said, indent=1) + "\n").encode()


def listing_digest(source: str, graph: str, digest: Callable[[str], str]) -> str:
    """Hex SHA-256 of that file.

    Raises:
        GenieError, ModelFileError, StaleInputError: see `listing`.
    """
    return sha256_bytes(listing_bytes(listing(source, graph, digest)))


def numbers(source: str) -> dict[str, _Numbers]:
    """What tells that a file of a graph was written to, by path.

    Raises:
        GenieError: an ``.onnx`` that is none.
    """
    found = {}
    for path in files(source).values():
        try:
            info = os.stat(path)
        except OSError:
            continue
        found[path] = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
    return found


def require_unchanged(source: str, before: dict[str, _Numbers]) -> None:
    """Make sure that nothing wrote to a graph's files while they were used.

    Raises:
        StaleInputError: something did.
    """
    now = numbers(source)
    for path in {*now, *before}:
        if now.get(path) != before.get(path):
            raise StaleInputError(
                "the file changed while it was read",
                where=path,
                todo="run again when nothing writes to it any more",
            )
