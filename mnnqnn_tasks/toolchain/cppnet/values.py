"""What is declared, and the values of fields, checked as they are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mnnqnn_tasks.toolchain.cppnet.arrays import RANGES, floats
from mnnqnn_tasks.toolchain.cppnet.scan import FLOAT, IDENT, INT, STRING, Scanner, unquoted


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
        return float(floats([found[1]])[0][0])
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
