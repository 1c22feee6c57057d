"""Bytes of the model's files by content, and where they lie."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.files import sha256_bytes
from mnnqnn_tasks.mnn.index import ModelIndex
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.mnn.weights import convolution_ranges, file_offset, inline_vectors
from mnnqnn_tasks.partition.subgraph import ByteRef, Subgraph

assert sys.byteorder == "little", "views of a model file are little-endian"


@dataclass(frozen=True)
class Place:
    """Where bytes lie: ``size`` bytes from ``offset`` in ``file`` of the model folder."""

    file: str
    offset: int
    size: int


@dataclass
class Sources:
    """Collects every byte range that subgraphs refer to.

    Attributes:
        index: digests of the model's weight ranges.
        places: SHA-256 -> the first place with these bytes.
    """

    index: ModelIndex
    places: dict[str, Place] = field(default_factory=dict)
    _vectors: dict[tuple[int, int], ByteRef] = field(default_factory=dict)

    def _add(self, sha256: str, place: Place) -> ByteRef:
        known = self.places.get(sha256)
        if known is None or (place.file, place.offset) < (known.file, known.offset):
            self.places[sha256] = place
        return ByteRef(sha256, place.size)

    def weight(self, offset: int, size: int) -> ByteRef:
        """Bytes of the weight file.

        Raises:
            ModelFileError: when ``model.json`` does not know the range.
        """
        sha256 = self.index.ranges.get((offset, size))
        if sha256 is None or self.index.weight is None:
            raise ModelFileError(
                "the model reads a weight range that its index does not have",
                why=f"{size} bytes from byte {offset}",
                todo="the model changed; run again to index it anew",
            )
        return self._add(sha256, Place(self.index.weight, offset, size))

    def vector(self, values: np.ndarray[Any, Any]) -> ByteRef:
        """Bytes of a number vector that lies in the model file itself."""
        offset = file_offset(values)
        key = offset, values.nbytes
        if key not in self._vectors:
            place = Place(self.index.model, offset, values.nbytes)
            self._vectors[key] = self._add(sha256_bytes(values.tobytes()), place)
        return self._vectors[key]

    def of_op(self, op: Table) -> dict[str, ByteRef]:
        """Everything large that ``op`` reads, by role: external parts and long vectors."""
        refs = {role: self.weight(*span) for role, span in convolution_ranges(op).items()}
        if isinstance(op.main, Table):
            refs |= {role: self.vector(v) for role, v in inline_vectors(op.main).items()}
        return dict(sorted(refs.items()))

    def used_by(self, subgraphs: Iterable[Subgraph]) -> Sources:
        """Only the places of what ``subgraphs`` refer to."""
        used = {
            ref.sha256
            for subgraph in subgraphs
            for ref in (
                *(ref for op in subgraph.ops for ref in op.weights.values()),
                *(t.const for t in subgraph.tensors if isinstance(t.const, ByteRef)),
            )
        }
        return Sources(self.index, {sha: p for sha, p in self.places.items() if sha in used})

    def to_json(self) -> Mapping[str, Any]:
        """The content of ``sources.json``."""
        return {
            sha256: {"file": p.file, "offset": p.offset, "size": p.size}
            for sha256, p in sorted(self.places.items())
        }
