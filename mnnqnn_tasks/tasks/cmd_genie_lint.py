"""command doit genie_lint - say what Genie will make of a model, before the board does"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from doit.exceptions import InvalidCommand

from mnnqnn_tasks.errors import GenieError
from mnnqnn_tasks.tasks.filecmd import FileCommand

_CONFIG = {
    "name": "config",
    "long": "config",
    "type": str,
    "default": "",
    "help": "a genie_config.json; without FILE, its ctx-bins are read",
}
_GENIE = {
    "name": "genie",
    "long": "genie",
    "type": list,
    "default": [],
    "help": "only this release of QAIRT, such as 2.42 (or libGenie's own 1.14.0); may be given "
    "again [default: every known release]",
}
_JSON = {
    "name": "json",
    "long": "json",
    "type": bool,
    "default": False,
    "help": "print JSON (schemas/genie_lint.schema.json)",
}
_STRICT = {
    "name": "strict",
    "long": "strict",
    "type": bool,
    "default": False,
    "help": "warnings count as errors",
}
_LOAD = {
    "name": "load",
    "long": "load",
    "type": bool,
    "default": False,
    "help": "load every binary on the host emulator as well, which finds files changed after "
    "compiling and takes as much memory as a file",
}
_RULES = {
    "name": "rules",
    "long": "rules",
    "type": bool,
    "default": False,
    "help": "instead of a model, print the loader's rules, their releases and where they were seen",
}


class GenieLint(FileCommand):
    """Exit code 0: every release asked for takes the model; 1: findings; 3: unreadable files."""

    name = "genie_lint"
    doc_purpose = "say what Genie's loader will make of context binaries"
    doc_usage = "FILE ..."
    doc_description = (
        "FILE is a context binary, or what qnn-context-binary-utility --json_file wrote of one. "
        "Prints the table of variants and splits that the loader will build, then what is wrong: "
        "symptom on the board, cause, remedy. Needs no dodo.py. Exit code 0: every release asked "
        "for takes the model; 1: there are errors; 3: a file cannot be read."
    )
    cmd_options = (_CONFIG, _GENIE, _LOAD, _JSON, _STRICT, _RULES)

    def work(self, files: list[str], options: dict[str, Any]) -> int:
        """Read, judge, print."""
        from mnnqnn_tasks.files import canonical_json
        from mnnqnn_tasks.genie import report
        from mnnqnn_tasks.genie.config_check import check
        from mnnqnn_tasks.genie.config_read import read_config
        from mnnqnn_tasks.genie.lint import lint
        from mnnqnn_tasks.genie.versions import VERSIONS, parse_version
        from mnnqnn_tasks.spec.soc import table

        versions = sorted({parse_version(text) for text in options["genie"]}) or VERSIONS
        if options["rules"]:
            sys.stdout.write(report.rules_text(versions))
            return 0
        config = read_config(Path(options["config"])) if options["config"] else None
        if not files and config is not None:
            files = _listed(config)
        if not files:
            raise InvalidCommand(
                "genie_lint needs a context binary\n  to do: name one or more files"
            )
        read = _read(files)
        problems = check(config, read, table().arch_of) if config else ()
        result = lint(read, config, versions, options["load"], problems)
        if options["json"]:
            sys.stdout.write(canonical_json(report.as_json(result), indent=1) + "\n")
        else:
            sys.stdout.write(report.as_text(result))
        sys.stdout.flush()
        bad = len(result.findings) if options["strict"] else result.errors
        return 1 if bad else 0


def _listed(config: Any) -> list[str]:
    """The context binaries that a config names."""
    from mnnqnn_tasks.genie.config_check import check

    if not config.binaries:
        problems = check(config)
        why = "".join(f"\n    {problem.place}: {problem.what}" for problem in problems)
        raise GenieError("the config names no context binary", where=config.file, why=why)
    return [str(config.path(name)) for name in config.binaries]


def _read(files: list[str]) -> list[Any]:
    """All files, or one error that names every one that cannot be read."""
    from mnnqnn_tasks.genie.graphs import read

    found, failed = [], []
    for name in files:
        try:
            found.append(read(Path(name)))
        except GenieError as error:
            failed.append(error)
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise GenieError(
            f"{len(failed)} files cannot be read",
            why="\n".join(["", *(f"    {e.where}: {e.what}" for e in failed)]),
            todo=failed[0].todo,
        )
    return found
