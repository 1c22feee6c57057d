"""Which bytes of the weight file a model reads, remembered from one run to the next.

It follows from every file of the model but the weight file, and of that from its size, so a
model that got other weights need not be decoded again to digest it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mnnqnn_tasks.files import canonical_json, sha256_bytes, write_bytes

#: Offset and size in bytes.
Span = tuple[int, int]


class SpanMemory:
    """A file with the spans of one model; missing, damaged or of another model, it is empty.

    Args:
        path: the file.
        code: identity of the code that finds the spans and checks the model.
    """

    def __init__(self, path: str | os.PathLike[str], code: str) -> None:
        self._path = Path(path)
        self._code = code

    def recall(self, digests: Mapping[str, str], sizes: Mapping[str, int]) -> list[Span] | None:
        """The spans of a model that was read and checked, ``None`` if this one was not.

        Args:
            digests: SHA-256 by name of all files but the weight file.
            sizes: bytes by name of all files.
        """
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            value = json.loads(self._path.read_bytes())
            spans = [(int(offset), int(size)) for offset, size in value["spans"]]
            if value["sha256"] == self._seal(digests, sizes, spans):
                return spans
        return None

    def keep(
        self, digests: Mapping[str, str], sizes: Mapping[str, int], spans: Sequence[Span]
    ) -> None:
        """Remember ``spans`` for the next run.

        Raises:
            DiskError: when the file cannot be written.
        """
        value = {"spans": [list(s) for s in spans], "sha256": self._seal(digests, sizes, spans)}
        write_bytes(self._path, canonical_json(value).encode(), durable=False)

    def _seal(
        self, digests: Mapping[str, str], sizes: Mapping[str, int], spans: Sequence[Span]
    ) -> str:
        """A digest of the model and the spans: an edited file or another model has another."""
        said: list[Any] = [self._code, dict(digests), dict(sizes), [list(span) for span in spans]]
        return sha256_bytes(canonical_json(said).encode())
