"""Conditions for freshness that only some stages have.

Each function gives a check: from the values that the task recorded to a reason to run
again, or ``None``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mnnqnn_tasks.tasks import session
from mnnqnn_tasks.tasks.fresh import Check, difference
from mnnqnn_tasks.tasks.layout import files_under
from mnnqnn_tasks.tasks.session import GenieJob, Job


def model_unchanged(job: Job, files: list[str]) -> Check:
    """The model files have the digests that the task itself saw.

    doit records a file's state after the action.  A file rewritten in between would be
    taken for the one that was read.
    """
    folder = str(job.model.path)

    def check(values: Mapping[str, Any]) -> str | None:
        seen = values.get("files", {})
        for path in files:
            name = os.path.relpath(path, folder)
            if session.current().readable_digest(path) != seen.get(name):
                return f"{name} changed"
        return None if files else "the model folder is incomplete"

    return check


def blobs_present(job: Job) -> Check:
    """The shared bytes behind the graph are all there and untouched."""

    def check(values: Mapping[str, Any]) -> str | None:
        for digest, was in values.get("blobs", {}).items():
            differs = difference(
                os.path.join(job.layout.blobs, digest), [*was[:2], digest] if was else None
            )
            if differs:
                return f"blob {digest[:12]} {differs}"
        return None

    return check


def nothing_extra(job: Job | GenieJob, folder: str) -> Check:
    """The bundle holds exactly the files that were put there."""

    def check(values: Mapping[str, Any]) -> str | None:
        made = {job.path_names.expand(name) for name in values.get("made", {})}
        extra = files_under([folder]) - made
        return f"{os.path.relpath(min(extra), folder)} does not belong there" if extra else None

    return check
