"""What a stage's result depends on beside its input files.

Versions of our own code count by the content of its source files, so that no constant
must be remembered when a translation is corrected.
"""

from __future__ import annotations

import functools
import os
from importlib import metadata

from mnnqnn_tasks.cache.keys import action_key
from mnnqnn_tasks.errors import ToolMissing
from mnnqnn_tasks.tasks import session

_PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

#: Raise a stage's number when its files change form in a way that its code does not show.
STAGE_VERSION = dict.fromkeys(session.STAGES, 1) | {"model": 2}

#: The rooms whose code makes a stage's result.
ROOMS: dict[str, tuple[str, ...]] = {
    "model": ("mnn",),
    "io": ("mnn",),
    "cut": ("mnn", "partition", "translate", "qnn", "toolchain"),
    "validate": ("qnn", "toolchain"),
    "refused": (),
    "partition": ("mnn", "partition", "translate", "toolchain"),
    "translate": ("mnn", "partition", "translate", "qnn"),
    "link": ("qnn",),
    "bundle": ("toolchain",),
    "external.io": ("mnn", "toolchain/external"),
    "external.partition": ("mnn", "partition", "toolchain/external", "toolchain/cppnet"),
    "external.translate": ("qnn", "toolchain/cppnet"),
    "external.compile": ("toolchain/external",),
    "external.link": ("qnn", "toolchain/external"),
}


@functools.cache
def code_version(room: str) -> str:
    """A digest of a room's source files."""
    here = session.current()
    found = {}
    for parent, folders, files in os.walk(os.path.join(_PACKAGE, room)):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for name in sorted(files):
            if name.endswith((".py", ".json")):
                path = os.path.join(parent, name)
                found[path[len(_PACKAGE) :]] = here.digest(path)
    return action_key(room, found)[:16]


def stage_key(stage: str, **options: object) -> dict[str, object]:
    """The key of a task of ``stage``: flat, JSON values."""
    key: dict[str, object] = {f"code of {room}": code_version(room) for room in ROOMS[stage]}
    key["stage version"] = STAGE_VERSION.get(stage, 1)
    return key | options


@functools.cache
def mnn_version() -> str:
    """Version of the MNN wheel.

    Raises:
        ToolMissing: when it is not installed.
    """
    try:
        return metadata.version("MNN")
    except metadata.PackageNotFoundError:
        raise ToolMissing(
            "the wheel MNN is not installed",
            why="it runs the model on the CPU to make the IO samples",
            todo="python -m pip install 'MNN>=3.6.1'",
        ) from None


@functools.cache
def qnn_identity() -> str:
    """Which QNN libraries link a binary.

    Raises:
        ToolMissing: when there are none.
    """
    from mnnqnn_tasks.qnn import library

    return library.identity()
