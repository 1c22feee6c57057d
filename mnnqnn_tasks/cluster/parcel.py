"""What a worker is sent that does not see our files: where to get them, under names.

A file is called after the folder that it is in, ``@build/cut/cut.json``; either end has
these folders somewhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mnnqnn_tasks.cache.entry import File

#: The folders of a model: what was built, what is exported, and our own notes.
BUILD, MODEL, STATE = "@build", "@model", "@state"

#: Path by name of a folder, as one of the two ends has it.
Folders = Mapping[str, str]


@dataclass(frozen=True)
class Input:
    """A file that a stage reads.

    Attributes:
        name: of the place where it reads it.
        file: its content, called after its digest: no store cares what people call it.
    """

    name: str
    file: File


@dataclass(frozen=True)
class Parcel:
    """A stage for a worker that does not see our files.

    Attributes:
        url, timeout_s: the store that has the contents, and takes the result.
        max_bytes: of contents that a worker keeps for the next stages.
        inputs: the files that the stage reads.
        arguments: those of the stage, with names for paths.
        base, blobs: names of the folders that the result's files count from.
        action, key: what the result is called in the store; see `entry.Entry`.
        folders: as our end has them, for messages.
    """

    url: str
    timeout_s: float
    max_bytes: int
    inputs: tuple[Input, ...]
    arguments: Mapping[str, Any]
    base: str
    blobs: str
    action: str
    key: str
    folders: Folders


def to_names(value: Any, folders: Folders) -> Any:
    """A JSON value with names in the place of absolute paths in ``folders``."""
    # The longest folder first: a build folder may lie inside a model folder.
    pairs = sorted(folders.items(), key=lambda item: -len(item[1]))
    return _map(value, [(folder, name) for name, folder in pairs])


def to_paths(value: Any, folders: Folders) -> Any:
    """A JSON value with paths in the place of the names of `to_names`."""
    return _map(value, list(folders.items()))


def _map(value: Any, pairs: list[tuple[str, str]]) -> Any:
    if isinstance(value, str):
        for old, new in pairs:
            if value == old or value.startswith(old + "/"):
                return new + value[len(old) :]
        return value
    if isinstance(value, Mapping):
        return {key: _map(item, pairs) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map(item, pairs) for item in value]
    return value
