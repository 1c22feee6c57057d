"""The files of a cut before the bytes of the weights are known.

A cut depends on the model's structure alone.  So it is made once, with a stand-in for the
digest of every byte range of the weight file, and the digests are filled in later: a model
with other weights is not cut again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from mnnqnn_tasks.errors import PartitionError
from mnnqnn_tasks.files import sha256_bytes
from mnnqnn_tasks.mnn.index import FileDigest, ModelIndex
from mnnqnn_tasks.partition.fill import GRAPHS, PLAN, POSTREAT, Part, Template
from mnnqnn_tasks.partition.partition import Partition
from mnnqnn_tasks.partition.subgraph_json import to_bytes
from mnnqnn_tasks.partition.text import readable_json

_DIGEST = re.compile(r"[0-9a-f]{64}")


def stand_in_index(structure: Mapping[str, Any]) -> ModelIndex:
    """The index of a model of which only the structure counts.

    A stand-in is as long as a digest, because the layout of `readable_json` depends on
    lengths, and is a digest that depends on the model file, so that no text of the model
    can be mistaken for it.

    Args:
        structure: the content of ``structure.json``.

    Raises:
        PartitionError: when it is something else.
    """
    try:
        model = structure["model"]
        seed = structure["files"][model]
        return ModelIndex(
            model,
            structure["weight"],
            # Sizes of files have no part in a cut.
            {name: FileDigest(sha256, 0) for name, sha256 in structure["files"].items()},
            {
                (offset, size): sha256_bytes(f"{seed} {offset} {size}".encode())
                for offset, size in structure["ranges"]
            },
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PartitionError(
            "not a structure.json of this tool",
            why=f"{type(error).__name__}: {error}",
            todo="delete it and run again",
        ) from error


def make_template(made: Partition) -> Template:
    """The files of ``made`` with gaps where a digest of weight bytes stands.

    It does not matter whether ``made`` has stand-ins or digests.
    """
    spans = sorted(made.index.ranges)
    gaps: dict[str, int | str] = {made.index.ranges[span]: i for i, span in enumerate(spans)}
    texts: dict[str, tuple[Part, ...]] = {}
    for subgraph in made.subgraphs:
        data = to_bytes(subgraph)
        texts[f"{GRAPHS}/{subgraph.graph}.json"] = _split(data.decode(), gaps)
        gaps[sha256_bytes(data)] = subgraph.graph
    # As MNN's tool prints it: four spaces, keys in this order.
    postreat = json.dumps(made.plan.postreat_json(), indent=4, ensure_ascii=False)
    texts[POSTREAT] = (postreat,)
    texts[PLAN] = _split(readable_json(made.plan.to_json()), gaps)
    places = []
    for sha256, place in made.looked_up.places.items():
        digest = None if place.file == made.index.weight else sha256
        used = sha256 in made.sources.places
        places.append((place.file, place.offset, place.size, digest, used))
    return Template(
        tuple(subgraph.graph for subgraph in made.subgraphs),
        tuple(made.plan.merges()),
        tuple(spans),
        texts,
        tuple(places),
    )


def _split(text: str, gaps: Mapping[str, int | str]) -> tuple[Part, ...]:
    """Texts and what stands between them, in turn."""
    parts: list[Part] = []
    start = 0
    for match in _DIGEST.finditer(text):
        gap = gaps.get(match.group())
        if gap is not None:
            parts += [text[start : match.start()], gap]
            start = match.end()
    return (*parts, text[start:])
