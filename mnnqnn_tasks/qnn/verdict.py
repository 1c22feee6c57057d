"""QNN's answer about one op; apart from `validate`, which loads the library."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OpVerdict:
    """QNN's answer for one node; ``reason`` is its error text where ``ok`` is false."""

    node: str
    type: str
    ok: bool
    reason: str = ""
