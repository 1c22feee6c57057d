"""Task names as people type them: which exist, and which one was meant."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Any

from doit.cmd_base import Command, DoitCmdBase
from doit.exceptions import InvalidCommand

from mnnqnn_tasks.spec.check import nearest
from mnnqnn_tasks.tasks.session import STAGES

#: Stages whose tasks follow from the cut.
PLANNED = ("translate", "link", "bundle")


def loading_command() -> Any:
    """The doit command that is loading the tasks, ``None`` outside of one.

    doit tells a task creator neither the command nor the names on the command line; the
    command is the ``self`` of a frame above.
    """
    frame = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Command) and hasattr(found, "loader"):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None


def loading_option(name: str) -> Any:
    """The value of an option of the command that is loading the tasks, ``None`` outside."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is DoitCmdBase.execute.__code__:
            return frame.f_locals["params"].get(name)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _commands() -> set[str]:
    """Names that could stand where a task's does: ``doit NAME`` runs a command or a task."""
    command = loading_command()
    run = command is not None and command.get_name() == "run"
    return set(getattr(command.loader, "cmd_names", ())) if run else set()


def unknown(name: str, known: Iterable[str], hint: str = "doit list --all") -> InvalidCommand:
    """The error for a name that nothing has."""
    near = nearest(name, known)
    meant = f"did you mean {near}? " if near else ""
    return InvalidCommand(f"there is no task {name!r}\n  to do: {meant}see `{hint}`")


def check_names(names: Iterable[str], known: Collection[str], other: Collection[str]) -> None:
    """Refuse names and patterns that fit no task.

    Args:
        names: as typed.
        known: the names of our tasks.
        other: base names that task creators of the user's own may make tasks of; a
            name that starts with one of them is theirs to judge.

    Raises:
        InvalidCommand: with the nearest name.
    """
    for name in names:
        if name in known or name.split(":")[0] in other:
            continue
        if "*" in name:
            if any(fnmatchcase(task, name) for task in known) or other:
                continue
        elif other and name.split(":")[0] not in STAGES:
            continue
        raise unknown(name, {*known, *other, *_commands()})
