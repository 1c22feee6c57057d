"""command doit genie_name_onnx - give ONNX models the graph names that Genie needs"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from doit.exceptions import InvalidCommand

from mnnqnn_tasks.tasks.filecmd import FileCommand


def _number(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "long": name, "type": int, "default": 0, "help": text}


_OPTIONS = (
    _number("ar", "tokens per call of these models: 1 for token generation"),
    _number("cl", "context length of these models"),
    _number("split", "number of the first model, from 1 [default: 1]"),
    _number("of", "number of splits [default: the last model is the last split]"),
    {
        "name": "plan",
        "long": "plan",
        "type": str,
        "default": "",
        "help": "YAML or JSON file that says ar, cl and split of every model",
    },
    {
        "name": "output",
        "long": "output",
        "short": "o",
        "type": str,
        "default": "",
        "help": "write copies into this folder, external weights beside them; else in place",
    },
    {
        "name": "dry_run",
        "long": "dry-run",
        "type": bool,
        "default": False,
        "help": "change nothing, say what would be done",
    },
    {
        "name": "as_json",
        "long": "json",
        "type": bool,
        "default": False,
        "help": "print JSON",
    },
)


class GenieNameOnnx(FileCommand):
    """Sets graph.name of ONNX models and prints what their compiler is told."""

    name = "genie_name_onnx"
    doc_purpose = "set graph names of ONNX models, and print compiler options that match"
    doc_usage = "MODEL.onnx... --ar N --cl M [--split K] [--of T] | --plan FILE"
    doc_description = (
        "Several models are consecutive splits in the order given. Weights are neither loaded "
        "nor changed. Prints AI Hub's --qnn_options and QAIRT's HtpGraphConfig for every name."
    )
    cmd_options = _OPTIONS

    def work(self, files: list[str], options: dict[str, Any]) -> int:
        """Name the models; 0."""
        return _run(options, [Path(file) for file in files])


def _run(opt: dict[str, Any], models: list[Path]) -> int:
    from mnnqnn_tasks.genie import onnx_name, onnx_plan

    if bool(opt["plan"]) == bool(models):
        raise InvalidCommand("name models, or a plan with --plan FILE")
    if opt["plan"]:
        given = onnx_plan.read_plan(Path(opt["plan"]))
    elif opt["ar"] and opt["cl"]:
        given = onnx_plan.consecutive(
            models, opt["ar"], opt["cl"], opt["split"] or 1, opt["of"] or None
        )
    else:
        raise InvalidCommand("--ar and --cl are needed: tokens per call and context length")
    before = [onnx_name.graph_name(one.path) for one in given]  # all are models, or none is touched
    if not opt["dry_run"]:
        goals = _goals(given, opt["output"])
        brought: dict[str, Path] = {}
        for one, goal in zip(given, goals, strict=True):
            onnx_name.rename(one.path, str(one.name), goal, brought)
    values = onnx_plan.compiler_values(given)
    missing = [str(name) for name in onnx_plan.missing(given)]
    if opt["as_json"]:
        sys.stdout.write(json.dumps({**values, "missing": missing}, indent=1) + "\n")
        return 0
    for one, old, model in zip(given, before, values["models"], strict=True):
        sys.stdout.write(f"{one.path}: {old or '(no name)'} -> {one.name}\n")
        sys.stdout.write(f"  {model['qnn_options']}\n")
    for binary in values["binaries"]:
        sys.stdout.write(f"split {binary['split']}, one context binary:\n")
        sys.stdout.write(f"  graph_custom_configs=[{', '.join(binary['graph_custom_configs'])}]\n")
        sys.stdout.write(f"  {json.dumps(binary['backend_extensions'])}\n")
    if missing:
        sys.stdout.write(f"not among these models: {', '.join(missing)}\n")
    return 0


def _goals(given: list[Any], output: str) -> list[Path | None]:
    """Where each model goes; None is in place."""
    if not output:
        return [None] * len(given)
    names = [one.path.name for one in given]
    if len(set(names)) == len(names):
        return [Path(output) / name for name in names]
    return [Path(output) / f"{one.name}.onnx" / one.path.name for one in given]
