"""In which order the loader takes the splits of one variant."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mnnqnn_tasks.genie.rulebook import holds
from mnnqnn_tasks.genie.versions import Version

_SPLIT = re.compile(r".*_([0-9]+)_of_", re.DOTALL)
_INT_MAX = (1 << 31) - 1


def split_number(name: str) -> int | None:
    """The number before the last ``_of_`` of a name, as 2.50 and later read it; None for 0."""
    found = _SPLIT.match(name)
    if found is None or not name[found.end() :].find("_of_") < 0:
        return None
    digits = found[1].lstrip("0")
    number = int(digits) if digits and len(digits) <= 10 else 0
    return number if 0 < number <= _INT_MAX else None


def as_strings(names: Iterable[str]) -> tuple[str, ...]:
    """Byte by byte, as ``std::set<std::string>`` does: ``_10_`` comes before ``_2_``."""
    return tuple(sorted(names, key=lambda name: name.encode("utf-8", "surrogatepass")))


def by_number(names: Iterable[str]) -> tuple[str, ...]:
    """By split number; names without one come last; ties as strings."""
    ordered = as_strings(names)
    return tuple(sorted(ordered, key=lambda name: split_number(name) or _INT_MAX + 1))


def ordered(names: Iterable[str], version: Version) -> tuple[str, ...]:
    """Names of one variant in the order of their split indices."""
    return (as_strings if holds("order-strings", version) else by_number)(set(names))


_LABEL = re.compile(r"_([0-9]+|[T-Z][0-9])_of_([0-9]{1,9})(?![0-9])")


def split_label(name: str) -> str | None:
    """K of the last ``_K_of_T`` of a name: a number, or a letter and a digit after renumbering."""
    found = _LABEL.findall(name)
    return found[-1][0] if found and len(found[-1][0]) <= 9 else None


def split_total(name: str) -> int | None:
    """T of the last ``_K_of_T`` of a name."""
    found = _LABEL.findall(name)
    return int(found[-1][1]) if found else None


def rank(label: str) -> int:
    """The split number that a label stands for: ``T0`` is 10, ``U3`` is 23."""
    return int(label) if label.isdigit() else 10 * (ord(label[0]) - ord("S")) + int(label[1])


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names by the split number that they carry; as they are where one carries none."""
    given = tuple(names)
    labels = [split_label(name) for name in given]
    if None in labels:
        return given
    return tuple(sorted(given, key=lambda name: rank(split_label(name) or "0")))


def out_of_order(names: Iterable[str]) -> bool:
    """Whether names that all carry a split number are not in the order of these numbers."""
    given = tuple(names)
    return in_order(given) != given
