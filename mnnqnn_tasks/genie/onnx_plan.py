"""Which ONNX model gets which graph name, and what a compiler is told of these names.

A plan file (``schemas/genie_names.schema.json``) lists split models::

    version: 1
    splits: 3
    models:
      - {path: prompt_1.onnx, ar: 128, cl: 4096, split: 1}

The values for compilers are those of public tools: AI Hub's compile jobs take
``--qnn_options context_enable_graphs=NAME`` (qai_hub_models writes it for every split), QAIRT's
Python API takes ``HtpGraphConfig(name=NAME)`` in ``CompileConfig.graph_custom_configs``
(``qairt.api.compiler``), and qnn-context-binary-generator a backend extensions file whose
``graphs[].graph_names`` list the graphs of one binary.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import GenieError
from mnnqnn_tasks.genie.names import GraphName

PLAN_VERSION = 1
_KEYS = ("ar", "cl", "split")
_MAX_PLAN = 1 << 20
_TODO = "see schemas/genie_names.schema.json"


@dataclass(frozen=True)
class Assignment:
    """A model and the name of its graph."""

    path: Path
    name: GraphName


def consecutive(
    paths: Sequence[Path], ar: int, cl: int, split: int, splits: int | None
) -> list[Assignment]:
    """Name models that are consecutive splits, the first one number ``split``.

    Args:
        splits: how many there are in all; by default the last of ``paths`` is the last one.

    Raises:
        GenieError: numbers that make no name.
    """
    total = split + len(paths) - 1 if splits is None else splits
    return check(
        [Assignment(path, GraphName(ar, cl, split + i, total)) for i, path in enumerate(paths)]
    )


def read_plan(path: Path) -> list[Assignment]:
    """Read a plan; its paths count from its folder.

    Raises:
        GenieError: the file is no plan; the message names the place.
    """
    data = _load(path)
    if not isinstance(data, dict) or data.get("version") != PLAN_VERSION:
        raise _bad(path, f"the file is no object with version: {PLAN_VERSION}")
    if unknown := sorted(set(map(str, data)) - {"version", "splits", "models"}):
        raise _bad(path, f"unknown key {unknown[0]}")
    models = data.get("models")
    if not isinstance(models, list) or not models:
        raise _bad(path, "models is no list, or an empty one")
    entries = [_entry(path, item, f"models[{index}]") for index, item in enumerate(models)]
    splits = data.get("splits", max(entry["split"] for entry in entries))
    if not _is_number(splits):
        raise _bad(path, "splits is no number")
    try:
        return check(
            [
                Assignment(
                    path.parent / entry["path"],
                    GraphName(entry["ar"], entry["cl"], entry["split"], splits),
                )
                for entry in entries
            ]
        )
    except GenieError as error:
        raise GenieError(error.what, where=str(path), why=error.why, todo=error.todo) from error


def _load(path: Path) -> Any:
    import yaml

    try:
        if path.stat().st_size > _MAX_PLAN:
            raise _bad(path, "the file is too large for a plan")
        return yaml.safe_load(path.read_text("utf-8"))  # JSON is YAML as well
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise _bad(path, str(error)) from error


def _bad(path: Path, why: str) -> GenieError:
    return GenieError("not a plan of graph names", where=str(path), why=why, todo=_TODO)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _entry(path: Path, item: object, place: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise _bad(path, f"{place} is no object")
    if unknown := sorted(set(map(str, item)) - {"path", *_KEYS}):
        raise _bad(path, f"unknown key {unknown[0]} in {place}")
    if not isinstance(item.get("path"), str) or not item["path"] or "\0" in item["path"]:
        raise _bad(path, f"{place} has no path")
    for key in _KEYS:
        if not _is_number(item.get(key)):
            raise _bad(path, f"{key} of {place} is no number")
    return item


def check(assignments: list[Assignment]) -> list[Assignment]:
    """The same, if no name and no file is there twice.

    Raises:
        GenieError: naming the one that is.
    """
    for what, counted in (
        ("name", Counter(str(a.name) for a in assignments)),
        ("file", Counter(str(a.path.absolute()) for a in assignments)),
    ):
        twice = [text for text, times in counted.items() if times > 1]
        if twice:
            raise GenieError(
                f"one {what} is given twice",
                where=twice[0],
                why="every split of every AR and CL is a model of its own",
                todo="correct ar, cl or split",
            )
    return assignments


def missing(assignments: Sequence[Assignment]) -> list[GraphName]:
    """Names that a whole model has besides these: every split in every (AR, CL)."""
    have = {a.name for a in assignments}
    variants = sorted({(name.ar, name.cl) for name in have})
    splits = max(name.splits for name in have)
    whole = [GraphName(ar, cl, k, splits) for ar, cl in variants for k in range(1, splits + 1)]
    return [name for name in whole if name not in have]


def compiler_values(assignments: Sequence[Assignment]) -> dict[str, Any]:
    """What compilers are told, as JSON: options per model, and lists per split.

    The graphs of one split share their weights, so they belong into one context binary.
    """
    by_split: dict[int, list[str]] = {}
    for one in sorted(assignments, key=lambda a: (a.name.split, -a.name.ar, a.name.cl)):
        by_split.setdefault(one.name.split, []).append(str(one.name))
    return {
        "models": [
            {
                "path": str(one.path),
                "graph_name": str(one.name),
                "qnn_options": f"--qnn_options context_enable_graphs={one.name}",
                "htp_graph_config": {"name": str(one.name)},
            }
            for one in assignments
        ],
        "binaries": [
            {
                "split": split,
                "context_enable_graphs": names,
                "graph_custom_configs": [f"HtpGraphConfig(name={json.dumps(n)})" for n in names],
                "backend_extensions": {"graphs": [{"graph_names": names}]},
            }
            for split, names in by_split.items()
        ],
    }
