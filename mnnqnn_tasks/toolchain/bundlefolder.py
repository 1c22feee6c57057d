"""How a bundle's folder is told from any other."""

from __future__ import annotations

import os
from pathlib import Path

from mnnqnn_tasks.errors import BundleError

CONFIG = "config_qnn.json"
MANIFEST = "bundle.json"


def refuse_foreign_folder(out: Path) -> None:
    """Replacing a folder deletes what is in it: only ever do that to a bundle.

    Raises:
        BundleError: ``out`` is something else.
    """
    if not os.path.lexists(out):
        return
    if out.is_dir() and (not any(out.iterdir()) or (out / CONFIG).is_file()):
        return
    if out.is_dir() and (out / MANIFEST).is_file():
        return
    raise BundleError(
        "the bundle would replace something that is no bundle",
        where=str(out),
        why=f"it has no {CONFIG}" if out.is_dir() else "it is not a folder",
        todo="move it away, or choose another dist_dir or name",
    )
