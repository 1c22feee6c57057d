"""Action keys: the identity of a piece of work, made of everything it depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mnnqnn_tasks.files import canonical_json, sha256_bytes


def action_key(action: str, inputs: Mapping[str, Any]) -> str:
    """The key of one action on given inputs.

    Two actions have the same key when their names and inputs are equal as JSON values;
    order of keys, folders, clock and environment have no part in it.

    Args:
        action: what is done, with the version of the code that does it (``link/1``).
        inputs: JSON values: digests, options, library identity.

    Returns:
        Hex SHA-256 of the canonical JSON of both.

    Raises:
        TypeError: an input is no JSON value.
        ValueError: an input is infinite or not a number.
    """
    return sha256_bytes(canonical_json([action, dict(inputs)]).encode("utf-8"))
