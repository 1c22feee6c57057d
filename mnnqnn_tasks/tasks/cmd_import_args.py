"""command doit import_args - a command of MNN's generate_llm_qnn.py becomes a pipeline"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from doit import doit_cmd
from doit.cmd_base import Command
from doit.exceptions import InvalidCommand

from mnnqnn_tasks.errors import MnnqnnError, PipelineError
from mnnqnn_tasks.files import write_text
from mnnqnn_tasks.spec.toolchain import SDK_VAR
from mnnqnn_tasks.tasks.importargs import Imported, import_args
from mnnqnn_tasks.tasks.reporter import unread_output

_OPTIONS = (
    {
        "name": "out",
        "short": "o",
        "long": "out",
        "type": str,
        "default": "",
        "help": "write the pipeline to this file instead of printing it",
    },
    {
        "name": "force",
        "short": "f",
        "long": "force",
        "type": bool,
        "default": False,
        "help": "replace the file if it exists",
    },
    {
        "name": "native",
        "long": "native",
        "type": bool,
        "default": False,
        "help": "use what pip installs in place of the tools in --mnn_path",
    },
)


class ImportArgs(Command):  # type: ignore[misc]
    """Needs no dodo file; a mistake is one line and exit code 3."""

    name = "import_args"
    doc_purpose = "make a pipeline of the options of MNN's generate_llm_qnn.py"
    doc_usage = "-- --model DIR --soc_id N --dsp_arch vNN ..."
    doc_description = (
        "Prints the pipeline. With --mnn_path the tools there are used, and the SDK in "
        "QNN_SDK_ROOT if that is set; otherwise what pip installs."
    )
    cmd_options = _OPTIONS

    def execute(self, opt_values: Any, pos_args: list[str]) -> int:
        """Called by doit."""
        try:
            made = _import(opt_values, pos_args)
        except PipelineError as error:
            raise InvalidCommand(f"import_args: {_one_line(error)}") from None
        except MnnqnnError as error:
            raise InvalidCommand(str(error)) from None
        for note in made.notes:
            sys.stderr.write(f"NOTE: {note}\n")
        if not opt_values["out"]:
            with unread_output():
                print(made.text, end="", flush=True)
        return 0


def _import(opt_values: Any, words: list[str]) -> Imported:
    given = dict(doit_cmd._CMDLINE_VARS or {})  # doit takes NAME=VALUE for its own
    sdk_root = given.pop(SDK_VAR, "")
    for name, value in given.items():
        raise PipelineError(
            f"{name}={value} does not belong to an option", todo=f"write --OPTION={name}={value}"
        )
    out = Path(opt_values["out"]) if opt_values["out"] else None
    base = out.parent if out else Path("pipelines")
    for word in (*words, sdk_root):
        if word and not word.isprintable():  # not UTF-8, or a control character
            raise PipelineError(f"{word!r} cannot be written into a YAML file")
    made = import_args(words, base, bool(os.environ.get(SDK_VAR)), opt_values["native"], sdk_root)
    _check(made.text, base)
    if out is not None:
        if os.path.lexists(out) and not opt_values["force"]:
            raise PipelineError(f"{out} exists", todo="add --force to replace it")
        write_text(out, made.text)
    return made


def _check(text: str, base: Path) -> None:
    """Refuse what `load_pipeline` would.

    Raises:
        PipelineError: without a place in the file, which the user did not write.
    """
    from mnnqnn_tasks.spec.load import load_pipeline

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.yaml"
        path.write_text(text, "utf-8")
        try:
            load_pipeline(path)
        except PipelineError as error:
            raise PipelineError(error.what, why=error.why, todo=error.todo) from None


def _one_line(error: PipelineError) -> str:
    why = f" ({error.why})" if error.why else ""
    return f"{error.what}{why}" + (f"; {error.todo}" if error.todo else "")
