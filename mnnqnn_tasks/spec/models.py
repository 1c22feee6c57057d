"""The models of a pipeline: its entries, with patterns turned into the folders they match.

The rules, which README.md tells to users:

* A ``path`` with ``*``, ``?`` or ``[`` is a pattern, unless there is a folder of exactly
  that name.  It stands for every model folder that it matches, in the order of the names.
  ``*`` matches no name that begins with a dot; ``**`` is any number of folders.  Folders
  below ``build_dir`` and ``dist_dir`` are left out.
* A folder is one model however many patterns match it.  What the last of them says counts,
  and what an entry with the folder's own path says counts more, key by key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnnqnn_tasks.spec.check import did_you_mean
from mnnqnn_tasks.spec.pipeline import Model, Target
from mnnqnn_tasks.spec.schemas import schema
from mnnqnn_tasks.spec.yamlfile import Document

_CHUNK_SIZES = (128,)

#: What makes a path a pattern.
_MAGIC = re.compile(r"[*?[]")

#: A folder that holds one of these is a model's, be it a broken one.
_MARKS = ("llm_config.json", "llm.mnn")

#: Files that a run writes beside the folders of the models.
_TAKEN = ("report.json",)

_NAME_RULE = "models are named by at most 64 ASCII letters, digits, '.', '_', '+' and '-'"


@dataclass(frozen=True)
class _Entry:
    """An entry for one folder; ``index`` is its place in the list of the file."""

    index: int
    spelled: str  # the folder as it is called, which may be a link
    folder: Path  # what it really is
    values: dict[str, Any]
    matched: bool  # found by a pattern


def read_models(
    document: Document, base: Path, targets: tuple[Target, ...], outputs: Sequence[Path]
) -> tuple[Model, ...]:
    """The models of the pipeline ``document``.

    Args:
        base: what relative paths count from.
        outputs: folders that hold no models, whatever lies in them.

    Raises:
        PipelineError: an unknown target, a pattern without a match, a name that cannot
            be one or is taken; with the place in the file.
    """
    by_name = {target.name: target for target in targets}
    defaults = document.value.get("defaults", {})
    _check_targets(document, ("defaults",), defaults, by_name)
    entries: list[_Entry] = []
    for i, values in enumerate(document.value["models"]):
        _check_targets(document, ("models", i), values, by_name)
        entries += _entries(document, i, values, base, outputs)
    models = [_model(document, entry, defaults, targets) for entry in _merged(entries)]
    _refuse_twins(document, models)
    return tuple(model for _, model in models)


def _entries(
    document: Document, index: int, values: dict[str, Any], base: Path, outputs: Sequence[Path]
) -> Iterator[_Entry]:
    text = values["path"]
    if not _MAGIC.search(text) or os.path.exists(base / text):
        spelled = os.path.abspath(base / text)
        if os.path.basename(text.rstrip("/")) in (".", "..", ""):
            spelled = os.path.realpath(spelled)  # ".." means another folder behind a link
        yield _Entry(index, spelled, _real(base / text), values, matched=False)
        return
    if "name" in values:
        raise document.error(
            ("models", index, "name"),
            f"a pattern cannot give one name to all that {text!r} matches",
            "remove the name: every model is called after its folder",
        )
    found = [os.path.join(base, match) for match in _matches(text, base)]
    folders = sorted(os.path.normpath(path) for path in found if _is_model(path, outputs))
    if not folders:
        others = f"the {len(found)} that it matches hold no {' or '.join(_MARKS)}"
        raise document.error(
            ("models", index, "path"),
            f"{text!r} matches no model folder",
            "correct the pattern; relative ones count from the folder of this file",
            why=others if found else f"nothing in {base} is called so",
        )
    for path in folders:
        yield _Entry(index, path, _real(path), values, matched=True)


def _matches(text: str, base: Path) -> list[str]:
    """What a pattern matches; nothing if it is no regular one, such as ``[]``."""
    import glob

    try:
        return glob.glob(text, root_dir=base, recursive=True)
    except re.error:
        return []


def _is_model(path: str, outputs: Sequence[Path]) -> bool:
    if not any(os.path.lexists(os.path.join(path, mark)) for mark in _MARKS):
        return False
    real = _real(path)
    return not any(folder == real or folder in real.parents for folder in outputs)


def _real(path: str | Path) -> Path:
    return Path(os.path.realpath(path))


def _merged(entries: Sequence[_Entry]) -> Iterator[_Entry]:
    """One entry per model, in the order of the file, with what patterns say about it."""
    said: dict[Path, dict[str, Any]] = {}
    own = {entry.folder for entry in entries if not entry.matched}
    last: dict[Path, _Entry] = {}
    for entry in entries:
        if entry.matched:
            said[entry.folder] = {**said.get(entry.folder, {}), **entry.values}
            last[entry.folder] = entry
    for entry in entries:
        if not entry.matched:
            values = {**said.get(entry.folder, {}), **entry.values}
            yield _Entry(entry.index, entry.spelled, entry.folder, values, matched=False)
        elif entry.folder not in own and entry.folder in last:
            final = last.pop(entry.folder)
            yield _Entry(final.index, entry.spelled, entry.folder, said[entry.folder], matched=True)


def _model(
    document: Document, entry: _Entry, defaults: dict[str, Any], targets: tuple[Target, ...]
) -> tuple[int, Model]:
    """The model of an entry, and the entry's index."""
    values = {**defaults, **entry.values}
    wanted = values.get("targets")
    name = values.get("name") or os.path.basename(entry.spelled)
    if not re.search(_name_pattern(), name) or len(name) > 64:
        raise document.error(
            ("models", entry.index, "path"),
            f"the folder's name {name!r} cannot be the model's",
            f"give this folder an entry with a 'name' of its own: path: {entry.spelled}"
            if entry.matched
            else "add a 'name'",
            why=_NAME_RULE,
        )
    if name.casefold() in _TAKEN:
        raise document.error(
            ("models", entry.index), f"a file of a run is called {name!r}", "choose another 'name'"
        )
    return entry.index, Model(
        name=name,
        path=entry.folder,
        chunk_sizes=tuple(int(c) for c in values.get("chunk_sizes", _CHUNK_SIZES)),
        targets=tuple(t for t in targets if wanted is None or t.name in wanted),
        where=document.where(("models", entry.index)),
    )


def _name_pattern() -> str:
    pattern: str = schema("pipeline")["$defs"]["name"]["pattern"]
    return pattern.removesuffix("$") + r"\Z"


def _refuse_twins(document: Document, models: Sequence[tuple[int, Model]]) -> None:
    """Refuse two names that are one on a file system that ignores letter case."""
    first: dict[str, tuple[int, Model]] = {}
    for index, model in models:
        earlier, other = first.setdefault(model.name.casefold(), (index, model))
        if other is not model:
            raise document.error(
                ("models", index),
                f"the name {model.name!r} is already taken by models[{earlier}] "
                f"({document.where(('models', earlier))})",
                "rename one of them",
                why=f"the folders are {other.path} and {model.path}",
            )


def _check_targets(
    document: Document,
    path: tuple[str | int, ...],
    section: dict[str, Any],
    by_name: dict[str, Target],
) -> None:
    for i, name in enumerate(section.get("targets", ())):
        if name not in by_name:
            raise document.error(
                (*path, "targets", i),
                f"there is no target {name!r}",
                did_you_mean(name, by_name, "targets"),
            )
