"""What MNN's tools print when they leave something out and exit with 0 all the same.

The lines come from MNN's QNN backend (``QNNBackend.cpp``, ``onCreate``) and its scheduler
(``Pipeline.cpp``); older versions print the type in brackets and no name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_KINDS = (
    (r"Not registered type", "QNN has no translation of this op in that build of MNN"),
    (r"Don't support type", "MNN refused this use of the op"),
    (r"Create execution error\s*:", "neither QNN nor the CPU could run this op"),
)
_LINE = re.compile(
    rf"(?P<kind>{'|'.join(kind for kind, _ in _KINDS)})\s*\[?(?P<type>[A-Za-z0-9_]+)\]?"
    r"(?:\s*,\s*(?P<name>.*?))?\.?\s*$"
)


@dataclass(frozen=True)
class Fault:
    """An op that a tool left out.

    Attributes:
        op: its name and type, as far as the line tells.
        reason: what the line means.
        line: the line itself.
    """

    op: str
    reason: str
    line: str


def find(line: str) -> Fault | None:
    """The fault that a line of output reports, ``None`` for any other line."""
    found = _LINE.search(line)
    if found is None:
        return None
    reason = next(text for kind, text in _KINDS if re.match(kind, found["kind"]))
    kind = _type_name(found["type"])
    op = f"{found['name']} ({kind})" if found["name"] else f"of type {kind}"
    return Fault(op, reason, line.strip())


def _type_name(text: str) -> str:
    if not text.isdigit():
        return text
    from mnnqnn_tasks.mnn import schema

    return schema.load().enums["OpType"].names.get(int(text), f"number {text}")
