"""What may be wrong with a ``genie_config.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mnnqnn_tasks.genie.versions import Version


@dataclass(frozen=True)
class Problem:
    """Something wrong with a config.

    Attributes:
        place: where in the file.
        what: what is wrong, one sentence.
        todo: what to do about it.
        since: first release of QAIRT that minds, None for all known ones.
        before: first release that does not mind any more, None for none.
    """

    place: str
    what: str
    todo: str
    severity: Literal["error", "warning"] = "error"
    since: Version | None = None
    before: Version | None = None

    def holds(self, version: Version) -> bool:
        """Whether a release minds."""
        late = self.since is not None and version < self.since
        return not late and (self.before is None or version < self.before)

    def __str__(self) -> str:
        return f"{self.severity}: {self.place}: {self.what}\n  to do: {self.todo}"


def join(place: str, name: str) -> str:
    """The place of a key of the object at ``place``."""
    return f"{place}.{name}" if place else name
