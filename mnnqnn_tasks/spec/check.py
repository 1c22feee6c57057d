"""Checks a value against a JSON Schema, cheaply and in a user's words.

Only the keywords that our own schemas for input files use are known, with the meaning
that JSON Schema 2020-12 gives them (https://json-schema.org/draft/2020-12); a test
compares the verdicts with those of the ``jsonschema`` package.  That package itself
takes three times as long to import as everything else that a run with nothing to do
needs, and its messages speak of keywords rather than of the user's file.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mnnqnn_tasks.spec.schemas import schema

Path = tuple[str | int, ...]

#: Keywords that describe and do not restrict.
ANNOTATIONS = frozenset({"$schema", "$id", "$defs", "title", "description", "default", "examples"})


#: Longer lists of names are no help in a message.
_MANY = 20


@dataclass(frozen=True)
class Violation:
    """What is wrong with a value.

    Attributes:
        path: keys and indices from the root to the offender.
        what: what is wrong, one sentence.
        todo: what to write instead.
        about: what the schema says about the place.
        at_key: the trouble is the key itself rather than the value behind it.
    """

    path: Path
    what: str
    todo: str | None = None
    about: str | None = None
    at_key: bool = False


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_integer(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


_TYPES: dict[str, tuple[str, Callable[[object], bool]]] = {
    "object": ("a mapping", lambda v: isinstance(v, dict)),
    "array": ("a list", lambda v: isinstance(v, list)),
    "string": ("text", lambda v: isinstance(v, str)),
    "integer": ("a whole number", _is_integer),
    "number": ("a number", lambda v: isinstance(v, int | float) and not isinstance(v, bool)),
    "boolean": ("true or false", lambda v: isinstance(v, bool)),
    "null": ("nothing", lambda v: v is None),
}


def describe(value: object) -> str:
    """What a value is, for a message: ``the text 'abc'``, ``a list``."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    kind = {bool: "the truth value", int: "the number", float: "the number", str: "the text"}
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    if len(text) > 60:
        text = text[:57] + "..."
    return f"{kind.get(type(value), type(value).__name__)} {text}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` was most likely meant to be, if any is near."""
    by_fold = {k.casefold(): k for k in known}
    found = difflib.get_close_matches(name.casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str], kind: str) -> str:
    """Advice for an unknown name: the nearest one, and the others if they are few."""
    names = list(known)
    near = nearest(name, names)
    question = f"did you mean {near!r}?" if near else ""
    listing = f"{kind}: {', '.join(names)}" if len(names) <= _MANY else ""
    return " ".join(filter(None, [question, listing])) or f"there are {len(names)} {kind}"


Rule = Callable[[Any, Any, dict[str, Any], "Checker", Path], Iterator[Violation]]


class Checker:
    """Checks values against one schema document; ``root`` resolves its own ``$ref``."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root

    def check(self, value: object, schema: dict[str, Any], path: Path = ()) -> Iterator[Violation]:
        """Every violation in document order; none means valid.

        Raises:
            KeyError: when the schema uses a keyword that this module does not know.
        """
        for keyword, argument in schema.items():
            if keyword not in ANNOTATIONS:
                yield from RULES[keyword](value, argument, schema, self, path)

    def follow(self, ref: str) -> tuple[Checker, dict[str, Any]]:
        """The schema behind a reference, and the checker of the document that it is in.

        Args:
            ref: ``#/$defs/name``, or ``FILE.schema.json#/$defs/name`` for another of our files.
        """
        file, _, place = ref.partition("#/")
        there = Checker(schema(file.removesuffix(".schema.json"))) if file else self
        return there, functools.reduce(lambda node, key: node[key], place.split("/"), there.root)


def _about(schema: dict[str, Any]) -> str | None:
    return schema.get("description")


def _type(value: Any, kind: Any, schema: dict[str, Any], _: Checker, path: Path) -> Any:
    word, test = _TYPES[kind]
    if not test(value):
        quoted = kind == "string" and not isinstance(value, dict | list | None)
        helps = quoted and re.search(_end_anchored(schema.get("pattern", "")), str(value))
        todo = "put it in quotes" if helps else None
        what = f"must be {word}, not {describe(value)}"
        yield Violation(path, what, todo, _about(schema))


def _const(value: Any, wanted: Any, schema: dict[str, Any], _: Checker, path: Path) -> Any:
    if value != wanted or _is_bool(value) != _is_bool(wanted):
        yield Violation(path, f"must be {wanted!r}, not {describe(value)}", about=_about(schema))


def _enum(value: Any, allowed: Any, schema: dict[str, Any], _: Checker, path: Path) -> Any:
    if not any(value == a and _is_bool(value) == _is_bool(a) for a in allowed):
        todo = did_you_mean(value, allowed, "values") if isinstance(value, str) else None
        words = " or ".join(map(str, allowed))
        yield Violation(path, f"must be {words}, not {describe(value)}", todo, _about(schema))


def _minimum(value: Any, bound: Any, schema: dict[str, Any], _: Checker, path: Path) -> Any:
    if _TYPES["number"][1](value) and value < bound:
        yield Violation(
            path, f"must be at least {bound}, not {describe(value)}", about=_about(schema)
        )


def _maximum(value: Any, bound: Any, schema: dict[str, Any], _: Checker, path: Path) -> Any:
    if _TYPES["number"][1](value) and value > bound:
        yield Violation(
            path, f"must be at most {bound}, not {describe(value)}", about=_about(schema)
        )


def _min_length(value: Any, bound: Any, schema: dict[str, Any], _: Checker, path: Path) -> Any:
    if isinstance(value, str) and len(value) < bound:
        yield Violation(path, "must not be empty", about=_about(schema))


def _max_length(value: Any, bound: Any, schema: dict[str, Any], _: Checker, path: Path) -> Any:
    if isinstance(value, str) and len(value) > bound:
        what = f"must have at most {bound} characters, not {len(value)}"
        yield Violation(path, what, about=_about(schema))


def _pattern(value: Any, pattern: Any, schema: dict[str, Any], _: Checker, path: Path) -> Any:
    # JSON Schema's "$" is the end of the text; Python's also matches before a last newline.
    if isinstance(value, str) and not re.search(_end_anchored(pattern), value):
        yield Violation(path, f"{describe(value)} is not allowed here", about=_about(schema))


@functools.cache
def _end_anchored(pattern: str) -> str:
    return pattern[:-1] + r"\Z" if pattern.endswith("$") else pattern


def _min_items(value: Any, bound: Any, schema: dict[str, Any], _: Checker, path: Path) -> Any:
    if isinstance(value, list) and len(value) < bound:
        yield Violation(path, "the list must not be empty", about=_about(schema))


def _unique(value: Any, wanted: Any, schema: dict[str, Any], _: Checker, path: Path) -> Any:
    if not wanted or not isinstance(value, list):
        return
    for i, item in enumerate(value):
        if any(item == other and _is_bool(item) == _is_bool(other) for other in value[:i]):
            yield Violation((*path, i), f"{describe(item)} is in the list twice", "remove one")


def _items(value: Any, schema: Any, _: dict[str, Any], checker: Checker, path: Path) -> Any:
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from checker.check(item, schema, (*path, i))


def _properties(value: Any, table: Any, _: dict[str, Any], checker: Checker, path: Path) -> Any:
    if isinstance(value, dict):
        for key in value:
            if key in table:
                yield from checker.check(value[key], table[key], (*path, key))


def _required(value: Any, keys: Any, _: dict[str, Any], __: Checker, path: Path) -> Any:
    if isinstance(value, dict):
        for key in keys:
            if key not in value:
                yield Violation(path, f"the key {key!r} is missing", f"add {key!r}")


def _additional(value: Any, allowed: Any, schema: Any, __: Checker, path: Path) -> Any:
    if allowed or not isinstance(value, dict):
        return
    known = schema.get("properties", {})
    for key in value:
        if key not in known:
            yield Violation(
                (*path, key), "unknown key", did_you_mean(key, known, "known keys"), at_key=True
            )


def _ref(value: Any, ref: Any, schema: Any, checker: Checker, path: Path) -> Any:
    there, found = checker.follow(ref)
    yield from there.check(value, found, path)


#: Keyword to rule.
RULES: dict[str, Rule] = {
    "type": _type,
    "const": _const,
    "enum": _enum,
    "minimum": _minimum,
    "maximum": _maximum,
    "minLength": _min_length,
    "maxLength": _max_length,
    "pattern": _pattern,
    "minItems": _min_items,
    "uniqueItems": _unique,
    "items": _items,
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "$ref": _ref,
}


def violations(value: object, schema: dict[str, Any]) -> Iterator[Violation]:
    """Every violation of ``schema`` by ``value``, a tree of plain JSON values."""
    return Checker(schema).check(value, schema)
