"""What a stage's result depends on beside its input files.

Versions of our own code count by the content of its source files, so that no constant
must be remembered when a translation is corrected.
"""

from __future__ import annotations

import functools
from importlib import metadata
from pathlib import Path

from mnnqnn_tasks.cache.keys import action_key
from mnnqnn_tasks.errors import ToolMissing
from mnnqnn_tasks.tasks import session

_PACKAGE = Path(__file__).resolve().parent.parent

#: Raise a stage's number when its files change form in a way that its code does not show.
STAGE_VERSION = dict.fromkeys(session.STAGES, 1)

#: The rooms whose code makes a stage's result.
ROOMS: dict[str, tuple[str, ...]] = {
    "model": ("mnn",),
    "io": ("mnn",),
    "ops": ("mnn", "partition", "translate", "qnn"),
    "validate": ("qnn",),
    "refused": (),
    "partition": ("mnn", "partition", "translate", "qnn"),
    "translate": ("mnn", "partition", "translate", "qnn"),
    "link": ("qnn",),
    "bundle": ("toolchain",),
}


@functools.cache
def code_version(room: str) -> str:
    """A digest of a room's source files."""
    files = sorted(p for p in (_PACKAGE / room).rglob("*") if p.suffix in {".py", ".json"})
    names = {str(p.relative_to(_PACKAGE)): session.current().digest(str(p)) for p in files}
    return action_key(room, names)[:16]


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
