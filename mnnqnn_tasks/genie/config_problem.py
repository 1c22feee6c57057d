"""What may be wrong with a ``genie_config.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Problem:
    """Something wrong with a config.

    Attributes:
        place: where in the file.
        what: what is wrong, one sentence.
        todo: what to do about it.
    """

    place: str
    what: str
    todo: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.severity}: {self.place}: {self.what}\n  to do: {self.todo}"


def join(place: str, name: str) -> str:
    """The place of a key of the object at ``place``."""
    return f"{place}.{name}" if place else name
