"""JSON for people: what fits on a line stays on it."""

from __future__ import annotations

import json
from collections.abc import Mapping

_WIDTH = 100


def readable_json(value: object) -> str:
    """``value`` as JSON, keys in the order given, short lists and objects on one line."""
    return _render(value, 0) + "\n"


#: One encoder for all: json.dumps makes a new one per call.
_flat = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _render(value: object, depth: int) -> str:
    if isinstance(value, Mapping):
        parts = [f"{_flat(str(k))}: {_render(v, depth + 1)}" for k, v in value.items()]
        opening, closing = "{", "}"
    elif isinstance(value, list):
        parts = [_render(item, depth + 1) for item in value]
        opening, closing = "[", "]"
    else:
        return _flat(value)
    flat = f"{opening}{', '.join(parts)}{closing}"
    if len(flat) + depth <= _WIDTH and "\n" not in flat:
        return flat
    inner = " " * (depth + 1)
    body = ",\n".join(inner + part for part in parts)
    return f"{opening}\n{body}\n{' ' * depth}{closing}"
