"""Reading ``genie_config.json`` of any origin: the only reader of it.

Nothing is judged here: what is missing or of a wrong type counts as absent, and
`mnnqnn_tasks.genie.config_check` says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from mnnqnn_tasks.errors import GenieError
from mnnqnn_tasks.genie.config import CONFIG
from mnnqnn_tasks.genie.graphs import is_path, load_json
from mnnqnn_tasks.genie.prediction import LoaderConfig
from mnnqnn_tasks.genie.shapes import DEFAULT_EMBEDDING, DEFAULT_POSITIONS

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class BundleConfig:
    """A config file, and what the lint and the loader take from it.

    Attributes:
        file: as the caller named it.
        raw: all of it.
        loader: what decides the loading.
        binaries: ``ctx-bins`` in order.
        extensions: the backend extensions file as written, empty where there is none.
        soc_id: chip that this file names, None if it names none.
    """

    file: str
    raw: Raw
    loader: LoaderConfig
    binaries: tuple[str, ...]
    extensions: str = ""
    soc_id: int | None = None

    def path(self, name: str) -> Path:
        """Where a file lies that the config names: relative to the config's folder."""
        return Path(self.file).parent / name


def config_file(bundle: Path) -> Path:
    """The config of a bundle: the file itself, or ``genie_config.json`` of a folder.

    Raises:
        GenieError: there is none.
    """
    folder = os.path.isdir(bundle)
    found = bundle / CONFIG if folder else bundle
    if not os.path.isfile(found):
        raise GenieError(
            f"there is no {CONFIG}" if folder else "there is no such file",
            where=str(bundle),
            todo=f"name a folder with {CONFIG}, or the config file",
        )
    return found.absolute()


def load(path: Path) -> Raw:
    """The JSON object of a config.

    Raises:
        GenieError: unreadable, or no JSON object.
    """
    data = load_json(path, "a Genie config", "see schemas/genie_config.schema.json")
    if not isinstance(data, dict):
        raise GenieError("not a Genie config", where=str(path), why="it is no JSON object")
    return data


def read_config(path: Path) -> BundleConfig:
    """Read a config, and the backend extensions file beside it.

    Raises:
        GenieError: the config is unreadable, or no JSON object.
    """
    raw = load(path)
    engine, context = _speaker(raw), _block(raw, "dialog.context")
    loader = LoaderConfig(
        context_size=_number(context, "size"),
        long_context="longcontext" in engine,
        embedding=_number(context, "n-embd") or DEFAULT_EMBEDDING,
        kv_dim=_number(_block(engine, "backend.QnnHtp"), "kv-dim"),
        pos_id_dim=_positions(engine),
    )
    named = next(iter(file_names(_block(engine, "backend"), "extensions")), "")
    bins = tuple(file_names(_block(engine, "model.binary"), "ctx-bins"))
    return BundleConfig(str(path), raw, loader, bins, named, _soc(path.parent / named))


def _speaker(raw: Raw) -> Raw:
    """The engine; of a list of engines, the one with the role that speaks."""
    engines = [block for _, block in blocks(raw, "dialog.engine")]
    target = (block for block in engines if block.get("role") == "target")
    return next(target, engines[0] if engines else {})


def _positions(engine: Raw) -> int | None:
    """Entries of cos and sin per token; None where positions are not those of RoPE."""
    model = _block(engine, "model")
    if "positional-encoding" not in model:
        said = _number(_block(engine, "backend.QnnHtp"), "pos-id-dim")
        return DEFAULT_POSITIONS if said is None else said
    return _number(_block(model, "positional-encoding"), "rope-dim")


def _soc(path: Path) -> int | None:
    """The chip that a backend extensions file names; None for what is none."""
    if not os.path.isfile(path):  # which takes any name, Path.is_file does not
        return None
    try:
        return soc_of(device_of(load_json(path, "a backend extensions file")))
    except GenieError:
        return None


def device_of(extensions: object) -> Raw | None:
    """The chip's block in a backend extensions file, None where there is none."""
    devices = extensions.get("devices") if isinstance(extensions, dict) else None
    device = devices[0] if isinstance(devices, list) and devices else None
    return device if isinstance(device, dict) else None


def soc_of(device: Raw | None) -> int | None:
    """Qualcomm's number of the chip, under one of its two names."""
    found = device.get("soc_model", device.get("soc_id")) if device else None
    return found if is_whole(found) else None


def file_names(block: Raw, key: str) -> Iterator[str]:
    """The files that a text or a list of texts names, trimmed as libGenie does it."""
    found = block.get(key)
    for name in found if isinstance(found, list) else [found]:
        if isinstance(name, str) and name.strip() and is_path(name.strip()):
            yield name.strip()


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a JSON value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def _number(block: Raw, key: str) -> int | None:
    found = block.get(key)
    return found if is_whole(found) else None


def _block(config: Raw, place: str) -> Raw:
    return next((block for _, block in blocks(config, place)), {})


def blocks(config: Raw, place: str) -> Iterator[tuple[str, Raw]]:
    """The objects at a place such as ``dialog.engine``, with their places.

    An engine list has several of them: ``dialog.engine[0]``.
    """
    found: list[tuple[str, object]] = [("", config)]
    for name in place.split(".") if place else ():
        deeper: list[tuple[str, object]] = []
        for at, value in found:
            inner = value.get(name) if isinstance(value, dict) else None
            here = f"{at}.{name}" if at else name
            if isinstance(inner, list):
                deeper += [(f"{here}[{index}]", item) for index, item in enumerate(inner)]
            else:
                deeper.append((here, inner))
        found = deeper
    yield from ((at, value) for at, value in found if isinstance(value, dict))
