"""Reads an MNN model file into `Table` trees, refusing anything that is not one.

The byte layout is FlatBuffers' (https://flatbuffers.dev/internals/): a root offset,
tables with vtables, vectors with a length in front.  Every offset is checked against
the file before it is followed, so a truncated or foreign file ends in a message that
names the file and the place, never in an exception of ``struct`` or a wild read.

Tables that share a vtable share a `_Layout`, which fetches all their fields with one
unpacking: a model of thousands of ops has some hundred vtables.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn import schema as _schema
from mnnqnn_tasks.mnn.table import Table

#: Tables nest a handful of levels; a file that nests deeper is malicious or damaged.
_MAX_DEPTH = 64
#: Offsets may share what they point to; a file may say this many times its own size.
_MAX_REPEAT = 8
#: Larger files are memory-mapped.  Smaller ones are read whole, because a mapped file
#: that someone shortens ends the process.
_MAP_FROM = 64 << 20

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_DTYPES = {name: np.dtype(kind).newbyteorder("<") for name, (_, _, kind) in _schema.SCALARS.items()}

FileData = bytes | mmap.mmap


class _Damaged(Exception):
    """Internal: where and why decoding stopped."""


#: Reads what an offset leads to: (position of the target, depth) -> value.
_Reader = Callable[[int, int], Any]


@dataclass(frozen=True)
class _Layout:
    """How the tables of one vtable lie in the file.

    Attributes:
        extent: bytes of the table, from its position.
        unpack: fetches all raw values at once.
        scalars: (field, index of the raw value).
        enums: (field, index, names by number).
        offsets: (field, index, place of the offset in the table, what reads the target).
        unions: (field, index of the tag, index, place, field's path).
    """

    extent: int
    unpack: Callable[[memoryview, int], tuple[Any, ...]]
    scalars: tuple[tuple[str, int], ...]
    enums: tuple[tuple[str, int, dict[int, str]], ...]
    offsets: tuple[tuple[str, int, int, _Reader], ...]
    unions: tuple[tuple[str, int, int, int, tuple[str, ...]], ...]
    order: tuple[str, ...] | None


class _Decoder:
    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.size = len(data)
        self.schema = _schema.load()
        self.budget = self.size * _MAX_REPEAT
        self.layouts: dict[tuple[str, int], _Layout] = {}
        self.readers: dict[tuple[str, str], _Reader] = {}

    def _check(self, pos: int, length: int, what: str) -> None:
        if pos < 0 or pos + length > self.size:
            raise _Damaged(f"{what} at byte {pos} needs {length} bytes, the file has {self.size}")

    def _spend(self, amount: int) -> None:
        self.budget -= amount
        if self.budget < 0:
            raise _Damaged("it says more than the file has bytes for")

    def u32(self, pos: int, what: str) -> int:
        self._check(pos, 4, what)
        value: int = _U32.unpack_from(self.data, pos)[0]
        return value

    def table(self, name: str, pos: int, depth: int) -> Table:
        if depth > _MAX_DEPTH:
            raise _Damaged(f"table {name} at byte {pos} is nested more than {_MAX_DEPTH} deep")
        self._spend(1)
        self._check(pos, 4, name)
        vtable = pos - _I32.unpack_from(self.data, pos)[0]
        layout = self.layouts.get((name, vtable))
        if layout is None:
            layout = self.layouts[name, vtable] = self._layout(name, vtable)
        if pos + layout.extent > self.size:
            self._check(pos, layout.extent, name)
        raw = layout.unpack(self.data, pos)
        fields: dict[str, Any] = {field: raw[index] for field, index in layout.scalars}
        for field, index, names in layout.enums:
            number = raw[index]
            fields[field] = names.get(number, number)
        for field, index, place, reader in layout.offsets:
            fields[field] = reader(pos + place + raw[index], depth)
        for field, tag, index, place, members in layout.unions:
            kind = raw[tag]
            if kind >= len(members):
                raise _Damaged(
                    f"{name}.{field} at byte {pos} is of kind {kind}; "
                    f"MNN 3.6 knows {len(members)} kinds"
                )
            if kind:
                fields[field] = self.table(members[kind], pos + place + raw[index], depth + 1)
        if layout.order is not None:
            fields = {field: fields[field] for field in layout.order if field in fields}
        return Table(name, fields)

    def _layout(self, name: str, vtable: int) -> _Layout:
        """Read the vtable at byte ``vtable`` of a table of type ``name``."""
        what = f"vtable of {name}"
        self._check(vtable, 4, what)
        size = _U16.unpack_from(self.data, vtable)[0]
        self._check(vtable, size, what)
        if size < 4 or size % 2:
            raise _Damaged(f"{what} at byte {vtable} has size {size}")
        slots = struct.unpack_from(f"<{(size - 4) // 2}H", self.data, vtable + 4)
        self._refuse_unknown(name, slots)
        places: dict[int, tuple[str, int]] = {}  # field id -> (format character, size)
        present = []
        for field in self.schema.tables[name]:
            if field.id >= len(slots) or not slots[field.id]:
                continue
            if field.id_type is not None:
                if field.id_type >= len(slots) or not slots[field.id_type]:
                    continue
                places[field.id_type] = ("B", 1)
            places[field.id] = self._storage(field)
            present.append(field)
        unpack, extent, raw = _one_struct(name, slots, places)
        scalars, enums, offsets, unions = [], [], [], []
        for field in present:
            index = raw[field.id]
            if field.id_type is not None:
                members = self.schema.unions[field.type]
                place = slots[field.id]
                unions.append((field.name, raw[field.id_type], index, place, members))
            elif field.type in self.schema.enums:
                enums.append((field.name, index, self.schema.enums[field.type].names))
            elif field.type in _schema.SCALARS:
                scalars.append((field.name, index))
            else:
                reader = self._reader(field.type, f"{name}.{field.name}")
                offsets.append((field.name, index, slots[field.id], reader))
        order = tuple(field.name for field in present)
        built = tuple(entry[0] for part in (scalars, enums, offsets, unions) for entry in part)
        return _Layout(
            extent,
            unpack,
            tuple(scalars),
            tuple(enums),
            tuple(offsets),
            tuple(unions),
            None if built == order else order,
        )

    def _storage(self, field: _schema.Field) -> tuple[str, int]:
        enum = self.schema.enums.get(field.type)
        scalar = _schema.SCALARS.get(enum.type if enum else field.type)
        return scalar[:2] if scalar else ("I", 4)

    def _refuse_unknown(self, name: str, slots: tuple[int, ...]) -> None:
        known = {f.id for f in self.schema.tables[name]}
        known |= {f.id_type for f in self.schema.tables[name] if f.id_type is not None}
        extra = [i for i, offset in enumerate(slots) if offset and i not in known]
        if extra:
            raise _Damaged(
                f"table {name} has field {extra[0]}, which MNN 3.6 does not have "
                "(written by a newer MNN?)"
            )

    def _reader(self, kind: str, where: str) -> _Reader:
        """What reads a value of type ``kind`` that an offset leads to."""
        reader = self.readers.get((kind, where))
        if reader is None:
            reader = self.readers[kind, where] = self._make_reader(kind, where)
        return reader

    def _make_reader(self, kind: str, where: str) -> _Reader:
        if kind == "string":
            return lambda pos, depth: self.string(pos, where)
        if not kind.startswith("["):
            return lambda pos, depth: self.table(kind, pos, depth + 1)
        inner = kind[1:-1]
        enum = self.schema.enums.get(inner)
        dtype = _DTYPES.get(enum.type if enum else inner)
        if dtype is not None:
            return lambda pos, depth: self.numbers(dtype, pos, where)
        element = self._reader(inner, where)
        return lambda pos, depth: self.vector(element, pos, where, depth)

    def string(self, pos: int, where: str) -> str:
        length = self.u32(pos, where)
        self._check(pos + 4, length + 1, where)  # a zero byte follows the text
        self._spend(length)
        # Names are UTF-8 by convention only; surrogateescape brings any of them back unchanged.
        return str(self.data[pos + 4 : pos + 4 + length], "utf-8", "surrogateescape")

    def numbers(self, dtype: np.dtype[Any], pos: int, where: str) -> np.ndarray[Any, Any]:
        length = self.u32(pos, where)
        if length == 0:
            return np.empty(0, dtype)
        self._check(pos + 4, length * dtype.itemsize, where)
        return np.frombuffer(self.data, dtype, length, pos + 4)

    def vector(self, element: _Reader, pos: int, where: str, depth: int) -> list[Any]:
        length = self.u32(pos, where)
        start = pos + 4
        self._check(start, length * 4, where)
        self._spend(length)
        offsets = struct.unpack_from(f"<{length}I", self.data, start)
        return [element(start + 4 * i + offset, depth) for i, offset in enumerate(offsets)]


def _one_struct(
    name: str, slots: tuple[int, ...], places: dict[int, tuple[str, int]]
) -> tuple[Callable[[memoryview, int], tuple[Any, ...]], int, dict[int, int]]:
    """One unpacking for the fields in ``places``: it, its extent, index by field id."""
    code, cursor = "<", 0
    index: dict[int, int] = {}
    for field in sorted(places, key=lambda field: slots[field]):
        start, (character, size) = slots[field], places[field]
        if start < max(cursor, 4):
            raise _Damaged(f"field {field} of table {name} overlaps another one")
        code += f"{start - cursor}x{character}"
        cursor = start + size
        index[field] = len(index)
    return struct.Struct(code).unpack_from, max(cursor, 4), index


def _not_readable(name: str, why: str) -> ModelFileError:
    return ModelFileError(
        "not a readable MNN model",
        where=name or None,
        why=why,
        todo="export the model again with MNN's exporter, or copy the whole file",
    )


def decode(data: FileData | memoryview, *, root: str = "Net", name: str = "") -> Table:
    """Decode a whole MNN file.

    Args:
        data: the file's bytes; number vectors of the result are views of them.
        root: the root table, ``Net`` for models and IO samples.
        name: what to call the file in messages.

    Raises:
        ModelFileError: when the bytes are not an MNN model, or are cut short, or hold
            fields that this schema does not know.
    """
    view = memoryview(data).cast("B").toreadonly()
    decoder = _Decoder(view)
    try:
        if len(view) < 8:
            raise _Damaged(f"the file has only {len(view)} bytes")
        return decoder.table(root, decoder.u32(0, "root table"), 0)
    except (_Damaged, RecursionError) as error:
        raise _not_readable(name, str(error)) from error


def load_file(path: str | os.PathLike[str]) -> FileData:
    """The bytes of the file at ``path``, memory-mapped if there are many.

    Raises:
        ModelFileError: when the file is missing, unreadable or empty.
    """
    where = os.fspath(path)
    try:
        with open(where, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size >= _MAP_FROM:
                return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            data = stream.read()
    except OSError as error:
        raise ModelFileError(
            "cannot read the model file",
            where=where,
            why=error.strerror,
            todo="check the path of the model folder in the pipeline",
        ) from error
    if not data:
        raise _not_readable(where, "the file is empty")
    return data


def read(path: str | os.PathLike[str]) -> Table:
    """Read and decode the MNN file at ``path``.

    The file's bytes live as long as any array of the result.

    Raises:
        ModelFileError: when the file is missing, unreadable or not an MNN model.
    """
    return decode(load_file(path), name=os.fspath(path))


def check_ops(net: Table, name: str) -> None:
    """Refuse a model that has an op of a type that the schema does not know.

    Args:
        name: what to call the file in messages.

    Raises:
        ModelFileError: naming the op's index, name and code.
    """
    lists = [("", net.oplists or [])]
    lists += [(f" of subgraph {g.name}", g.nodes or []) for g in net.subgraphs or []]
    for place, ops in lists:
        for index, op in enumerate(ops):
            if not isinstance(op.type, str):
                raise ModelFileError(
                    "the model has an op that this tool does not know",
                    where=name or None,
                    why=f"op {index}{place}, {op.name or 'without a name'}, has type code "
                    f"{op.type}, which MNN 3.6 does not have",
                    todo="export the model with an MNN that this tool knows (3.6)",
                )
