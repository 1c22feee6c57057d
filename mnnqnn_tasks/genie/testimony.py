"""What libGenie said, read from the events and the lines of a child process."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from mnnqnn_tasks.genie.prediction import Variant

#: How it ended: the dialog was made; the graphs or the context size were refused; the config
#: was refused as such; something that has nothing to do with graphs was missing or is
#: impossible on a host; the library ended the process; the time was up.
Outcome = Literal["accepted", "refused", "config refused", "not loaded", "crashed", "timed out"]

_INSERTING = re.compile(r"Inserting graph (.+) as idx (\d+) for AR-(-?\d+) CL-(-?\d+)$")
_PROMPT = re.compile(r"dialog-tokens: .*\[([\d, -]*)\]$")
#: Lines that a library prints itself: ``[ERROR] "text"`` is one of Genie's helpers.
_TAGGED = re.compile(r"\[(ERROR|WARN|INFO|DEBUG|VERBOSE)\]\s+\"?(.*?)\"?$")

#: Reasons begin like this where a library is no libGenie, or one of another age.
LACKS = "libGenie has no function"

#: Refusals that do not follow from graphs, names and context size.
_OUTSIDE = re.compile(
    "|".join(
        (
            LACKS,
            "Can't access model file",
            "failed to load tokenizer",
            "Failed to open input file",
            "Shared weights buffer isn't supported",  # weight sharing needs a device
            "newer context binary on old SDK",
            "Create From Binary FAILED",
            "populateGraphBinaryInfo failed",
            "qnn-api initialization failed",
            "type must be number",  # a key of the backend that the config lacks
        )
    )
)
_NOISE = re.compile(r"LIBNATIVE: No alternate|^Note: Dimensions denoted|^Check model i/o specs")


@dataclass(frozen=True)
class Testimony:
    """What one libGenie said of one bundle.

    Attributes:
        version: of the QNN libraries, ``2.51.0``.
        api: of libGenie, ``1.21.0``; empty where it could not be loaded.
        outcome: how it ended.
        variants: the table of graphs that it built, by (AR, CL), ascending.
        reasons: what it printed of errors, in its order.
        step: the function that it was in when it ended.
        code: exit code of the process, minus the signal that ended it; None after a timeout.
        prompt: token ids of the question.
        answer: the answer's tokens as text, None where nothing was asked or answered.
    """

    version: str
    api: str
    outcome: Outcome
    variants: tuple[Variant, ...] = ()
    reasons: tuple[str, ...] = ()
    step: str = ""
    code: int | None = 0
    prompt: tuple[int, ...] = ()
    answer: tuple[str, ...] | None = None

    @property
    def ending(self) -> str:
        """How the process ended, in words."""
        if self.code is None:
            return f"no answer in time, in {self.step}"
        if self.code < 0:
            return f"{_signal(-self.code)} in {self.step}"
        return f"exit code {self.code}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read(version: str, code: int | None, events: str, printed: str) -> Testimony:
    """Put together what a child process said.

    Args:
        version: of the QNN libraries that it used.
        code: its exit code, minus the signal that ended it, None if it was given up.
        events: what `mnnqnn_tasks.genie.native.Session` told, JSON lines; the last may be torn.
        printed: its standard output and error.
    """
    told = list(_events(events))
    logs = [event["log"] for event in told if "log" in event]
    statuses = dict(event["status"] for event in told if "status" in event)
    steps = [event["step"] for event in told if "step" in event]
    lacks = [f"{LACKS} {event['lacks']}" for event in told if "lacks" in event]
    reasons = (*lacks, *_reasons(logs, printed))
    pieces = tuple(event["token"] for event in told if "token" in event)
    return Testimony(
        version=version,
        api=next((event["api"] for event in told if "api" in event), ""),
        outcome=_outcome(code, statuses, reasons),
        variants=table(text for _, text in logs),
        reasons=reasons,
        step=steps[-1] if steps else "start",
        code=code,
        prompt=_prompt(text for _, text in logs),
        answer=pieces if statuses.get("GenieDialog_query") == 0 else None,
    )


def _events(text: str) -> Iterable[dict[str, Any]]:
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # torn by a crash
        if isinstance(event, dict):
            yield event


def table(lines: Iterable[str]) -> tuple[Variant, ...]:
    """The table of graphs that the loader printed as it built it."""
    found: dict[tuple[int, int], dict[int, str]] = {}
    for line in lines:
        if match := _INSERTING.search(line):
            name, index, ar, cl = match[1], int(match[2]), int(match[3]), int(match[4])
            found.setdefault((ar, cl), {})[index] = name
    return tuple(
        Variant(ar, cl, tuple(graphs[index] for index in sorted(graphs)))
        for (ar, cl), graphs in sorted(found.items())
    )


def _prompt(lines: Iterable[str]) -> tuple[int, ...]:
    for line in lines:
        if match := _PROMPT.search(line):
            return tuple(int(number) for number in match[1].split(",") if number.strip())
    return ()


def _reasons(logs: Iterable[tuple[int, str]], printed: str) -> tuple[str, ...]:
    """Errors of the log, then what was printed beside it; each once."""
    found = [text for level, text in logs if level == 1]
    for line in printed.splitlines():
        tagged = _TAGGED.match(line.strip())
        if tagged is None:
            found.append(line)
        elif tagged[1] == "ERROR":
            found.append(tagged[2])
    cleaned = (text.strip() for text in found)
    return tuple(dict.fromkeys(text for text in cleaned if text and not _NOISE.search(text)))


def _outcome(code: int | None, statuses: dict[str, int], reasons: tuple[str, ...]) -> Outcome:
    if code is None:
        return "timed out"
    if statuses.get("GenieDialog_create") == 0:
        return "accepted" if code == 0 else "crashed"
    if any(map(_OUTSIDE.search, reasons)):
        return "not loaded"  # libGenie 1.20 and later may crash of what it then lacks
    if code != 0:
        return "crashed"
    if statuses.get("GenieDialogConfig_createFromJson", 0) != 0:
        return "config refused"
    return "refused"
