"""The SoC table: ids, model names and Hexagon architectures.

``socs.json`` lists what libQnnHtp accepts; the marketing names are the four that MNN's
NPU documentation gives.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

_MARKETING = {"8 Gen 1": 36, "8 Gen 2": 43, "8 Gen 3": 57, "8 Elite": 69}


@dataclass(frozen=True)
class Soc:
    """A SoC of the table; ``model`` is ``None`` where the public QNN headers name none."""

    soc_id: int
    model: str | None
    dsp_arch: str


@dataclass(frozen=True)
class SocTable:
    """The table, by id and by folded name."""

    by_id: dict[int, Soc]
    by_name: dict[str, Soc]

    def find(self, name: str) -> Soc | None:
        """The SoC of a model or marketing name, in any letter case, or ``None``."""
        return self.by_name.get(_fold(name))

    def arch_of(self, soc_id: int) -> str | None:
        """The Hexagon architecture of a SoC id, or ``None``."""
        found = self.by_id.get(soc_id)
        return found.dsp_arch if found else None

    def names(self) -> list[str]:
        """Model names in the order of their ids, then marketing names."""
        return [soc.model for soc in self.by_id.values() if soc.model is not None] + [*_MARKETING]


def _fold(name: str) -> str:
    folded = re.sub(r"[\s_-]+", "", name.casefold())
    return folded.removeprefix("qualcomm").removeprefix("snapdragon")


@functools.cache
def table() -> SocTable:
    """The table that comes with the package."""
    raw = json.loads((Path(__file__).parent / "socs.json").read_text("utf-8"))
    by_id = {
        row["soc_id"]: Soc(row["soc_id"], row["soc_model"], row["dsp_arch"]) for row in raw["socs"]
    }
    by_name = {_fold(soc.model): soc for soc in by_id.values() if soc.model is not None}
    by_name |= {_fold(name): by_id[soc_id] for name, soc_id in _MARKETING.items()}
    return SocTable(by_id, by_name)
