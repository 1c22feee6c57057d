"""Writes `Table` trees as MNN files: the inverse of the reader.

What is present in a table is written, equal to the default or not; what is absent stays
absent.  The same tree gives the same bytes.  MNN's own files need not come out byte for
byte (the order of parts is free in FlatBuffers), but they decode to the same tree.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import flatbuffers
import numpy as np
from flatbuffers import number_types
from flatbuffers.builder import BuilderSizeError

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.files import atomic_writer
from mnnqnn_tasks.mnn import schema as _schema
from mnnqnn_tasks.mnn.table import Table

_FLAGS = {
    "bool": number_types.BoolFlags,
    "int8": number_types.Int8Flags,
    "uint8": number_types.Uint8Flags,
    "int16": number_types.Int16Flags,
    "uint16": number_types.Uint16Flags,
    "int32": number_types.Int32Flags,
    "uint32": number_types.Uint32Flags,
    "float32": number_types.Float32Flags,
    "int64": number_types.Int64Flags,
    "uint64": number_types.Uint64Flags,
    "float64": number_types.Float64Flags,
}
#: What a table, field or string costs at most beside its payload; only an estimate.
_OVERHEAD = 64


def _estimate(value: object) -> int:
    """About how many bytes ``value`` takes, so that the buffer is allocated once."""
    if isinstance(value, Table):
        return _OVERHEAD + sum(_estimate(item) for item in value.fields.values())
    if isinstance(value, list | tuple):
        return _OVERHEAD + sum(_estimate(item) for item in value)
    if isinstance(value, np.ndarray):
        return _OVERHEAD + value.nbytes
    if isinstance(value, str):
        return _OVERHEAD + len(value)
    return 8


class _Encoder:
    def __init__(self, size: int) -> None:
        self.schema = _schema.load()
        self.builder = flatbuffers.Builder(size)
        self.fields: dict[str, Mapping[str, _schema.Field]] = {
            name: {field.name: field for field in fields}
            for name, fields in self.schema.tables.items()
        }
        self.widths = {
            name: 1 + max((field.id for field in fields), default=-1)
            for name, fields in self.schema.tables.items()
        }

    def table(self, table: Table) -> int:
        """Write ``table`` and what it refers to; gives its offset."""
        known = self.fields[table.type_name]
        slots: list[tuple[int, Any, Any]] = []  # (slot, number flags or None, value)
        for name, value in table.fields.items():
            field = known.get(name)
            if field is None:
                raise ValueError(f"MNN table {table.type_name} has no field {name}")
            if field.id_type is not None:
                tag = self.schema.unions[field.type].index(value.type_name)
                slots.append((field.id_type, number_types.Uint8Flags, tag))
                slots.append((field.id, None, self.table(value)))
            elif (flags := self.flags(field.type)) is not None:
                slots.append((field.id, flags, self.number(field.type, value)))
            else:
                slots.append((field.id, None, self.reference(field.type, value)))
        self.builder.StartObject(self.widths[table.type_name])
        for slot, flags, value in slots:
            if flags is None:
                self.builder.PrependUOffsetTRelativeSlot(slot, value, 0)
            else:
                self.builder.PrependSlot(flags, slot, value, None)
        offset: int = self.builder.EndObject()
        return offset

    def flags(self, kind: str) -> Any:
        enum = self.schema.enums.get(kind)
        scalar = _schema.SCALARS.get(enum.type if enum else kind)
        return _FLAGS[scalar[2]] if scalar else None

    def number(self, kind: str, value: Any) -> Any:
        if isinstance(value, str):
            return self.schema.enums[kind].values[value]
        return value.item() if isinstance(value, np.generic) else value

    def reference(self, kind: str, value: Any) -> int:
        if kind == "string":
            offset: int = self.builder.CreateString(value, "utf-8", "surrogateescape")
            return offset
        if not kind.startswith("["):
            return self.table(value)
        inner = kind[1:-1]
        flags = self.flags(inner)
        if flags is not None:
            return self.numbers(inner, value)
        offsets = [self.reference(inner, item) for item in value]
        self.builder.StartVector(4, len(offsets), 4)
        for item in reversed(offsets):
            self.builder.PrependUOffsetTRelative(item)
        offset = self.builder.EndVector()
        return offset

    def numbers(self, kind: str, value: Any) -> int:
        enum = self.schema.enums.get(kind)
        name = _schema.SCALARS[enum.type if enum else kind][2]
        array = np.ascontiguousarray(value, np.dtype(name).newbyteorder("<"))
        # Not CreateNumpyVector, nor a slice of the bytearray: both copy the payload twice.
        builder = self.builder
        builder.StartVector(array.itemsize, array.size, array.itemsize)
        builder.head -= array.nbytes
        if array.size:
            with memoryview(builder.Bytes) as whole:
                whole[builder.head : builder.head + array.nbytes] = array.data.cast("B")
        offset: int = builder.EndVector()
        return offset


def _build(net: Table) -> memoryview:
    try:
        encoder = _Encoder(_estimate(net) + 4096)
        encoder.builder.Finish(encoder.table(net))
    except BuilderSizeError as error:
        raise ModelFileError(
            "the model is too large for one MNN file",
            why="an MNN file can hold at most 2 GiB",
            todo="export the model with its weights in a file of their own",
        ) from error
    return memoryview(encoder.builder.Bytes)[encoder.builder.Head() :]


def encode(net: Table) -> bytes:
    """The bytes of an MNN file whose root is ``net``.

    Raises:
        ModelFileError: when they would be more than 2 GiB.
        ValueError, TypeError, KeyError: when a table holds what the schema has no place
            for, which a table that was read never does.
    """
    return bytes(_build(net))


def write(path: str | os.PathLike[str], net: Table, *, durable: bool = True) -> None:
    """Write ``net`` to ``path``, whole or not at all; errors are those of `encode`.

    Args:
        durable: see `atomic_writer`.

    Raises:
        DiskError: when the file system refuses.
    """
    data = _build(net)
    with atomic_writer(path, durable=durable) as stream:
        stream.write(data)
