"""Reads a YAML file into plain JSON values and remembers where each one stood.

The dialect is YAML 1.1 as PyYAML's safe loader reads it, less what JSON cannot hold:
dates stay text, and sets, binary data, infinities and keys that are not text are
refused, as are duplicate keys and anchors that would expand beyond reason.
"""

from __future__ import annotations

import math
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mnnqnn_tasks.errors import PipelineError
from mnnqnn_tasks.spec.check import Path as KeyPath
from mnnqnn_tasks.spec.check import describe

_MAX_BYTES = 1 << 20
_MAX_VALUES = 100_000
_MAX_DEPTH = 100
_MERGE = "tag:yaml.org,2002:merge"

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """The safe loader without dates."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in pairs if tag != "tag:yaml.org,2002:timestamp"]
    for first, pairs in _Base.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True)
class Document:
    """A YAML file's value and the node tree that knows its lines.

    Attributes:
        file: the file as the caller named it.
        value: dicts with text keys, lists, text, finite numbers, booleans, ``None``.
    """

    file: str
    value: Any
    node: yaml.Node

    def where(self, path: KeyPath, *, at_key: bool = False) -> str:
        """``file:line:column`` of the value at ``path``, or of its key."""
        node = self.node
        for i, step in enumerate(path):
            if isinstance(step, int):
                node = node.value[step]
                continue
            # Merged keys come first, so that the last one is the one that counts.
            pairs = [(k, v) for k, v in node.value if k.value == step]
            if not pairs:
                break
            key, child = pairs[-1]
            node = key if at_key and i == len(path) - 1 else child
        return f"{self.file}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def error(
        self,
        path: KeyPath,
        what: str,
        todo: str | None = None,
        *,
        why: str | None = None,
        at_key: bool = False,
    ) -> PipelineError:
        """An error about the value at ``path`` that names file, line, column and keys."""
        text = key_text(path)
        return PipelineError(
            f"{text}: {what}" if text else what,
            where=self.where(path, at_key=at_key),
            why=why,
            todo=todo,
        )


def key_text(path: KeyPath) -> str:
    """``models[0].path`` for ``("models", 0, "path")``."""
    steps = (f"[{s}]" if isinstance(s, int) else f".{s}" for s in path)
    return "".join(steps).removeprefix(".")


def read(path: Path) -> Document:
    """Read the YAML file at ``path``.

    Raises:
        PipelineError: when the file is missing, unreadable, too large, not UTF-8, not
            YAML, has more than one document, a duplicate key or a value that JSON
            cannot hold; with file, line and column where there is one.
    """
    file = str(path)
    text = _text(path, file)
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise PipelineError("the file is empty", where=file, todo="see README.md")
            document = Document(file, None, node)
            _refuse_duplicates(document)
            value = loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise _syntax(error, file, text) from error
    except (ValueError, RecursionError, OverflowError) as error:
        # A number of many thousand digits, or values nested a thousand levels deep.
        raise PipelineError("a value is out of bounds", where=file, why=str(error)) from error
    document = Document(file, value, node)
    _refuse_foreign(document)
    return document


def _text(path: Path, file: str) -> str:
    todo = "check the path of the pipeline file"
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise PipelineError("not a file", where=file, todo=todo)
        if info.st_size > _MAX_BYTES:
            raise PipelineError("too large for a pipeline", where=file, why="over 1 MiB")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise PipelineError("cannot read the pipeline", where=file, why=why, todo=todo) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PipelineError(
            "the file is not UTF-8 text", where=f"{file}:{line}", todo="save it as UTF-8"
        ) from error


def _syntax(error: yaml.YAMLError, file: str, text: str) -> PipelineError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
    position = getattr(error, "position", None)  # of a character that YAML does not allow
    if mark is None and isinstance(position, int):
        where = f"{file}:{text.encode()[:position].count(10) + 1}"
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    context = getattr(error, "context", None)
    why = f"{problem} ({context})" if context else str(problem)
    return PipelineError("not readable as YAML", where=where, why=why, todo="correct the syntax")


def _refuse_duplicates(document: Document) -> None:
    """Refuse a key that stands twice; PyYAML would keep the last one silently."""
    seen: set[int] = set()
    stack: list[tuple[yaml.Node, KeyPath]] = [(document.node, ())]
    while stack:
        node, path = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys: dict[str, yaml.Node] = {}
            for key, child in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise document.error(path, "a key must be text")
                if key.value in keys and key.tag != _MERGE:
                    line = keys[key.value].start_mark.line + 1
                    mark = key.start_mark
                    raise PipelineError(
                        f"{key_text((*path, key.value))}: the key is already on line {line}",
                        where=f"{document.file}:{mark.line + 1}:{mark.column + 1}",
                        todo="remove one of the two",
                    )
                keys[key.value] = key
                stack.append((child, (*path, key.value)))
        elif isinstance(node, yaml.SequenceNode):
            stack += [(child, (*path, i)) for i, child in enumerate(node.value)]


def _refuse_foreign(document: Document) -> None:
    """Refuse what JSON cannot hold, and anchors that expand without measure."""
    count = 0
    stack: list[tuple[Any, KeyPath]] = [(document.value, ())]
    while stack:
        value, path = stack.pop()
        count += 1
        if count > _MAX_VALUES or len(path) > _MAX_DEPTH:
            raise PipelineError(
                "too many values or too deeply nested",
                where=document.file,
                why="an anchor that contains itself or is repeated very often looks like this",
            )
        if isinstance(value, dict):
            for key, child in value.items():
                if not isinstance(key, str):
                    raise document.error(
                        path, f"a key must be text, not {describe(key)}", "put it in quotes"
                    )
                stack.append((child, (*path, key)))
        elif isinstance(value, list):
            stack += [(child, (*path, i)) for i, child in enumerate(value)]
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise document.error(path, "infinity and not-a-number are not allowed")
        elif isinstance(value, str):
            if any("\ud800" <= c <= "\udfff" for c in value):
                raise document.error(path, "half of a surrogate pair is not text")
        elif not isinstance(value, bool | int | None):
            raise document.error(path, f"a value of type {type(value).__name__} is not allowed")
