"""Reading a source from left to right: tokens, and what to say where one does not fit.

Only the C++ that graph sources are made of: no suffixes, no octal or hexadecimal numbers,
no continued lines.  Patterns are possessive throughout, so that no text, however damaged,
costs more than one look at every byte.
"""

from __future__ import annotations

import re
from re import Match, Pattern

from mnnqnn_tasks.errors import SourceFileError

#: Space and comments.  A comment that ends in a backslash would swallow the next line in
#: C++, so it is none here.
GAP = rb"(?:[ \t\r\n\f\v]++|//[^\n\\]*+(?:\n|\Z)|/\*(?s:.*?)\*/)*+"

#: Names and strings end somewhere: what is longer than this is none.
IDENT = rb"[A-Za-z_]\w{0,999}+(?!\w)"
INT = rb"-?(?:0|[1-9][0-9]{0,9})(?![\w.])"
#: The number without its suffix is group 1.
FLOAT = rb"(-?[0-9]{1,40}\.[0-9]{1,20}(?:e[+-][0-9]{1,3})?)f?(?![\w.])"
#: What lies between the quotes is group 1: printable ASCII and octal escapes.
STRING = rb'"((?:[ !#-\[\]-~]|\\[0-3][0-7]{2}){0,1000}+)"'

_GAP = re.compile(GAP)
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")
#: What an error shows of the text that it met.
_SHOWN = re.compile(rb'"[^"\n]*+"?|[\w.+-]++|\S')
_SHOWN_LENGTH = 48
#: Names come from the source and may be as long as it.
_LONGEST_WHY = 400
_TOKEN = re.compile(rb'#[^\n]*|"[^"]*"|\{\w+\}|\w+|::|\S')

TODO = "the source is cut off or was changed: have compilefornpu write it again"


class Scanner:
    """A position in a source.

    Args:
        data: the whole source.
        where: its file, for errors.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self.where = where
        self.pos = 0

    def skip(self) -> int:
        """Go over space and comments; gives the position after them."""
        found = _GAP.match(self.data, self.pos)
        assert found is not None  # the gap may be empty
        self.pos = found.end()
        return self.pos

    def accept(self, pattern: Pattern[bytes]) -> Match[bytes] | None:
        """Go over ``pattern`` if it comes next."""
        found = pattern.match(self.data, self.skip())
        if found is not None:
            self.pos = found.end()
        return found

    def take(self, pattern: Pattern[bytes], expected: str) -> Match[bytes]:
        """Go over ``pattern``.

        Raises:
            SourceFileError: something else stands there.
        """
        found = self.accept(pattern)
        if found is None:
            raise self.unexpected(expected)
        return found

    def unexpected(self, expected: str) -> SourceFileError:
        """The error for text that is not what the form has there."""
        at = self.skip()
        found = _SHOWN.match(self.data, at)
        text = b"" if found is None else found[0]
        shown = text[:_SHOWN_LENGTH].decode("ascii", "backslashreplace")
        dots = "..." if len(text) > _SHOWN_LENGTH else ""
        met = f"found {shown}{dots}" if text else "the file ends here"
        return self.wrong(f"expected {expected}, {met}", at)

    def wrong(self, why: str, pos: int, todo: str = TODO) -> SourceFileError:
        """The error for what stands at ``pos``."""
        line = self.data.count(b"\n", 0, pos) + 1
        if len(why) > _LONGEST_WHY:
            why = f"{why[:_LONGEST_WHY]}..."
        return SourceFileError(
            "not a graph source of the form that MNN's compilefornpu writes",
            where=f"{self.where}:{line}",
            why=why,
            todo=todo,
        )


def unquoted(inner: bytes) -> str:
    """The text of a string literal, given what lies between the quotes."""
    plain = _ESCAPE.sub(lambda found: bytes((int(found[1], 8),)), inner)
    return plain.decode("utf-8", "surrogateescape")


class Template:
    """Fixed text with named holes, compared token by token.

    ``{name}`` in the text stands for a string literal where ``name`` ends in ``_text``, for
    an identifier otherwise; the same hole twice stands for the same text.  A preprocessor
    line is one token, with its end of line.
    """

    def __init__(self, text: str) -> None:
        self._tokens = [_token(found[0]) for found in _TOKEN.finditer(text.encode())]

    def match(self, scanner: Scanner, **known: bytes) -> dict[str, bytes]:
        """Go over the text; gives what stands in the holes.

        Raises:
            SourceFileError: the text differs.
        """
        holes = dict(known)
        for pattern, expected, hole in self._tokens:
            if hole is None:
                scanner.take(pattern, expected)
                continue
            at = scanner.skip()
            if hole in holes:
                expected = holes[hole][:_SHOWN_LENGTH].decode("ascii", "backslashreplace")
            text = scanner.take(pattern, expected)[0]
            if holes.setdefault(hole, text) != text:
                scanner.pos = at
                raise scanner.unexpected(expected)
        return holes


def _token(text: bytes) -> tuple[Pattern[bytes], str, str | None]:
    """Pattern, its name in an error, and the hole that it fills."""
    shown = text.decode()
    if text.startswith(b"#"):
        return re.compile(re.escape(text.rstrip()) + rb"[ \t]*\r?\n"), shown, None
    if text.startswith(b"{") and len(text) > 1:
        hole = shown[1:-1]
        is_text = hole.endswith("_text")
        kind = STRING if is_text else IDENT
        return re.compile(kind), "a string" if is_text else "a name", hole
    end = rb"(?!\w)" if text[-1:].isalnum() or text.endswith(b"_") else b""
    return re.compile(re.escape(text) + end), shown, None
