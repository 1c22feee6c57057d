"""Base of commands about files: they need no dodo file, no pipeline and no tasks.

Options may stand behind the files, and a file may have ``=`` in its name: doit takes such an
argument for a variable.
"""

from __future__ import annotations

import sys
from typing import Any

from doit import doit_cmd
from doit.cmd_base import Command
from doit.exceptions import InvalidCommand

from mnnqnn_tasks.errors import MnnqnnError
from mnnqnn_tasks.tasks.actions import internal_error
from mnnqnn_tasks.tasks.anywhere import OptionsAnywhere
from mnnqnn_tasks.tasks.reporter import unread_output


class FileCommand(OptionsAnywhere, Command):  # type: ignore[misc]
    """A command with the method ``work(files, options) -> exit code``."""

    def work(self, files: list[str], options: dict[str, Any]) -> int:
        """Do it.

        Raises:
            MnnqnnError: printed as one message; the exit code is 3.
        """
        raise NotImplementedError

    def execute(self, opt_values: dict[str, Any], pos_args: list[str]) -> int:
        """Called by doit with options and files."""
        given = doit_cmd._CMDLINE_VARS or {}
        files = [*pos_args, *(f"{name}={value}" for name, value in given.items())]
        try:
            with unread_output():
                return self.work(files, opt_values)
        except MnnqnnError as error:
            sys.stderr.write(f"ERROR: {error}\n")
        except InvalidCommand:
            raise
        except Exception as error:
            sys.stderr.write(f"ERROR: {internal_error(error)}\n")
        return 3
