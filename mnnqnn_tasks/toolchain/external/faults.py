"""What MNN's tools print when they leave something out and exit with 0 all the same.

The lines come from MNN's QNN backend (``QNNBackend.cpp``, ``QNNCommonExecution.hpp``,
``QNNConvertor.cpp``) and its scheduler (``Pipeline.cpp``); older versions print the type in
brackets and no name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_REFUSED = "MNN refused this use of the op"
_NO_OP = r"(?!)"
_NUMBER_AND_NAME = r"\s*\[?(?P<type>[A-Za-z0-9_]+)\]?(?:\s*,\s*(?P<name>.*?))?\.?\s*$"

#: What a line has in it, how the rest of it goes on if it names an op, and what it means.
_KINDS = tuple(
    (re.compile(kind), re.compile(rest), reason)
    for kind, rest, reason in (
        (
            r"Not registered type",
            _NUMBER_AND_NAME,
            "QNN has no translation of this op in that build of MNN",
        ),
        (r"Don't support type", _NUMBER_AND_NAME, _REFUSED),
        (r"Create execution error\s*:", _NUMBER_AND_NAME, "neither QNN nor the CPU could run it"),
        (
            r"QNN (?:validate|graphAddNode) failed for node",
            r"\s*'(?P<name>.*?)' type '(?P<type>\w+)'",
            "QNN refuses it",
        ),
        (
            r"MNN_QNN: Some special cases of",
            r"\s*(?P<type>\w+) (?:is|are) not supported",
            _REFUSED,
        ),
        (
            r"MNN_QNN: Op(?= \w+ parameters violated)",
            r"\s*(?P<type>\w+)",
            "its parameters violate the constraints of QNN's HTP backend",
        ),
        (
            r"MNN_QNN: (?:Failed to (?:open|write|close)|Unkn?own|Illegal|Not supported|Invalid)",
            _NO_OP,
            "a source or its data is not what it should be",
        ),
    )
)

#: As much of a line is looked at, from where one of them begins.
_LENGTH = 400


@dataclass(frozen=True)
class Fault:
    """Something that a tool left out or spoiled.

    Attributes:
        what: which op it left out, as far as the line tells.
        reason: what the line means.
        line: the line itself, from where it says so.
    """

    what: str
    reason: str
    line: str


def find(line: str) -> Fault | None:
    """The fault that a line of output reports, ``None`` for any other line."""
    for kind, rest, reason in _KINDS:
        if begin := kind.search(line):
            text = line[begin.start() : begin.start() + _LENGTH].strip()
            if rest.pattern == _NO_OP:
                return Fault("spoiled a graph", reason, text)
            found = rest.match(text, begin.end() - begin.start())
            return Fault(_what(found.groupdict() if found else {}), reason, text)
    return None


def _what(named: dict[str, str | None]) -> str:
    if not named:
        return "left out an op"
    kind = _type_name(named["type"] or "")
    name = named.get("name")
    return f"left out the op {name} ({kind})" if name else f"left out the op of type {kind}"


def _type_name(text: str) -> str:
    if not text.isdigit():
        return text
    from mnnqnn_tasks.mnn import schema

    return schema.load().enums["OpType"].names.get(int(text), f"number {text}")
