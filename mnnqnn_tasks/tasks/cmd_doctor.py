"""command doit doctor - what was found, what is missing, and how to get it"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doit.exceptions import InvalidCommand

from mnnqnn_tasks.errors import MnnqnnError
from mnnqnn_tasks.spec.pipeline import Pipeline
from mnnqnn_tasks.tasks.doctor import MISSING, OK, Finding, examine, wanted
from mnnqnn_tasks.tasks.filecmd import FileCommand

_OPTIONS = (
    {
        "name": "mnn_path",
        "long": "mnn_path",
        "type": str,
        "default": "",
        "help": "look at this build folder of MNN as well",
    },
    {
        "name": "qnn_sdk_root",
        "long": "qnn_sdk_root",
        "type": str,
        "default": "",
        "help": "look at this QAIRT SDK as well [default: $QNN_SDK_ROOT]",
    },
    {
        "name": "json",
        "long": "json",
        "type": bool,
        "default": False,
        "help": "print JSON (schemas/doctor.schema.json)",
    },
)


class Doctor(FileCommand):
    """Needs no dodo file; exit code 1 if something that is asked for is missing."""

    name = "doctor"
    doc_purpose = "say what an export finds here, what is missing, and how to get it"
    doc_usage = "[PIPELINE.yaml ...]"
    doc_description = (
        "Looks at the named pipelines, else at those in pipelines/, if there are any. "
        "Exit code 1 if something is missing that one of them, or an option, asks for."
    )
    cmd_options = _OPTIONS

    def work(self, files: list[str], options: dict[str, Any]) -> int:
        """See `FileCommand`."""
        found: list[Finding] = []
        pipelines = []
        for item in _pipelines(files):
            if isinstance(item, Finding):
                found.append(item)
            else:
                pipelines.append(item)
        look_at = wanted(pipelines, options["mnn_path"], options["qnn_sdk_root"])
        findings = [*examine(look_at), *found]
        good = all(finding.state != MISSING for finding in findings)
        if options["json"]:
            value = {"ok": good, "findings": [finding.to_json() for finding in findings]}
            print(json.dumps(value, indent=1, ensure_ascii=False))
        else:
            print("\n".join(_lines(findings, good)))
        return 0 if good else 1


def _pipelines(named: list[str]) -> Iterator[Pipeline | Finding]:
    from mnnqnn_tasks.spec.load import load_any

    for name in named:
        if name.startswith("-"):
            raise InvalidCommand(f"there is no option {name}\n  to do: doit help doctor")
    folder = Path("pipelines")
    files = [Path(n) for n in named] or sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    for path in files:
        try:
            found = load_any(path)
            if isinstance(found, Pipeline):
                yield found
        except MnnqnnError as error:
            first, *rest = str(error).splitlines()
            yield Finding("pipelines", MISSING, first, " ".join(rest).strip() or None)


def _lines(findings: list[Finding], good: bool) -> Iterator[str]:
    part = None
    for finding in findings:
        if finding.part != part:
            part = finding.part
            yield part
        yield f"  {finding.state:<10}  {finding.what}"
        if finding.todo and finding.state != OK:
            yield f"  {'':<10}  to do: {finding.todo}"
    yield "everything that is asked for is there" if good else "something is missing"
