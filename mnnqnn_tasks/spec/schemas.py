"""Finds the project's JSON Schemas, in an installed package or in a checkout."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent.parent

#: A wheel carries the schemas inside the package, a checkout at its top.
_FOLDERS = (_PACKAGE / "schemas", _PACKAGE.parent / "schemas")


def path(name: str) -> Path:
    """Where the schema called ``name`` (``pipeline``, ``net``, ...) lies.

    Raises:
        FileNotFoundError: when there is no such schema.
    """
    for folder in _FOLDERS:
        candidate = folder / f"{name}.schema.json"
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"no schema {name} in {' or '.join(map(str, _FOLDERS))}")


@functools.cache
def schema(name: str) -> dict[str, Any]:
    """The JSON Schema called ``name``; do not change the result.

    Raises:
        FileNotFoundError: when there is no such schema.
    """
    loaded: dict[str, Any] = json.loads(path(name).read_text("utf-8"))
    return loaded
