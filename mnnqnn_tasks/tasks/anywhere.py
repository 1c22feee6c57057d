"""Options anywhere on the command line; doit's own parser wants them first."""

from __future__ import annotations

import getopt
from typing import Any


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
