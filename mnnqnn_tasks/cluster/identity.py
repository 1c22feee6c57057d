"""What must be the same at both ends for results to be the same: our code and the libraries."""

from __future__ import annotations

import functools
import os
from importlib import metadata
from pathlib import Path

from mnnqnn_tasks.errors import MnnqnnError
from mnnqnn_tasks.files import canonical_json, sha256_bytes, sha256_file

_PACKAGE = Path(__file__).resolve().parents[1]

#: What the identity says of something that is not there.
MISSING = "not installed"


@functools.cache
def identity() -> dict[str, str]:
    """Name -> version of what this process would do a stage with; computed once."""
    return {"mnnqnn": _code(), "MNN": _mnn(), "QNN library": _qnn()}


def differences(here: dict[str, str], there: dict[str, str]) -> list[str]:
    """What differs, a few words each: name, version here, version there."""
    return [
        f"{name} is {here.get(name, MISSING)} here and {there.get(name, MISSING)} there"
        for name in sorted({*here, *there})
        if here.get(name) != there.get(name)
    ]


def _code() -> str:
    """The version of the package, and the content of its sources."""
    digests = {}
    for parent, folders, names in os.walk(_PACKAGE):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in names:
            if name.endswith((".py", ".json")):
                path = Path(parent, name)
                digests[path.relative_to(_PACKAGE).as_posix()] = sha256_file(path)
    return f"{_version('mnnqnn')} ({sha256_bytes(canonical_json(digests).encode())[:12]})"


def _mnn() -> str:
    return _version("MNN")


def _qnn() -> str:
    from mnnqnn_tasks.qnn import library

    try:
        return library.identity()
    except MnnqnnError:
        return MISSING


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return MISSING
