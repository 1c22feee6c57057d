"""command doit genie_renumber - other split numbers in compiled binaries"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from doit.exceptions import InvalidCommand

from mnnqnn_tasks.tasks.filecmd import FileCommand

_OUT = {
    "name": "out",
    "long": "out",
    "short": "o",
    "type": str,
    "default": "",
    "help": "folder for the changed copies; the files themselves are never touched",
}
_RENAME = {
    "name": "rename",
    "long": "rename",
    "type": list,
    "default": [],
    "help": "OLD:NEW, this change only; may be given again. Anything but another split number of "
    "the same length is refused",
}
_NO_LOAD = {
    "name": "no_load",
    "long": "no-load",
    "type": bool,
    "default": False,
    "help": "do not load the copies on the host emulator, which takes as much memory as a file",
}


class GenieRenumber(FileCommand):
    """Exit code 0: copies are written and checked; 3: nothing is written."""

    name = "genie_renumber"
    doc_purpose = "change split numbers in context binaries that cannot be compiled again"
    doc_usage = "FILE ... -o FOLDER"
    doc_description = (
        "FILE ... are the context binaries of one model with ten splits or more. Split numbers "
        "from 10 on become a letter and a digit (_10_of_11: _T0_of_11), so that every release of "
        "Genie takes the splits in their order. Each copy is read back by libQnnSystem and loaded "
        "on the host emulator. Compiling again with padded numbers is better. Needs no dodo.py."
    )
    cmd_options = (_OUT, _RENAME, _NO_LOAD)

    def work(self, files: list[str], options: dict[str, Any]) -> int:
        """Copy, change, check, tell."""
        from mnnqnn_tasks.genie.renumber import renumber
        from mnnqnn_tasks.genie.report import clean

        if not files or not options["out"]:
            lacks = "a context binary" if not files else "a folder for the copies"
            raise InvalidCommand(f"genie_renumber needs {lacks}\n  to do: FILE ... -o FOLDER")
        renames = dict(map(_rename, options["rename"]))
        made = renumber(
            [Path(name) for name in files], Path(options["out"]), renames, not options["no_load"]
        )
        for one in made:
            loaded = "read back and loaded" if one.loaded else f"read back ({one.reason})"
            sys.stdout.write(f"{clean(one.target)}: {clean(loaded)}\n")
            for old, new in one.names.items():
                sys.stdout.write(f"  {clean(old)} -> {clean(new)}\n")
        sys.stdout.flush()
        return 0


def _rename(text: str) -> tuple[str, str]:
    old, colon, new = text.partition(":")
    if not (old and colon and new):
        raise InvalidCommand(f"{text!r} is no rename\n  to do: --rename OLD:NEW")
    return old, new
