"""What ``plan.json`` says about the graphs that there are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from mnnqnn_tasks.errors import PartitionError
from mnnqnn_tasks.tasks.layout import Layout


@dataclass(frozen=True)
class Plan:
    """The graphs of a model.

    Attributes:
        binaries: by binary name, in order, its graphs in order of the shapes.
        sizes: bytes of weights that a graph reads.
    """

    binaries: dict[str, tuple[str, ...]]
    sizes: dict[str, int]

    def graphs(self) -> Iterator[str]:
        """Every graph."""
        return (graph for graphs in self.binaries.values() for graph in graphs)

    def by_size(self) -> list[str]:
        """Every graph, the largest first: a long task that starts last is waited for."""
        return sorted(self.graphs(), key=lambda g: -self.sizes.get(g, 0))

    def binaries_by_size(self) -> list[str]:
        """Every binary, the largest first."""
        return sorted(
            self.binaries, key=lambda b: -max(self.sizes.get(g, 0) for g in self.binaries[b])
        )


def read_plan(layout: Layout) -> Plan | None:
    """The plan of the last partition, ``None`` if there is none.

    Raises:
        PartitionError: when the file is damaged.
    """
    path = layout.plan_json
    try:
        with open(path, encoding="utf-8") as stream:
            raw = json.load(stream)
        pieces = [piece for piece in raw["pieces"] if piece["place"] == "npu"]
        binaries = {
            PurePosixPath(piece["binary"]).stem: tuple(g["graph"] for g in piece["graphs"])
            for piece in pieces
        }
        sizes = {
            graph["graph"]: sum(weight["size"] for weight in piece["weights"])
            for piece in pieces
            for graph in piece["graphs"]
        }
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PartitionError(
            "the plan is damaged",
            where=path,
            why=f"{type(error).__name__}: {error}",
            todo=f"delete it and run again: {os.path.basename(path)} is made anew",
        ) from error
    return Plan(binaries, sizes)
