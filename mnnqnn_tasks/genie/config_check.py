"""Checking ``genie_config.json``: its keys, its files, and that it fits the graphs.

A problem is an *error* where libGenie refuses the config, or where the answer is garbage, and a
*warning* where it only may be.  Places are those of the file, ``dialog.context.size``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mnnqnn_tasks.errors import GenieError
from mnnqnn_tasks.genie.config_fit import fit
from mnnqnn_tasks.genie.config_keys import BLOCKS, LISTED
from mnnqnn_tasks.genie.config_problem import Problem, join
from mnnqnn_tasks.genie.config_read import (
    BundleConfig,
    Raw,
    blocks,
    device_of,
    file_names,
    soc_of,
)
from mnnqnn_tasks.genie.graphs import ContextFile, is_path, load_json

_OLDER = "remove it, or have no older release on the board"
_HTP = "dialog.engine.backend.QnnHtp"
_BINARY = "dialog.engine.model.binary"

#: Hexagon architecture of a SoC id, None for one that the table does not have.
ArchOf = Callable[[int], str | None]


def check(
    config: BundleConfig, files: Sequence[ContextFile] = (), arch_of: ArchOf | None = None
) -> list[Problem]:
    """Everything that is wrong with a config, but for what decides the loading of graphs.

    That, context size and chip included, is for `mnnqnn_tasks.genie.lint`.

    Args:
        files: what the context binaries hold; without them the config is not compared with
            graphs.
        arch_of: the SoC table.
    """
    raw, folder = config.raw, config.path("")
    return [
        *keys(raw),
        *paths(raw, folder),
        *extensions(raw, folder, arch_of),
        *fit(config, files),
    ]


def keys(config: Raw) -> Iterator[Problem]:
    """Unknown keys, missing ones, and values of a wrong type."""
    for place, table in BLOCKS.items():
        for at, block in blocks(config, place):
            for name in block:
                if name not in table:
                    yield Problem(
                        join(at, name),
                        "libGenie does not know this key and refuses the config",
                        _nearest(name, list(table)),
                    )
            for name, key in table.items():
                if name not in block:
                    if key.needed:
                        todo = f"add it: {_expected(key.kind, key.choices)}"
                        yield Problem(join(at, name), "it is missing", todo)
                    continue
                if not key.fits(block[name]) or (key.choices and block[name] not in key.choices):
                    what = f"{_short(block[name])} does not fit"
                    todo = f"write {_expected(key.kind, key.choices)}"
                    since = key.refused_since(block[name])
                    yield Problem(join(at, name), what, todo, since=since)
                if key.since is not None:
                    what = f"libGenie knows this key since QAIRT {key.since}"
                    yield Problem(join(at, name), what, _OLDER, before=key.since)
    yield from _together(config)


def _together(config: Raw) -> Iterator[Problem]:
    """Keys that exclude or need each other."""
    for at, block in blocks(config, _BINARY):
        both = [name for name in ("ctx-bins", "fcb") if name in block]
        if len(both) != 1:
            what = (
                "ctx-bins and fcb are both there" if both else "neither ctx-bins nor fcb is there"
            )
            yield Problem(at, what, "list the context binaries under ctx-bins")
    for at, block in blocks(config, "dialog.engine.backend"):
        if isinstance(block.get("extensions"), list):
            what = f"libGenie takes a list since QAIRT {LISTED}"
            yield Problem(join(at, "extensions"), what, "write one file as a text", before=LISTED)
        kind = block.get("type")
        if kind == "QnnHtp" and "QnnHtp" not in block:
            yield Problem(join(at, "QnnHtp"), "it is missing", "add the block that type names")
    for at, block in blocks(config, _HTP):
        lazy = block.get("graph-switching-lora-policy") == "lazy"
        switching = block.get("enable-graph-switching") is True
        if ("graph-retention-order" in block or lazy) and not switching:
            what = "graph-retention-order and the lazy policy need it"
            yield Problem(join(at, "enable-graph-switching"), what, "set it to true")
    for at, block in blocks(config, "dialog.engine.model"):
        if block.get("type") == "binary" and "binary" not in block:
            yield Problem(join(at, "binary"), "it is missing", "add the block that type names")
        if "positional-encoding" in block:
            for place, htp in blocks(config, _HTP):
                for name in ("pos-id-dim", "rope-theta"):
                    if name in htp:
                        what = "libGenie refuses it beside model.positional-encoding"
                        yield Problem(join(place, name), what, "remove one of the two")


def _expected(kind: str, choices: Sequence[str]) -> str:
    return " or ".join(choices) if choices else kind


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."


def _nearest(name: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else "remove it"


def paths(config: Raw, folder: Path) -> Iterator[Problem]:
    """Files that are missing, or lie outside the bundle: libGenie takes those."""
    for at, block in blocks(config, "dialog.tokenizer"):
        yield from _path(join(at, "path"), block.get("path"), folder)
    for at, block in blocks(config, "dialog.engine.backend"):
        named = block.get("extensions")
        for name in named if isinstance(named, list) else [named]:
            yield from _path(join(at, "extensions"), name, folder)
    for at, block in blocks(config, _BINARY):
        listed = block.get("ctx-bins", block.get("fcb"))
        if not isinstance(listed, list):
            continue
        if not listed:
            yield Problem(join(at, "ctx-bins"), "it is empty", "list the context binaries")
        for index, name in enumerate(listed):
            place = f"{join(at, 'ctx-bins')}[{index}]"
            yield from _path(place, name, folder)
            if name in listed[:index]:
                yield Problem(place, f"{_short(name)} is there twice", "remove one")


def _path(place: str, name: object, folder: Path) -> Iterator[Problem]:
    """One file; values of a wrong type are told elsewhere."""
    if not isinstance(name, str):
        return
    trimmed = name.strip()  # as libGenie does
    if not trimmed or not is_path(trimmed):
        yield Problem(place, f"{_short(name)} names no file", "name a file of the bundle")
        return
    root = os.path.realpath(folder)
    real = os.path.realpath(os.path.join(root, trimmed))
    if os.path.isabs(trimmed) or os.path.commonpath((root, real)) != root:
        yield Problem(
            place,
            f"{_short(name)} lies outside the bundle",
            "put it beside the config and name it relative to that: a bundle is copied as a whole",
            "warning",  # a path of the board, perhaps, which nobody can look at here
        )
    elif not os.path.isfile(real):
        yield Problem(place, f"there is no file {_short(name)}", "add it, or correct the name")


def extensions(config: Raw, folder: Path, arch_of: ArchOf | None) -> Iterator[Problem]:
    """What is wrong with the backend extensions files."""
    for at, block in blocks(config, "dialog.engine.backend"):
        place = join(at, "extensions")
        if block.get("extensions") in (None, []) and block.get("type") == "QnnHtp":
            todo = "name a file with the chip's soc_model and dsp_arch"
            what = "there is no backend extensions file: the chip is guessed"
            yield Problem(place, what, todo, "warning")
        for name in [*file_names(block, "extensions")][:1]:
            if not os.path.isfile(folder / name):
                continue  # which `paths` tells
            try:
                data = load_json(folder / name, "a backend extensions file", "write it again")
            except GenieError as error:
                yield Problem(place, str(error), "correct the file")
            else:
                yield from _device(device_of(data), f"{place} ({name})", arch_of)


def _device(device: Raw | None, place: str, arch_of: ArchOf | None) -> Iterator[Problem]:
    if device is None:
        yield Problem(place, "it has no devices", "add one with soc_model and dsp_arch")
        return
    soc, arch = soc_of(device), device.get("dsp_arch")
    if soc is None:
        what = "no soc_model: answers begin well and drift into garbage on some boards"
        yield Problem(place, what, "add soc_model, the chip's number", "warning")
    if not isinstance(arch, str):
        yield Problem(place, "no dsp_arch", "add the architecture, such as v75", "warning")
    known = arch_of(soc) if arch_of and soc is not None else None
    if known and isinstance(arch, str) and arch != known:
        what = f"dsp_arch is {arch}, and SoC {soc} has {known}"
        yield Problem(place, what, "correct the one that is wrong")
