"""What our commands have in common: options may stand anywhere, and nobody has to listen."""

from __future__ import annotations

import getopt
from typing import Any

from doit.cmd_base import DoitCmdBase

from mnnqnn_tasks.tasks.reporter import unread_output


class OptionsAnywhere:
    """Options are found behind other arguments as well; doit's own parser wants them first."""

    cmdparser: Any

    def parse_execute(self, in_args: list[str]) -> int:
        """Called by doit with what stands behind the command's name."""
        given = options_first(self.cmdparser, in_args)
        return int(super().parse_execute(given))  # type: ignore[misc]


class TaskCommand(OptionsAnywhere, DoitCmdBase):  # type: ignore[misc]
    """A command about the tasks of a dodo file."""

    def say(self, line: str) -> None:
        """Print a line at once."""
        with unread_output():
            self.outstream.write(line + "\n")
            self.outstream.flush()


def options_first(parser: Any, arguments: list[str]) -> list[str]:
    """The arguments of a command in the order that its doit parser understands.

    Args:
        parser: the command's ``cmdparser``.

    Returns:
        Options, ``--``, the rest; as given if they are wrong, for doit to say so.
    """
    try:
        long = parser.get_long()
        options, rest = getopt.gnu_getopt(arguments, parser.get_short(), long)
    except getopt.GetoptError:
        return arguments
    first = [
        part
        for name, value in options
        for part in ((f"{name}={value}",) if f"{name[2:]}=" in long else (name, value))
        if part
    ]
    return [*first, "--", *rest]
