"""What a user's own compiler consists of, by content."""

from __future__ import annotations

import os

from mnnqnn_tasks.cache.keys import action_key
from mnnqnn_tasks.tasks import session


def digest_of(path: str) -> str | None:
    """Digest of a file, or of everything in a folder; ``None`` if some of it cannot be read."""
    here = session.current()
    if not os.path.isdir(path):
        return here.readable_digest(path)
    found = {}
    for parent, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            file = os.path.join(parent, name)
            digest = here.readable_digest(file)
            if digest is None:
                return None
            found[os.path.relpath(file, path)] = digest
    return action_key("folder", found)
