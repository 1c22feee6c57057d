"""Walking a protobuf file without loading it.

A message is a run of fields: a varint key (number << 3 | wire type), then a varint, 8 bytes,
a length and as many bytes, or 4 bytes (protobuf.dev, "Encoding").  Only keys and lengths are
read, with pread(2): a model of gigabytes costs one small read per field.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

#: Longest encoding of a varint, and of a key and a length together.
_VARINT_BYTES = 10
_FIXED = {FIXED64: 8, FIXED32: 4}


class Malformed(Exception):
    """The bytes are no protobuf message; the message says where."""


@dataclass(frozen=True)
class Field:
    """A field of a message.

    Attributes:
        number: of the field.
        kind: wire type.
        start: offset of its key in the file.
        payload: offset of its value; behind the length of a BYTES field.
        end: offset of what follows.
    """

    number: int
    kind: int
    start: int
    payload: int
    end: int


def varint(value: int) -> bytes:
    """Encode a number from 0."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def bytes_field(number: int, data: bytes) -> bytes:
    """Encode a BYTES field."""
    return varint(number << 3 | BYTES) + varint(len(data)) + data


def _varint(head: bytes, at: int, base: int) -> tuple[int, int]:
    """Decode the varint at ``at``; the number, and where it ends."""
    value = 0
    for index in range(_VARINT_BYTES):
        if at + index >= len(head):
            break
        byte = head[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise Malformed(f"no number at byte {base + at}")


def fields(fd: int, start: int, end: int) -> Iterator[Field]:
    """The fields of the message between two offsets of a file, in its order.

    Raises:
        Malformed: what is there is no message.
        OSError: the file cannot be read.
    """
    at = start
    while at < end:
        head = os.pread(fd, min(2 * _VARINT_BYTES, end - at), at)
        key, used = _varint(head, 0, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise Malformed(f"no field at byte {at}")
        payload = at + used
        if kind == VARINT:
            _, used = _varint(head, used, at)
            stop = at + used
        elif kind == BYTES:
            size, used = _varint(head, used, at)
            payload = at + used
            stop = payload + size
        elif kind in _FIXED:
            stop = payload + _FIXED[kind]
        else:
            raise Malformed(f"unknown wire type {kind} at byte {at}")
        if stop > end:
            raise Malformed(f"the field at byte {at} ends {stop - end} bytes behind its message")
        yield Field(number, kind, at, payload, stop)
        at = stop


def text(fd: int, field: Field, limit: int = 1 << 16) -> str:
    """The text of a BYTES field.

    Raises:
        Malformed: no text, or one of more than ``limit`` bytes.
    """
    size = field.end - field.payload
    if field.kind != BYTES or size > limit:
        raise Malformed(f"no text at byte {field.start}")
    try:
        return os.pread(fd, size, field.payload).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(f"no text at byte {field.start}: {error}") from None
