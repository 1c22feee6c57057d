"""Names of tensors and nodes: C identifiers, unique, the same on every run.

A name ends up in three places: in QNN's graph, as part of a C++ symbol and as the file
name of a ``.raw``.  So op names of any kind ("/layers.0/q_proj/Linear", Chinese, quotes)
are reduced to ``[A-Za-z0-9_]``.
"""

from __future__ import annotations

import hashlib
import re

_FOREIGN = re.compile(r"[^A-Za-z0-9_]")
#: ``t<index>`` is the name of a graph input or output, and of nothing else.
_BOUNDARY = re.compile(r"t[0-9]+(_|$)")
#: File names may have 255 bytes; symbols get prefixes and suffixes.
_LONGEST = 120


def boundary_name(index: int) -> str:
    """The name of a graph input or output: ``t<index of the tensor in llm.mnn>``."""
    return f"t{index}"


def sanitize(name: str) -> str:
    """``name`` as a C identifier that is no boundary name; long names keep a digest."""
    clean = _FOREIGN.sub("_", name) or "_"
    if clean[0].isdigit() or _BOUNDARY.match(clean):
        clean = "_" + clean
    if len(clean) > _LONGEST:
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        clean = f"{clean[: _LONGEST - 13]}_{digest}"
    return clean


class NamePool:
    """Gives out names, each once; a second use of a name gets ``_2``, ``_3``, ..."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def reserve(self, name: str) -> str:
        """Take exactly ``name``.

        Raises:
            ValueError: when it is taken.
        """
        if name in self._taken:
            raise ValueError(f"name {name} is used twice")
        self._taken.add(name)
        return name

    def take(self, wanted: str) -> str:
        """Take ``wanted``, already sanitized, or the first free name made from it."""
        name = wanted
        count = self._next.get(wanted, 2)
        while name in self._taken:
            name = f"{wanted}_{count}"
            count += 1
        self._next[wanted] = count
        self._taken.add(name)
        return name
