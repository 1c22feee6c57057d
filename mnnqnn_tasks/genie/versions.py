"""Versions of Genie's loader, and which rules hold in which.

The version is QAIRT's: libGenie and the QNN libraries of one release belong together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mnnqnn_tasks.errors import GenieError


@dataclass(frozen=True, order=True)
class Version:
    """A QAIRT release, such as 2.47; patch levels never changed a rule."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


@dataclass(frozen=True)
class Known:
    """A release whose rules are known.

    Attributes:
        version: of QAIRT.
        genie: what ``Genie_getApi*Version`` of its libGenie says.
        source: where the rules were seen.
    """

    version: Version
    genie: str
    source: str


#: 2.42 as the engine's published sample source of that release has it, quoted by a user who ran
#: it on a board; the others by asking libGenie of the wheel.
KNOWN: tuple[Known, ...] = (
    Known(Version(2, 42), "1.14", "sample source of QAIRT 2.42, and a report from an IQ-9075"),
    Known(Version(2, 47), "1.18", "libGenie of onnxruntime-qnn 2.3.0"),
    Known(Version(2, 48), "1.19", "libGenie of onnxruntime-qnn 2.4.0"),
    Known(Version(2, 49), "1.20", "libGenie of onnxruntime-qnn 2.5.0"),
    Known(Version(2, 50), "1.20", "libGenie of onnxruntime-qnn 2.6.0"),
    Known(Version(2, 51), "1.21", "libGenie of onnxruntime-qnn 2.7.0"),
)
VERSIONS: tuple[Version, ...] = tuple(known.version for known in KNOWN)
OLDEST, NEWEST = VERSIONS[0], VERSIONS[-1]

_VERSION = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?:\.[0-9A-Za-z.]*)?", re.ASCII)


def parse_version(text: str) -> Version:
    """Read ``2.47``, ``2.47.0.260601``, ``v2.47.0``, or libGenie's own ``1.14.0``.

    Raises:
        GenieError: no version, or one of libGenie's that more than one release has, or none.
    """
    found = _VERSION.fullmatch(text.strip())
    if found is None:
        raise GenieError(f"{text!r} is no version of QAIRT", todo=f"name one, such as {NEWEST}")
    version = Version(int(found[1]), int(found[2]))
    if version.major != 1:
        return version
    releases = [known.version for known in KNOWN if known.genie == f"1.{version.minor}"]
    if len(releases) != 1:
        why = (
            f"releases {' and '.join(map(str, releases))} have it"
            if releases
            else "libGenie numbers itself in another way than QAIRT, and this one is not known"
        )
        raise GenieError(
            f"libGenie {text} names no single release of QAIRT",
            why=why,
            todo="name the version of QAIRT instead, such as 2.47",
        )
    return releases[0]


def nearest(version: Version) -> Version:
    """The known release whose rules ``version`` is taken to have: the last one before it."""
    return max((known for known in VERSIONS if known <= version), default=OLDEST)
