"""Reads an MNN model file into `Table` trees, refusing anything that is not one.

The byte layout is FlatBuffers' (https://flatbuffers.dev/internals/): a root offset,
tables with vtables, vectors with a length in front.  Every offset is checked against
the file before it is followed, so a truncated or foreign file ends in a message that
names the file and the place, never in an exception of ``struct`` or a wild read.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Any

import numpy as np

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn import schema as _schema
from mnnqnn_tasks.mnn.table import Table

#: Tables nest a handful of levels; a file that nests deeper is malicious or damaged.
_MAX_DEPTH = 64

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_UNPACK = {name: struct.Struct("<" + code) for name, (code, _, _) in _schema.SCALARS.items()}


class _Damaged(Exception):
    """Internal: where and why decoding stopped."""


class _Decoder:
    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.size = len(data)
        self.schema = _schema.load()
        self.budget = self.size  # vectors of tables may share children, but not endlessly

    def _check(self, pos: int, length: int, what: str) -> None:
        if pos < 0 or length < 0 or pos + length > self.size:
            raise _Damaged(f"{what} at byte {pos} needs {length} bytes, the file has {self.size}")

    def u32(self, pos: int, what: str) -> int:
        self._check(pos, 4, what)
        value: int = _U32.unpack_from(self.data, pos)[0]
        return value

    def follow(self, pos: int, what: str) -> int:
        return pos + self.u32(pos, what)

    def table(self, name: str, pos: int, depth: int = 0) -> Table:
        if depth > _MAX_DEPTH:
            raise _Damaged(f"table {name} at byte {pos} is nested more than {_MAX_DEPTH} deep")
        self.budget -= 1
        if self.budget < 0:
            raise _Damaged("more tables than the file has bytes")
        self._check(pos, 4, name)
        vtable = pos - _I32.unpack_from(self.data, pos)[0]
        self._check(vtable, 4, f"vtable of {name}")
        vtable_size = _U16.unpack_from(self.data, vtable)[0]
        self._check(vtable, vtable_size, f"vtable of {name}")
        if vtable_size < 4 or vtable_size % 2:
            raise _Damaged(f"vtable of {name} at byte {vtable} has size {vtable_size}")
        slots = struct.unpack_from(f"<{(vtable_size - 4) // 2}H", self.data, vtable + 4)
        fields: dict[str, Any] = {}
        for field in self.schema.tables[name]:
            offset = slots[field.id] if field.id < len(slots) else 0
            if offset == 0:
                continue
            where = f"{name}.{field.name}"
            if field.id_type is not None:
                tag_at = slots[field.id_type] if field.id_type < len(slots) else 0
                value: Any = self.union(field.type, pos, tag_at, pos + offset, where, depth)
                if value is None:
                    continue
            else:
                value = self.value(field.type, pos + offset, where, depth)
            fields[field.name] = value
        self._unknown(name, slots)
        return Table(name, fields)

    def _unknown(self, name: str, slots: tuple[int, ...]) -> None:
        known = {f.id for f in self.schema.tables[name]}
        known |= {f.id_type for f in self.schema.tables[name] if f.id_type is not None}
        extra = [i for i, offset in enumerate(slots) if offset and i not in known]
        if extra:
            raise _Damaged(
                f"table {name} has field {extra[0]}, which MNN 3.6 does not have "
                "(written by a newer MNN?)"
            )

    def union(
        self, name: str, base: int, tag_at: int, pos: int, where: str, depth: int
    ) -> Table | None:
        if tag_at == 0:
            return None
        self._check(base + tag_at, 1, where)
        tag = self.data[base + tag_at]
        members = self.schema.unions[name]
        if tag >= len(members):
            raise _Damaged(f"{where} is of kind {tag}; MNN 3.6 knows {len(members)} kinds")
        if tag == 0:
            return None
        return self.table(members[tag], self.follow(pos, where), depth + 1)

    def value(self, kind: str, pos: int, where: str, depth: int) -> Any:
        if kind in self.schema.enums:
            enum = self.schema.enums[kind]
            number = self.scalar(enum.type, pos, where)
            return enum.names.get(int(number), int(number))
        if kind in _schema.SCALARS:
            return self.scalar(kind, pos, where)
        start = self.follow(pos, where)
        if kind == "string":
            return self.string(start, where)
        if kind.startswith("["):
            return self.vector(kind[1:-1], start, where, depth)
        return self.table(kind, start, depth + 1)

    def scalar(self, kind: str, pos: int, where: str) -> Any:
        self._check(pos, _schema.SCALARS[kind][1], where)
        return _UNPACK[kind].unpack_from(self.data, pos)[0]

    def string(self, pos: int, where: str) -> str:
        length = self.u32(pos, where)
        self._check(pos + 4, length, where)
        # Names are bytes to MNN; surrogateescape brings any of them back unchanged.
        return bytes(self.data[pos + 4 : pos + 4 + length]).decode("utf-8", "surrogateescape")

    def vector(self, kind: str, pos: int, where: str, depth: int) -> Any:
        length = self.u32(pos, where)
        start = pos + 4
        scalar = self.schema.enums[kind].type if kind in self.schema.enums else kind
        if scalar in _schema.SCALARS:
            size = _schema.SCALARS[scalar][1]
            self._check(start, length * size, where)
            dtype = np.dtype(_schema.SCALARS[scalar][2]).newbyteorder("<")
            return np.frombuffer(self.data, dtype=dtype, count=length, offset=start)
        self._check(start, length * 4, where)
        return [self.value(kind, start + 4 * i, f"{where}[{i}]", depth) for i in range(length)]


def decode(data: bytes | memoryview | mmap.mmap, *, root: str = "Net", name: str = "") -> Table:
    """Decode a whole MNN file.

    Args:
        data: the file's bytes; number vectors of the result are views of them.
        root: the root table, ``Net`` for models and IO samples.
        name: what to call the file in messages.

    Raises:
        ModelFileError: when the bytes are not an MNN model, or are cut short, or hold
            fields that this schema does not know.
    """
    view = memoryview(data).cast("B") if not isinstance(data, memoryview) else data
    decoder = _Decoder(view)
    try:
        if len(view) < 8:
            raise _Damaged(f"the file has only {len(view)} bytes")
        net = decoder.table(root, decoder.follow(0, "root table"))
    except (_Damaged, RecursionError) as error:
        raise ModelFileError(
            "not a readable MNN model",
            where=name or None,
            why=str(error),
            todo="export the model again with MNN's exporter, or copy the whole file",
        ) from error
    return net


def read(path: str | os.PathLike[str]) -> Table:
    """Memory-map and decode the MNN file at ``path``.

    The map lives as long as any array of the result.

    Raises:
        ModelFileError: when the file is missing, unreadable or not an MNN model.
    """
    where = os.fspath(path)
    try:
        with open(where, "rb") as stream:
            if os.fstat(stream.fileno()).st_size == 0:
                raise ModelFileError(
                    "not a readable MNN model",
                    where=where,
                    why="the file is empty",
                    todo="export the model again with MNN's exporter, or copy the whole file",
                )
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileError(
            "cannot read the model file",
            where=where,
            why=error.strerror,
            todo="check the path of the model folder in the pipeline",
        ) from error
    return decode(data, name=where)
