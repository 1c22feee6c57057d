"""A decoded FlatBuffers table: the fields that were present, defaults for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mnnqnn_tasks.mnn import schema as _schema


class Table:
    """One table of an MNN file.

    Attribute access gives a present field or the schema's default; an attribute that
    the schema does not have is an ``AttributeError``.  Enum fields are names (``str``),
    or the bare number where the file holds one that the schema does not know.  Vectors
    of numbers are read-only numpy arrays (views of the file), other vectors are lists.

    Attributes:
        type_name: the table's name in the schema, also for union members.
        fields: the present fields by name, in id order; assign to change the table.
    """

    __slots__ = ("fields", "type_name")

    def __init__(self, type_name: str, fields: dict[str, Any] | None = None) -> None:
        self.type_name = type_name
        self.fields: dict[str, Any] = {} if fields is None else fields

    def __getattr__(self, name: str) -> Any:
        if name in Table.__slots__ or name.startswith("__"):
            raise AttributeError(name)
        if name in self.fields:
            return self.fields[name]
        spec = _schema.load()
        for field in spec.tables[self.type_name]:
            if field.name == name:
                return spec.default(field)
        raise AttributeError(f"MNN table {self.type_name} has no field {name}")

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __repr__(self) -> str:
        return f"Table({self.type_name!r}, {self.fields!r})"
