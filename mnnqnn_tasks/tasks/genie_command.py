"""What commands about Genie have in common: no dodo file, options anywhere, errors in words."""

from __future__ import annotations

import sys
from typing import Any

from doit.cmd_base import Command
from doit.exceptions import InvalidCommand

from mnnqnn_tasks.errors import MnnqnnError
from mnnqnn_tasks.tasks.actions import internal_error
from mnnqnn_tasks.tasks.anywhere import options_first

#: Exit code after an error, as doit's own.
ERROR = 3


class GenieCommand(Command):  # type: ignore[misc]
    """A command that works in any folder; subclasses have `run`."""

    def parse_execute(self, in_args: list[str]) -> int:
        """Parse options wherever they stand; doit's own parser wants them first."""
        return int(super().parse_execute(options_first(self.cmdparser, in_args)))

    def execute(self, opt_values: dict[str, Any], pos_args: list[str]) -> int:
        """Run the command; its exit code, `ERROR` after an error."""
        try:
            return self.run(opt_values, pos_args)
        except MnnqnnError as error:
            sys.stderr.write(f"ERROR: {error}\n")
        except InvalidCommand:
            raise
        except Exception as error:
            sys.stderr.write(f"ERROR: {internal_error(error)}\n")
        return ERROR

    def run(self, opt: dict[str, Any], args: list[str]) -> int:
        """Do the work; the exit code."""
        raise NotImplementedError
