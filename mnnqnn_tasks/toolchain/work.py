"""Does one stage, wherever that is, and measures what it took."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mnnqnn_tasks.peak import Meter

#: Where the function of a stage is; ``external.link`` is the external toolchain's ``link``.
_TOOLCHAINS = {
    "": "mnnqnn_tasks.toolchain.native",
    "external": "mnnqnn_tasks.toolchain.external.stages",
    "genie": "mnnqnn_tasks.tasks.geniechain.stages",
}


@dataclass(frozen=True)
class Work:
    """What a stage did.

    Attributes:
        made: the files that it made.
        values: what the task database keeps.
        seconds: how long it took, without any waiting.
        peak: bytes of memory of the largest process that did it.
        kept: the result is in the cache already.
    """

    made: list[str]
    values: dict[str, Any]
    seconds: float
    peak: int
    kept: bool = False


def perform(stage: str, arguments: Mapping[str, Any]) -> Work:
    """Call the function ``stage`` of the toolchain.

    Raises:
        MnnqnnError: what the stage raises.
    """
    begin = time.monotonic()
    with Meter() as meter:
        made, values = function(stage)(**arguments)
    return Work(made, values, round(time.monotonic() - begin, 3), meter.peak)


def function(stage: str) -> Any:
    """The function of a toolchain that a name stands for."""
    chain, _, name = stage.rpartition(".")
    return getattr(importlib.import_module(_TOOLCHAINS[chain]), name)
