"""What the graphs of a Genie model are, by content: known before anything is made of them."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mnnqnn_tasks.cache.statcache import Numbers, changed_meanwhile, numbers_of
from mnnqnn_tasks.files import canonical_json, sha256_bytes

#: `numbers` of files, before they were used.
Before = Mapping[str, Numbers | None]


def files(source: str) -> dict[str, str]:
    """The files that a graph is read from, by the names that its model has for them.

    Raises:
        GenieError: an ``.onnx`` that is none.
    """
    found = {os.path.basename(source): source}
    if not source.endswith(".json"):
        folder, now = os.path.dirname(source), numbers([source])[source]
        found |= {name: os.path.join(folder, name) for name in _external(source, now)}
    return found


@functools.cache
def _external(source: str, _now: Numbers | None) -> tuple[str, ...]:
    """The weights beside a model, which the plan, the keys and the copy all ask for."""
    from mnnqnn_tasks.genie.onnx_name import external_files

    return external_files(Path(source))


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


def numbers(paths: Iterable[str]) -> dict[str, Numbers | None]:
    """What tells that a file was written to, by path; ``None`` for one that is not there."""
    found: dict[str, Numbers | None] = dict.fromkeys(paths)
    for path in found:
        with contextlib.suppress(OSError):
            found[path] = numbers_of(os.stat(path))
    return found


def require_unchanged(before: Before) -> None:
    """Make sure that nothing wrote to files while they were used.

    Args:
        before: their `numbers` as they were before.

    Raises:
        StaleInputError: something did.
    """
    for path, now in numbers(before).items():
        if now != before[path]:
            raise changed_meanwhile(path)
