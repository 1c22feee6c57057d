"""Reading ``genie_config.json`` of any origin, block by block.

Nothing here trusts the file: what is missing or of another type is left out, and
`mnnqnn_tasks.genie.config_check` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import GenieError
from mnnqnn_tasks.genie.config import CONFIG
from mnnqnn_tasks.genie.graphs import load_json

Raw = Mapping[str, Any]


def config_file(bundle: Path) -> Path:
    """The config of a bundle: the file itself, or ``genie_config.json`` of a folder.

    Raises:
        GenieError: there is none.
    """
    found = bundle / CONFIG if bundle.is_dir() else bundle
    if not found.is_file():
        raise GenieError(
            f"there is no {CONFIG}" if bundle.is_dir() else "there is no such file",
            where=str(bundle),
            todo=f"name a folder with {CONFIG}, or the config file",
        )
    return found.absolute()


def load(path: Path) -> Raw:
    """Read a config.

    Raises:
        GenieError: unreadable, or no JSON object.
    """
    data = load_json(path, "a Genie config", "see schemas/genie_config.schema.json")
    if not isinstance(data, dict):
        raise GenieError("not a Genie config", where=str(path), why="it is no JSON object")
    return data


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
