"""What a user's own compiler consists of, by content."""

from __future__ import annotations

import os

from mnnqnn_tasks.cache.keys import action_key
from mnnqnn_tasks.tasks import session
from mnnqnn_tasks.tasks.layout import files_under


def digest_of(path: str) -> str | None:
    """Digest of a file, or of everything in a folder; ``None`` if some of it cannot be read."""
    here = session.current()
    if not os.path.isdir(path):
        return here.readable_digest(path)
    files = files_under([path])
    found = {os.path.relpath(file, path): here.readable_digest(file) for file in files}
    return None if None in found.values() else action_key("folder", found)
