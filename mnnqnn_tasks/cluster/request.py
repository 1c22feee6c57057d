"""What the two ends say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mnnqnn_tasks.cache.entry import Entry
from mnnqnn_tasks.cluster.parcel import Parcel
from mnnqnn_tasks.errors import MnnqnnError
from mnnqnn_tasks.toolchain.work import Work


@dataclass(frozen=True)
class Request:
    """A stage to do.

    Attributes:
        stage, arguments: see `mnnqnn_tasks.toolchain.native`; JSON values.
        identity: of the end that asks, see `identity`.
        probes: files that are there if the file system is shared, with their content;
            ``None`` stands for any.
        parcel: how a worker can do it that does not see them; ``None`` if none can.
    """

    stage: str
    arguments: Mapping[str, Any]
    identity: Mapping[str, str]
    probes: Mapping[str, str | None]
    parcel: Parcel | None = None


@dataclass(frozen=True)
class Done:
    """The stage is done; ``sizes`` of the files that it made, for slow file systems."""

    work: Work
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Failed:
    """The stage failed as a user is meant to read it."""

    error: MnnqnnError


@dataclass(frozen=True)
class NoMemory:
    """Python had no memory for it."""


@dataclass(frozen=True)
class Unforeseen:
    """Another exception: ``text`` with its type, and where it comes from."""

    text: str
    traceback: str


@dataclass(frozen=True)
class Differs:
    """The other end is another one."""

    identity: Mapping[str, str]


@dataclass(frozen=True)
class Unshared:
    """The other end does not see ``path`` as we do."""

    path: str


@dataclass(frozen=True)
class Kept:
    """The stage of a parcel is done, its result in the store; see `Work` for the numbers."""

    entry: Entry
    seconds: float
    peak: int


@dataclass(frozen=True)
class Lacking:
    """The store of a parcel does not have contents with these digests, or has others."""

    digests: tuple[str, ...]


@dataclass(frozen=True)
class NoStore:
    """The other end cannot use the store of a parcel, or has no room; ``why`` in a few words."""

    why: str


Answer = Done | Kept | Failed | NoMemory | Unforeseen | Differs | Unshared | Lacking | NoStore
