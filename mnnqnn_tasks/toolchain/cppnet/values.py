"""Right-hand sides of a source: arrays and the values of fields, checked as they are read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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

#: Least and most of every integer type that a source uses.
RANGES = {
    "uint8_t": (0, (1 << 8) - 1),
    "uint16_t": (0, (1 << 16) - 1),
    "uint32_t": (0, (1 << 32) - 1),
    "int32_t": (-(1 << 31), (1 << 31) - 1),
}


@dataclass
class Item:
    """Something declared.

    Attributes:
        ctype: its C++ type; of an array, that of its elements.
        symbol: its name.
        pos: where it is declared.
        values: the elements of an array; of scale-offset pairs, the scales and the offsets.
        fields: what was assigned to a struct's fields, and where.
        used: whether something took its value; then nothing may be assigned any more.
    """

    ctype: str
    symbol: str
    pos: int
    is_array: bool
    values: tuple[Any, ...] = ()
    fields: dict[str, tuple[Any, int]] = field(default_factory=dict)
    used: bool = False


Symbols = dict[str, Item]
#: Patterns in sequence, each with its name in an error.
Parts = tuple[tuple[bytes, str], ...]


def _integers(ctype: str) -> Callable[[Sequence[bytes]], tuple[int, ...]]:
    low, high = RANGES[ctype]

    def convert(found: Sequence[bytes]) -> tuple[int, ...]:
        values = tuple(map(int, found))
        if values and not (low <= min(values) and max(values) <= high):
            raise ValueError(f"a number between {low} and {high}")
        return values

    return convert


def _floats(found: Sequence[bytes]) -> tuple[float, ...]:
    values = f32_tuple(tuple(map(float, found)))
    if values and math.isinf(max(map(abs, values))):
        raise ValueError("a number that float32 can hold")
    return values


def _pairs(found: Sequence[tuple[bytes, bytes]]) -> tuple[Any, ...]:
    scales, offsets = zip(*found, strict=True) if found else ((), ())
    return _floats(scales), _integers("int32_t")(offsets)


def _names(found: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(name.decode() for name in found)


def _texts(found: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(map(unquoted, found))


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

#: C++ type -> the parts of an element with their names in errors, and the conversion of all.
ELEMENTS: dict[str, tuple[Parts, Callable[[Any], tuple[Any, ...]]]] = {
    **{name: (((rb"(%s)" % INT, "an integer"),), _integers(name)) for name in RANGES},
    "float": (((FLOAT, "a finite decimal number"),), _floats),
    "Qnn_ScaleOffset_t": (_PAIR, _pairs),
    "Qnn_Param_t": (((rb"(%s)" % IDENT, "a parameter's name"),), _names),
    "Qnn_Tensor_t": (((rb"(%s)" % IDENT, "a tensor's name"),), _names),
    "const char *": (((STRING, "a string"),), _texts),
}


class _List:
    """``{a, b, c}``; a comma after the last element is allowed."""

    def __init__(self, parts: Parts, convert: Callable[[Any], tuple[Any, ...]]) -> None:
        element = GAP.join(pattern for pattern, _ in parts)
        self._parts = [(re.compile(pattern), expected) for pattern, expected in parts]
        self._convert = convert
        self._open = re.compile(rb"\{")
        self._many = re.compile(rb"(?:%s%s,%s)*+" % (_uncaptured(element), GAP, GAP))
        self._one = re.compile(element)
        self._each = re.compile(rb"%s%s,?+%s" % (element, GAP, GAP))
        self._close = re.compile(rb"\}")

    def read(self, scanner: Scanner) -> tuple[Any, ...]:
        scanner.take(self._open, "{")
        start = scanner.skip()
        scanner.accept(self._many)
        last = scanner.accept(self._one)
        end = scanner.skip()
        if last is None and scanner.data[end : end + 1] != b"}":
            raise self._broken(scanner)
        scanner.take(self._close, ", or }")
        found = self._each.findall(scanner.data, start, end)
        try:
            return self._convert(found)
        except ValueError as error:
            raise self._misfit(scanner, start, end, str(error)) from None

    def _broken(self, scanner: Scanner) -> SourceFileError:
        """The error for the first part of an element that is not what it should be."""
        first, *rest = self._parts
        if not scanner.accept(first[0]):
            return scanner.unexpected(f"{first[1]} or }}")
        for pattern, expected in rest:
            if not scanner.accept(pattern):
                return scanner.unexpected(expected)
        return scanner.unexpected(", or }")

    def _misfit(self, scanner: Scanner, start: int, end: int, expected: str) -> SourceFileError:
        """The error for the first element that cannot be converted."""
        for found in self._each.finditer(scanner.data, start, end):
            groups = found.groups()
            try:
                self._convert([groups[0] if len(groups) == 1 else groups])
            except ValueError:
                scanner.pos = found.start()
                break
        return scanner.unexpected(expected)


def _uncaptured(pattern: bytes) -> bytes:
    return re.sub(rb"(?<!\\)\((?!\?)", b"(?:", pattern)


_LISTS = {ctype: _List(*row) for ctype, row in ELEMENTS.items()}


def read_array(scanner: Scanner, ctype: str) -> tuple[Any, ...]:
    """The elements between braces of an array of ``ctype``.

    Raises:
        SourceFileError: other elements, or numbers that do not fit the type.
    """
    return _LISTS[ctype].read(scanner)


#: Reads the value of a field; `Symbols` are those declared so far.
Reader = Callable[[Scanner, Symbols], Any]

_INTEGER = re.compile(INT)
_NUMBER = re.compile(FLOAT)
_TEXT = re.compile(STRING)
_NAME = re.compile(IDENT)
_NULL = re.compile(rb"nullptr(?!\w)")


def take_integer(scanner: Scanner, ctype: str) -> int:
    """An integer literal that fits ``ctype``."""
    low, high = RANGES[ctype]
    at = scanner.skip()
    value = int(scanner.take(_INTEGER, "an integer")[0])
    if not low <= value <= high:
        scanner.pos = at
        raise scanner.unexpected(f"a number between {low} and {high}")
    return value


def take_float(scanner: Scanner) -> float:
    """A floating point literal, rounded to float32."""
    at = scanner.skip()
    found = scanner.take(_NUMBER, "a finite decimal number")
    try:
        return _floats([found[1]])[0]
    except ValueError as error:
        scanner.pos = at
        raise scanner.unexpected(str(error)) from None


def take_text(scanner: Scanner) -> str:
    """A string literal that is not empty and holds no zero byte."""
    at = scanner.skip()
    text = unquoted(scanner.take(_TEXT, "a string")[1])
    if not text or "\0" in text:
        scanner.pos = at
        raise scanner.unexpected("a name")
    return text


def take_name(scanner: Scanner, expected: str = "a name") -> str:
    """An identifier."""
    return scanner.take(_NAME, expected)[0].decode()


def take_item(scanner: Scanner, symbols: Symbols, ctype: str, is_array: bool) -> Item:
    """What an identifier stands for, which must be of this type and gets used by this."""
    at = scanner.skip()
    item = symbols.get(take_name(scanner))
    if item is None or (item.ctype, item.is_array) != (ctype, is_array):
        scanner.pos = at
        kind = f"an array of {ctype}" if is_array else f"a {ctype}"
        raise scanner.unexpected(f"the name of {kind} declared above")
    item.used = True
    return item


def accept_null(scanner: Scanner) -> bool:
    """Go over ``nullptr`` if it comes next."""
    return scanner.accept(_NULL) is not None


def integer(ctype: str) -> Reader:
    """Reads an integer literal that fits ``ctype``."""
    return lambda scanner, _symbols: take_integer(scanner, ctype)


def number(scanner: Scanner, _symbols: Symbols) -> float:
    """Reads a floating point literal."""
    return take_float(scanner)


def text(scanner: Scanner, _symbols: Symbols) -> str:
    """Reads a string literal."""
    return take_text(scanner)


def word(prefix: str, among: Sequence[str]) -> Reader:
    """Reads one of QNN's constants ``prefix + name``; the value is the name."""
    pattern = re.compile(rb"%s(%s)(?!\w)" % (prefix.encode(), "|".join(among).encode()))
    expected = f"{prefix}{among[0]}" if len(among) == 1 else f"{prefix}... as QNN has it"

    def read(scanner: Scanner, _symbols: Symbols) -> str:
        return scanner.take(pattern, expected)[1].decode()

    return read


def zero(scanner: Scanner, _symbols: Symbols) -> int:
    """Reads ``0``."""
    at = scanner.skip()
    if take_integer(scanner, "int32_t") != 0:
        scanner.pos = at
        raise scanner.unexpected("0")
    return 0


def array(ctype: str) -> Reader:
    """Reads the name of an array of ``ctype``."""
    return lambda scanner, symbols: take_item(scanner, symbols, ctype, True)


def struct(ctype: str, before: str = "") -> Reader:
    """Reads the name of a struct, perhaps after ``&``."""
    sign = re.compile(re.escape(before).encode())

    def read(scanner: Scanner, symbols: Symbols) -> Item:
        scanner.take(sign, before)
        return take_item(scanner, symbols, ctype, False)

    return read
