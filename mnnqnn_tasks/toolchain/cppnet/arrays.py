"""Arrays of a source: millions of numbers in braces, for the scales of a vocabulary."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from mnnqnn_tasks.errors import SourceFileError
from mnnqnn_tasks.qnn.floats import f32_tuple
from mnnqnn_tasks.toolchain.cppnet.scan import (
    FLOAT,
    GAP,
    IDENT,
    INT,
    STRING,
    Scanner,
    unquoted,
)

#: Elements that are converted at once: their texts take far more memory than their values.
_AT_ONCE = 1 << 14

#: Least and most of every integer type that a source uses.
RANGES = {
    "uint8_t": (0, (1 << 8) - 1),
    "uint16_t": (0, (1 << 16) - 1),
    "uint32_t": (0, (1 << 32) - 1),
    "int32_t": (-(1 << 31), (1 << 31) - 1),
}

#: Patterns in sequence, each with its name in an error.
Parts = tuple[tuple[bytes, str], ...]
#: Elements as columns: one, but for pairs two.
Columns = tuple[tuple[Any, ...], ...]
#: Turns the captured texts of elements into columns; a ValueError says what was expected.
Convert = Callable[[Sequence[Any]], Columns]


def integers(ctype: str) -> Convert:
    """Converts integer literals that fit ``ctype``."""
    low, high = RANGES[ctype]

    def convert(found: Sequence[bytes]) -> Columns:
        values = tuple(map(int, found))
        if values and not (low <= min(values) and max(values) <= high):
            raise ValueError(f"a number between {low} and {high}")
        return (values,)

    return convert


def floats(found: Sequence[bytes]) -> Columns:
    """Converts floating point literals, rounded to float32."""
    values = f32_tuple(tuple(map(float, found)))
    if values and math.isinf(max(map(abs, values))):
        raise ValueError("a number that float32 can hold")
    return (values,)


def _pairs(found: Sequence[tuple[bytes, bytes]]) -> Columns:
    scales, offsets = zip(*found, strict=True) if found else ((), ())
    return (*floats(scales), *integers("int32_t")(offsets))


def _names(found: Sequence[bytes]) -> Columns:
    return (tuple(name.decode() for name in found),)


def _texts(found: Sequence[bytes]) -> Columns:
    return (tuple(map(unquoted, found)),)


#: What a pair of scale and offset consists of; MNN names the two fields.
_PAIR = (
    (rb"\{", "{"),
    (rb"(?:\.scale%s=)?+" % GAP, ".scale ="),
    (FLOAT, "a finite decimal number"),
    (rb",", ","),
    (rb"(?:\.offset%s=)?+" % GAP, ".offset ="),
    (rb"(%s)" % INT, "an integer"),
    (rb"\}", "}"),
)

#: C++ type -> the parts of an element with their names in errors, and the conversion.
ELEMENTS: dict[str, tuple[Parts, Convert]] = {
    **{name: (((rb"(%s)" % INT, "an integer"),), integers(name)) for name in RANGES},
    "float": (((FLOAT, "a finite decimal number"),), floats),
    "Qnn_ScaleOffset_t": (_PAIR, _pairs),
    "Qnn_Param_t": (((rb"(%s)" % IDENT, "a parameter's name"),), _names),
    "Qnn_Tensor_t": (((rb"(%s)" % IDENT, "a tensor's name"),), _names),
    "const char *": (((STRING, "a string"),), _texts),
}


class _List:
    """``{a, b, c}``; a comma after the last element is allowed."""

    def __init__(self, parts: Parts, convert: Convert) -> None:
        element = GAP.join(pattern for pattern, _ in parts)
        self._parts = [(re.compile(pattern), expected) for pattern, expected in parts]
        self._convert = convert
        self._open, self._close = re.compile(rb"\{"), re.compile(rb"\}")
        with_comma = rb"%s%s,%s" % (element, GAP, GAP)
        self._some = re.compile(rb"(?:%s){1,%d}+" % (_uncaptured(with_comma), _AT_ONCE))
        self._one = re.compile(_uncaptured(element))
        self._each = re.compile(rb"%s%s,?+%s" % (element, GAP, GAP))

    def read(self, scanner: Scanner) -> Columns:
        scanner.take(self._open, "{")
        made = [self._convert([])]
        start = scanner.skip()
        while scanner.accept(self._some):
            made.append(self._converted(scanner, start))
            start = scanner.pos
        if scanner.accept(self._one):
            made.append(self._converted(scanner, start))
            scanner.take(self._close, ", or }")
        elif not scanner.accept(self._close):
            raise self._broken(scanner)
        columns = zip(*made, strict=True)
        return tuple(tuple(itertools.chain.from_iterable(column)) for column in columns)

    def _converted(self, scanner: Scanner, start: int) -> Columns:
        """The elements from ``start`` on to where the scanner is."""
        try:
            return self._convert(self._each.findall(scanner.data, start, scanner.pos))
        except ValueError as error:
            expected = str(error)
        for found in self._each.finditer(scanner.data, start, scanner.pos):
            groups = found.groups()
            try:
                self._convert([groups[0] if len(groups) == 1 else groups])
            except ValueError:
                scanner.pos = found.start()
                break
        raise scanner.unexpected(expected)

    def _broken(self, scanner: Scanner) -> SourceFileError:
        """The error for the first part of an element that is not what it should be."""
        first, *rest = self._parts
        if not scanner.accept(first[0]):
            return scanner.unexpected(f"{first[1]} or }}")
        for pattern, expected in rest:
            if not scanner.accept(pattern):
                return scanner.unexpected(expected)
        return scanner.unexpected(", or }")


def _uncaptured(pattern: bytes) -> bytes:
    return re.sub(rb"(?<!\\)\((?!\?)", b"(?:", pattern)


_LISTS = {ctype: _List(*row) for ctype, row in ELEMENTS.items()}


def read_array(scanner: Scanner, ctype: str) -> tuple[Any, ...]:
    """The elements between braces of an array of ``ctype``; of pairs, the two columns.

    Raises:
        SourceFileError: other elements, or numbers that do not fit the type.
    """
    columns = _LISTS[ctype].read(scanner)
    return columns if len(columns) > 1 else columns[0]
