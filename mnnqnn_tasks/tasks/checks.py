"""Conditions for freshness that only some stages have.

Each is called with the values that the task recorded and gives a reason to run again, or
``None``.  Each also says which files it looks at, and what it wants of them, so that
`mnnqnn_tasks.tasks.seal` can ask the same of many tasks at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mnnqnn_tasks.tasks import session
from mnnqnn_tasks.tasks.fresh import difference
from mnnqnn_tasks.tasks.layout import files_under
from mnnqnn_tasks.tasks.session import GenieJob, Job

#: A path, with ``[size, time, sha256]`` that the file there should have; ``None``: none will do.
Wanted = tuple[str, list[Any] | None]


@dataclass(frozen=True)
class ModelUnchanged:
    """The model files have the digests that the task itself saw.

    doit records a file's state after the action.  A file rewritten in between would be
    taken for the one that was read.
    """

    job: Job
    paths: list[str]

    def __call__(self, values: Mapping[str, Any]) -> str | None:
        """The reason to run again."""
        for path, was in self.files(values):
            if was is None or session.current().readable_digest(path) != was[2]:
                return f"{self._name(path)} changed"
        return None if self.paths else "the model folder is incomplete"

    def files(self, values: Mapping[str, Any]) -> Iterator[Wanted]:
        """What it wants of which files: their content, whatever their size and time."""
        seen = values.get("files", {})
        for path in self.paths:
            digest = seen.get(self._name(path))
            yield path, None if digest is None else [None, None, digest]

    def folders(self) -> Iterator[str]:
        """Folders that may hold nothing but what the task made."""
        yield from ()

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self.job.model.path)


@dataclass(frozen=True)
class BlobsPresent:
    """The shared bytes behind the graph are all there and untouched."""

    job: Job

    def __call__(self, values: Mapping[str, Any]) -> str | None:
        """The reason to run again."""
        for path, was in self.files(values):
            differs = difference(path, was)
            if differs:
                return f"blob {os.path.basename(path)[:12]} {differs}"
        return None

    def files(self, values: Mapping[str, Any]) -> Iterator[Wanted]:
        """What it wants of which files."""
        for digest, was in values.get("blobs", {}).items():
            state = [*was[:2], digest] if was else None
            yield os.path.join(self.job.layout.blobs, digest), state

    def folders(self) -> Iterator[str]:
        """Folders that may hold nothing but what the task made."""
        yield from ()


@dataclass(frozen=True)
class NothingExtra:
    """The bundle holds exactly the files that were put there."""

    job: Job | GenieJob
    folder: str

    def __call__(self, values: Mapping[str, Any]) -> str | None:
        """The reason to run again."""
        made = {self.job.path_names.expand(name) for name in values.get("made", {})}
        extra = files_under([self.folder]) - made
        return (
            f"{os.path.relpath(min(extra), self.folder)} does not belong there" if extra else None
        )

    def files(self, values: Mapping[str, Any]) -> Iterator[Wanted]:
        """What it wants of which files: that those made are there says `Fresh` itself."""
        yield from ()

    def folders(self) -> Iterator[str]:
        """Folders that may hold nothing but what the task made."""
        yield self.folder
