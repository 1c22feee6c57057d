"""Other split numbers in compiled binaries, for people who cannot compile again.

Loaders up to QAIRT 2.49 order splits as strings: ``_10_of_11`` comes before ``_2_of_11``.  A
number from 10 on becomes a letter and a digit, which sort behind all digits and keep the length:
``_T0_``, ``_T1_``, ... ``_U0_``.  Loaders since 2.50 put names without a number behind the
others, as strings, so the order is right there too.

A context binary holds the name of a graph twice: in the metadata and in what the backend reads.
Both are FlatBuffers strings (a length of 32 bits, the bytes, a zero); since 2.51 the backend's part
has a directory with it as well.  If one place is changed alone the context loads and has no graph
of that name; a changed length moves everything behind it.  Type, AR
and CL are refused: what a graph takes is in its tensors, and no name mends that.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from mnnqnn_tasks.errors import GenieError
from mnnqnn_tasks.files import TEMP_PREFIX, disk_errors
from mnnqnn_tasks.genie.graphs import ContextFile, read_binary
from mnnqnn_tasks.genie.loading import retrieve
from mnnqnn_tasks.genie.order import in_order, ordered, out_of_order, rank, split_label
from mnnqnn_tasks.genie.versions import VERSIONS

_FIRST_LETTER = "T"  # as in the first report of this trick; any letter sorts behind digits
_MOST = 10 * (ord("Z") - ord(_FIRST_LETTER) + 1) + 9
_CHUNK = 1 << 20
_COMPILE = "compile again with the names that you want"


@dataclass(frozen=True)
class Renumbered:
    """A copy with other split numbers.

    Attributes:
        source, target: the file and its copy.
        names: old name to new, in the order of the binary; empty where none changed.
        loaded: whether the host emulator has loaded the copy and found every graph in it.
        reason: why it was not loaded.
    """

    source: str
    target: str
    names: Mapping[str, str]
    loaded: bool
    reason: str = ""


def new_label(label: str) -> str:
    """A split label that sorts as a string where its number belongs."""
    number = rank(label)
    if number < 10 or not label.isdigit():
        return label
    return chr(ord(_FIRST_LETTER) + number // 10 - 1) + str(number % 10)


def with_label(name: str, label: str) -> str:
    """``name`` with another K in its last ``_K_of_T``."""
    old = split_label(name) or ""
    at = name.rindex(f"_{old}_of_") + 1
    return name[:at] + label + name[at + len(old) :]


def plan(names: Iterable[str]) -> dict[str, str]:
    """Old name to new of every graph that gets another number.

    Args:
        names: of all graphs of the model.

    Raises:
        GenieError: there is nothing to do, or it cannot be done by equal lengths.
    """
    given = tuple(dict.fromkeys(names))
    changed: dict[str, str] = {}
    for group in _variants(given):
        if all(ordered(group, version) == in_order(group) for version in VERSIONS):
            continue
        changed |= _plan_group(group)
    if not changed:
        raise GenieError(
            "the split numbers are in order as they are",
            why="every known loader takes these names in the order of their numbers",
        )
    check(changed, given)
    return changed


def _variants(names: Sequence[str]) -> Iterator[list[str]]:
    """Names that differ in their split number only."""
    groups: dict[str, list[str]] = {}
    for name in names:
        if split_label(name) is not None:
            groups.setdefault(with_label(name, "?"), []).append(name)
    yield from groups.values()


def _plan_group(group: list[str]) -> dict[str, str]:
    labels = {name: split_label(name) or "" for name in group}
    if max(map(rank, labels.values())) > _MOST:
        raise GenieError(
            f"more than {_MOST} splits",
            why="two characters sort no more of them behind the digits",
            todo=_COMPILE,
        )
    return {
        name: with_label(name, new_label(label))
        for name, label in labels.items()
        if new_label(label) != label
    }


def check(changed: Mapping[str, str], names: Iterable[str]) -> None:
    """Refuse everything but new split numbers of the same length.

    Args:
        changed: old name to new.
        names: of all graphs of the model.

    Raises:
        GenieError: another part of a name would change, its length, two graphs would have one
            name, or the new order is not that of the numbers.
    """
    given = tuple(dict.fromkeys(names))
    for old, new in changed.items():
        _check_name(old, new, given)
    result = [changed.get(name, name) for name in given]
    if len(set(result)) != len(result):
        twice = next(name for name in result if result.count(name) > 1)
        raise GenieError(f"two graphs would be called {twice}", todo="give other numbers")
    for group in _variants(result):
        wrong = [str(version) for version in VERSIONS if out_of_order(ordered(group, version))]
        if wrong:
            raise GenieError(
                "the new numbers would not be in order",
                where=", ".join(in_order(group)),
                why=f"QAIRT {', '.join(wrong)} takes them in the order "
                f"{', '.join(split_label(n) or n for n in ordered(group, VERSIONS[0]))}",
                todo=_COMPILE,
            )


def _check_name(old: str, new: str, names: Sequence[str]) -> None:
    if old not in names:
        raise GenieError(f"there is no graph {old}", why=f"there are {', '.join(names)}")
    before, after = split_label(old), split_label(new)
    if before is None or after is None or with_label(old, "?") != with_label(new, "?"):
        raise GenieError(
            f"{old} cannot become {new}",
            why="only the K of _K_of_T can be changed in a compiled binary: type, AR and CL are "
            "in the graph's tensors, whatever its name says",
            todo=_COMPILE,
        )
    if len(old.encode()) != len(new.encode()):
        raise GenieError(
            f"{old} cannot become {new}",
            why="the new name has another length, which moves everything behind it",
            todo=f"use as many characters: {with_label(old, new_label(before))}",
        )


def renumber(
    sources: Sequence[Path],
    folder: Path,
    renames: Mapping[str, str] | None = None,
    load: bool = True,
) -> list[Renumbered]:
    """Copy every binary into ``folder`` with new split numbers; all of them or none.

    Args:
        sources: the context binaries of one model.
        renames: old name to new; `plan` by default.
        load: load every copy on the host emulator, which takes as much memory as the file.

    Raises:
        GenieError: something is refused, or a copy is not what it should be.
        DiskError, ToolMissing.
    """
    files = [read_binary(path) for path in sources]
    names = [graph.name for file in files for graph in file.graphs]
    changed = dict(renames) if renames else plan(names)
    check(changed, names)
    _check_targets(sources, folder)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=TEMP_PREFIX, dir=folder) as temp:
            made = [
                _copy(path, file, Path(temp) / path.name, changed, load)
                for path, file in zip(sources, files, strict=True)
            ]
            for path in sources:
                (Path(temp) / path.name).replace(folder / path.name)
    return [replace(one, target=str(folder / Path(one.source).name)) for one in made]


def _check_targets(sources: Sequence[Path], folder: Path) -> None:
    seen: dict[str, Path] = {}
    for path in sources:
        if path.name in seen:
            raise GenieError(
                f"{seen[path.name]} and {path} would become one file", todo="rename one of them"
            )
        seen[path.name] = path
        if os.path.lexists(folder / path.name):
            raise GenieError(
                "there is such a file already",
                where=str(folder / path.name),
                why="binaries are changed on a copy, and nothing is replaced",
                todo="name an empty folder",
            )


def _copy(
    path: Path, file: ContextFile, target: Path, changed: Mapping[str, str], load: bool
) -> Renumbered:
    """One copy, changed and read back."""
    mine = {graph.name: changed[graph.name] for graph in file.graphs if graph.name in changed}
    with path.open("rb") as source, target.open("wb") as stream:
        while chunk := source.read(_CHUNK):
            stream.write(chunk)
        _patch(source, stream, mine, path)
    expected = tuple(
        replace(graph, name=mine.get(graph.name, graph.name), file=str(target))
        for graph in file.graphs
    )
    found = read_binary(target)
    if found != replace(file, file=str(target), graphs=expected):
        raise GenieError(
            "the changed copy reads back as something else",
            where=str(path),
            why="libQnnSystem finds other graphs in it than were asked for",
            todo=_COMPILE,
        )
    reason = _load(found, file) if load else "not asked for"
    return Renumbered(str(path), str(target), mine, not reason, reason)


def _patch(source: BinaryIO, stream: BinaryIO, names: Mapping[str, str], path: Path) -> None:
    """Write the new names over the old ones, wherever these stand."""
    with mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        for old, new in names.items():
            places = list(_places(memory, old.encode()))
            strings = sum(is_string for _, is_string in places)
            if strings < 2:
                raise GenieError(
                    f"the name {old} cannot be changed",
                    where=str(path),
                    why=f"it stands {strings} times in the file where two are expected: "
                    "this kind of binary is not known",
                    todo=_COMPILE,
                )
            for at, _ in places:
                stream.seek(at)
                stream.write(new.encode())


def _places(memory: mmap.mmap, name: bytes) -> Iterator[tuple[int, bool]]:
    """Where a name stands, and whether as a FlatBuffers string: a length, the name, a zero.

    The other places are in the directory of newer binaries: ``PICKLE/275/NAME``.
    """
    length = struct.pack("<I", len(name))
    at = memory.find(name)
    while at >= 0:
        end = at + len(name)
        if memory[end : end + 1] == b"\0":
            if memory[max(at - 4, 0) : at] == length:
                yield at, True
            elif memory[max(at - 1, 0) : at] == b"/":
                yield at, False
        at = memory.find(name, end)


def _load(target: ContextFile, source: ContextFile) -> str:
    """Load a copy on the host; empty if it is sound, else why that could not be tried.

    Raises:
        GenieError: the original loads, and the copy does not.
    """
    answer = retrieve(target)
    if answer.sound:
        return ""
    why = answer.why or f"no graph {', '.join(answer.missing)}"
    if not answer.untried and retrieve(source).sound:
        raise GenieError(
            "the changed copy does not load", where=source.file, why=why, todo=_COMPILE
        )
    return why
