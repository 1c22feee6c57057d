"""command doit genie_probe - have the real libGenie load a bundle on this machine"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from doit.exceptions import InvalidCommand

from mnnqnn_tasks.tasks.filecmd import FileCommand

_OPTIONS = (
    {
        "name": "lib",
        "long": "lib",
        "type": str,
        "default": "",
        "help": "another version: a folder with libGenie.so, or a wheel file of onnxruntime-qnn",
    },
    {
        "name": "question",
        "long": "ask",
        "type": str,
        "default": "",
        "help": "answer this prompt on the emulator (write --ask=TEXT if it has a = in it)",
    },
    {
        "name": "tokens",
        "long": "tokens",
        "type": int,
        "default": 16,
        "help": "answer with at most so many tokens [default: %(default)s]",
    },
    {
        "name": "timeout",
        "long": "timeout",
        "type": float,
        "default": 600.0,
        "help": "seconds until libGenie is given up [default: %(default)s]",
    },
    {"name": "as_json", "long": "json", "type": bool, "default": False, "help": "print JSON"},
)


class GenieProbe(FileCommand):
    """Reports what libGenie says next to what our model of that version predicts."""

    name = "genie_probe"
    doc_purpose = "load a Genie bundle with the real libGenie, and compare with what we predict"
    doc_usage = "BUNDLE..."
    doc_description = (
        "BUNDLE is a folder with genie_config.json, or the config file. Exit code 0: loaded, as "
        "predicted; 1: not loaded; 2: libGenie and our model of it disagree, please report it."
    )
    cmd_options = _OPTIONS

    def work(self, files: list[str], options: dict[str, Any]) -> int:
        """Probe every bundle; the worst exit code."""
        from mnnqnn_tasks.genie import library, probe

        if not files:
            raise InvalidCommand("name a folder with genie_config.json, or the config file")
        if options["timeout"] <= 0 or not 0 < options["tokens"] < 1 << 31:
            raise InvalidCommand("--timeout and --tokens are numbers above 0")
        reports = []
        with library.opened(Path(options["lib"]) if options["lib"] else None) as lib_dir:
            for bundle in files:
                report = probe.probe(
                    Path(bundle),
                    lib_dir,
                    options["question"] or None,
                    options["tokens"],
                    options["timeout"],
                )
                reports.append(report)
                if not options["as_json"]:
                    sys.stdout.writelines(f"{line}\n" for line in probe.to_text(report))
                    sys.stdout.flush()
        if options["as_json"]:
            found = [probe.to_json(report) for report in reports]
            sys.stdout.write(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        return max(report.exit_code for report in reports)
