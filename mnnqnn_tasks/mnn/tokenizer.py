"""MNN's ``.mtok`` tokenizers: byte-pair encoding as its LLM engine does it.

The file is text for two lines (magic and kind; special, stop and prefix tokens), then
binary: normalizer, pre-tokenizer, model, decoder, added tokens, chat template.  Layout and
rules are those of ``PipelineTokenizer`` in MNN's ``tokenizer.cpp``.
"""

from __future__ import annotations

import functools
import itertools
import re
import struct
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn.folder import ModelFolder

_MAGIC, _PIPELINE = 430, 4
_BPE = 0
_GPT2 = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # ByteLevel's own
)
_CATEGORY = re.compile(r"\\([pP])\{(\w+)\}|\\([pP])([A-Z])")

Step = Callable[[str], str]
Splitter = Callable[[list[str]], list[str]]


class _Unsupported(Exception):
    """Internal: a well-formed part that is not implemented here."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 0

    def take(self, form: str) -> int:
        (value,) = struct.unpack_from("<" + form, self.data, self.pos)
        self.pos += struct.calcsize("<" + form)
        return int(value)

    def text(self, length: int | None = None) -> str:
        size = self.take("H") if length is None else length
        if self.pos + size > len(self.data):
            raise struct.error("text is cut short")
        self.pos += size
        return self.data[self.pos - size : self.pos].decode("utf-8", "surrogateescape")


@functools.cache
def _byte_chars() -> tuple[str, ...]:
    """GPT-2's character for each byte: printable ones stand for themselves."""
    kept = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return tuple(chr(byte) if byte in kept else chr(next(spare)) for byte in range(256))


def _find(pattern: str, text: str) -> Iterable[tuple[int, int]]:
    """Spans of a pattern with ``\\p{..}`` classes, which Python's ``re`` does not have.

    They are spelled out with those characters of ``text`` that belong to them.
    """

    def spell(match: re.Match[str]) -> str:
        negated = (match[1] or match[3]) == "P"
        name = match[2] or match[4]
        if len(name) > 2:
            raise _Unsupported(f"pattern class {name}")
        chars = {c for c in text if unicodedata.category(c).startswith(name) != negated}
        # Never empty, for it may be all of a set: U+FFFF is no character.
        spelled = "".join(re.escape(c) for c in sorted(chars)) + "\uffff"
        inside = pattern.count("[", 0, match.start()) > pattern.count("]", 0, match.start())
        return spelled if inside else f"[{spelled}]"

    for match in re.finditer(_CATEGORY.sub(spell, pattern), text):
        if match.end() > match.start():
            yield match.span()


def _split(pattern: str, text: str, behavior: int, invert: bool) -> list[str]:
    """Cut ``text`` at a pattern; behaviors: 0 isolated, 1 removed, 2 with the previous."""
    pieces: list[tuple[str, bool]] = []
    last = 0
    for start, end in _find(pattern, text):
        pieces.append((text[last:start], invert))
        pieces.append((text[start:end], not invert))
        last = end
    pieces.append((text[last:], invert))
    result: list[str] = []
    for piece, is_match in pieces:
        if not piece or (is_match and behavior == 1):
            continue
        if is_match and behavior == 2 and result:
            result[-1] += piece
        else:
            result.append(piece)
    return result


def _normalizer(data: _Reader) -> Step:
    kind = data.take("B")
    if kind in (0, 1):
        return lambda text: text
    if kind == 2:
        prefix = data.text()
        return lambda text: prefix + text
    if kind == 3:
        old, new = data.text(), data.text()
        return lambda text: text.replace(old, new) if old else text
    if kind == 4:
        steps = [_normalizer(data) for _ in range(data.take("I"))]
        return lambda text: functools.reduce(lambda value, step: step(value), steps, text)
    if kind == 6:
        table = {data.take("I"): data.text() for _ in range(data.take("I"))}
        return lambda text: text.translate(table)
    if kind == 8:
        left, right = data.take("B"), data.take("B")

        def strip(text: str) -> str:
            text = text.lstrip() if left else text
            return text.rstrip() if right else text

        return strip
    raise _Unsupported(f"normalizer {kind}")


def _pre_tokenizer(data: _Reader) -> Splitter:
    kind = data.take("B")
    if kind == 0:
        return lambda parts: parts
    if kind == 1:
        use_regex = data.take("B")
        chars = _byte_chars()

        def to_bytes(parts: list[str]) -> list[str]:
            if use_regex:
                parts = [piece for part in parts for piece in _split(_GPT2, part, 0, False)]
            return [
                "".join(chars[b] for b in part.encode("utf-8", "surrogateescape")) for part in parts
            ]

        return to_bytes
    if kind == 2:
        single = data.take("B")
        pattern = "[0-9]" if single else "(?!)"
        return lambda parts: [p for part in parts for p in _split(pattern, part, 0, False)]
    if kind == 3:
        mark, add_prefix = data.text(), data.take("B")
        return lambda parts: [
            (" " + p if add_prefix and p and p[0] != " " else p).replace(" ", mark) for p in parts
        ]
    if kind == 4:
        regex, invert, behavior = data.text(), bool(data.take("B")), data.take("B")
        return lambda parts: [p for part in parts for p in _split(regex, part, behavior, invert)]
    if kind == 6:
        steps = [_pre_tokenizer(data) for _ in range(data.take("I"))]
        return lambda parts: functools.reduce(lambda value, step: step(value), steps, parts)
    raise _Unsupported(f"pre-tokenizer {kind}")


def _skip_decoder(data: _Reader) -> set[int]:
    """The kinds of decoder in the file; decoding here needs to know no more."""
    kind = data.take("B")
    if kind in (2, 3):
        data.text()
        data.take("B")
    elif kind == 5:
        data.text()
        data.text()
    elif kind == 6:
        data.text()
        data.take("I")
        data.take("I")
    elif kind == 7:
        return set().union(*(_skip_decoder(data) for _ in range(data.take("I"))))
    return {kind}


@dataclass(frozen=True)
class Tokenizer:
    """A byte-pair tokenizer.

    Attributes:
        tokens: the vocabulary, id to text as stored (byte-level texts in GPT-2's letters).
        ids: the vocabulary the other way.
        ranks: merge rank by pair of ids; the lowest merges first.
        special: texts that are one token wherever they stand, with their ids.
        stop: ids that end an answer.
        prefix: ids that begin every text.
        chat_template: the Jinja template, or an empty text.
    """

    tokens: dict[int, str]
    ids: dict[str, int]
    ranks: dict[tuple[int, int], int]
    special: dict[str, int]
    stop: tuple[int, ...]
    prefix: tuple[int, ...]
    byte_level: bool
    chat_template: str
    normalize: Step = field(repr=False)
    pre_tokenize: Splitter = field(repr=False)

    def encode(self, text: str, *, prefix: bool = True) -> list[int]:
        """Token ids of ``text``; with the tokens that begin every text if ``prefix``."""
        result = list(self.prefix) if prefix else []
        if self.special:
            longest_first = sorted(self.special, key=len, reverse=True)
            units = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)
        else:
            units = [text]
        for unit in units:
            if unit in self.special:
                result.append(self.special[unit])
            elif unit:
                for part in self.pre_tokenize([self.normalize(unit)]):
                    result.extend(self._merge(self._letters(part)))
        return result

    def _letters(self, part: str) -> list[int]:
        """A token per character; those of its bytes where the vocabulary lacks it."""
        result: list[int] = []
        for char in part:
            if char in self.ids:
                result.append(self.ids[char])
                continue
            for byte in char.encode("utf-8", "surrogateescape"):
                token = self.ids.get(f"<0x{byte:02X}>")
                if token is not None:
                    result.append(token)
        return result

    def _merge(self, word: list[int]) -> list[int]:
        while len(word) > 1:
            ranked = [
                (self.ranks[pair], place)
                for place, pair in enumerate(itertools.pairwise(word))
                if pair in self.ranks
            ]
            if not ranked:
                break
            place = min(ranked)[1]
            merged = self.ids.get(self.tokens[word[place]] + self.tokens[word[place + 1]])
            if merged is None:
                break
            word[place : place + 2] = [merged]
        return word

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``; tokens that are not in the vocabulary are left out."""
        by_char = {char: byte for byte, char in enumerate(_byte_chars())}
        data = bytearray()
        for token in ids:
            text = self.tokens.get(token, "")
            if text in self.special:
                data += text.encode("utf-8")
            elif self.byte_level:
                for char in text:
                    code = by_char.get(char)
                    data += bytes([code]) if code is not None else char.encode("utf-8")
            elif re.fullmatch(r"<0x[0-9A-F]{2}>", text):
                data.append(int(text[3:5], 16))
            else:
                data += text.replace("\u2581", " ").encode("utf-8", "surrogateescape")
        return data.decode("utf-8", "replace")


def load(path: Path) -> Tokenizer | None:
    """Read a tokenizer; ``None`` if it is of a kind that is not implemented here.

    Raises:
        ModelFileError: when the file is missing, damaged or no tokenizer.
    """
    try:
        raw = path.read_bytes()
        lines = raw.split(b"\n", 3)
        kind = [int(word) for word in lines[0].split()]
        if len(kind) != 2 or kind[0] != _MAGIC:
            raise ValueError("it does not begin with MNN's magic number")
        if kind[1] != _PIPELINE:
            return None
        return _parse(lines)
    except _Unsupported:
        return None
    except OSError as error:
        raise ModelFileError(
            "cannot read the tokenizer", where=str(path), why=error.strerror
        ) from error
    except (ValueError, IndexError, struct.error, RecursionError) as error:
        raise ModelFileError(
            "not a readable MNN tokenizer",
            where=str(path),
            why=str(error),
            todo="copy the whole model folder, or export the model again",
        ) from error


def _parse(lines: list[bytes]) -> Tokenizer:
    counts = [int(word) for word in lines[1].split()]
    numbers = [int(word) for word in lines[2].split()]
    special_count, stop_count, prefix_count = counts
    if sum(counts) != len(numbers) or min(counts) < 0:
        raise ValueError(f"{len(numbers)} special tokens where {sum(counts)} were announced")
    data = _Reader(lines[3])
    normalize, pre_tokenize = _normalizer(data), _pre_tokenizer(data)
    model, size = data.take("B"), data.take("I")
    if model != _BPE:
        raise _Unsupported(f"model {model}")
    data.take("B")  # byte fallback: the vocabulary has byte tokens or not
    byte_level_model, merges = data.take("B"), data.take("I")
    ids: dict[str, int] = {}
    for _ in range(size):
        text = data.text()
        ids[text] = data.take("I")
    flat = struct.unpack_from(f"<{3 * merges}I", data.data, data.pos)
    data.pos += 12 * merges
    ranks = dict(zip(zip(flat[0::3], flat[1::3], strict=True), flat[2::3], strict=True))
    decoders = _skip_decoder(data)
    tokens = {token: text for text, token in ids.items()}
    special = {tokens[token]: token for token in numbers[:special_count] if token in tokens}
    for _ in range(data.take("I")):
        token = data.take("I")
        data.pos += 3  # special, lstrip, rstrip
        special[data.text()] = token
    template = data.text(data.take("I")) if data.pos < len(data.data) else ""
    if byte_level_model:
        inner, chars = pre_tokenize, _byte_chars()

        def pre_tokenize(parts: list[str]) -> list[str]:
            return ["".join(chars[b] for b in part.encode("utf-8")) for part in inner(parts)]

    special.pop("", None)
    return Tokenizer(
        tokens,
        ids,
        ranks,
        special,
        tuple(numbers[special_count : special_count + stop_count]),
        tuple(numbers[special_count + stop_count :]) if prefix_count else (),
        bool(byte_level_model) or 0 in decoders,
        template,
        normalize,
        pre_tokenize,
    )


def open_tokenizer(folder: ModelFolder) -> Tokenizer | None:
    """The tokenizer of a model; ``None`` if it has none or one of another kind.

    Raises:
        ModelFileError: when the file is damaged.
    """
    path = folder.path / str(folder.config.get("tokenizer_file", "tokenizer.mtok"))
    return load(path) if path.is_file() else None
