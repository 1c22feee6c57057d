"""The list of the files that a graph's source consists of: names and digests.

It stands for the files where later stages ask what changed, so whoever reads the files
compares them with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from mnnqnn_tasks.errors import StaleInputError
from mnnqnn_tasks.files import canonical_json, disk_errors
from mnnqnn_tasks.partition.write import write

#: SHA-256 by the name of the file.
Listing = Mapping[str, str]


def write_listing(path: Path, files: Mapping[str, tuple[str, int]]) -> bytes:
    """Write a list of digests and sizes by name; gives its text.

    Raises:
        DiskError: when it cannot be written.
    """
    value = {name: {"sha256": digest, "size": size} for name, (digest, size) in files.items()}
    text = (canonical_json(value, indent=1) + "\n").encode()
    write(path, text)
    return text


def read_listing(path: Path) -> Listing:
    """What `write_listing` wrote, or the raw files of a native translation's ``net.json``.

    Raises:
        DiskError: when it cannot be read.
    """
    with disk_errors(path):
        value = json.loads(path.read_text("utf-8"))
    if path.name.endswith("_net.json"):
        statics = (tensor for tensor in value["tensors"] if "blob" in tensor)
        return {f"{tensor['name']}.raw": tensor["blob"]["sha256"] for tensor in statics}
    return {name: entry["sha256"] for name, entry in value.items()}


def check_listed(files: Listing, path: Path, digest: str) -> None:
    """Refuse a file that is not the one of its name in the list, if that has the name.

    Raises:
        StaleInputError: naming the file.
    """
    if files.get(path.name, digest) != digest:
        raise StaleInputError(
            "the file changed after it was made",
            where=str(path),
            todo="run again: what made it will make it anew",
        )
