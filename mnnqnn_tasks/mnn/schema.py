"""The MNN model file format as tables: field ids, types, defaults, enums.

``schema.json`` lists what MNN's public FlatBuffers schema (MNN 3.6) declares; nothing
here knows an op by name.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

#: The MNN whose schema this is; files written here carry it in ``extraInfo``.
MNN_VERSION = "3.6.1"

#: FlatBuffers scalar name -> (struct format character, size in bytes, numpy name).
SCALARS: dict[str, tuple[str, int, str]] = {
    "bool": ("?", 1, "bool"),
    "byte": ("b", 1, "int8"),
    "int8": ("b", 1, "int8"),
    "ubyte": ("B", 1, "uint8"),
    "uint8": ("B", 1, "uint8"),
    "short": ("h", 2, "int16"),
    "int16": ("h", 2, "int16"),
    "ushort": ("H", 2, "uint16"),
    "uint16": ("H", 2, "uint16"),
    "int": ("i", 4, "int32"),
    "int32": ("i", 4, "int32"),
    "uint": ("I", 4, "uint32"),
    "uint32": ("I", 4, "uint32"),
    "float": ("f", 4, "float32"),
    "float32": ("f", 4, "float32"),
    "long": ("q", 8, "int64"),
    "int64": ("q", 8, "int64"),
    "ulong": ("Q", 8, "uint64"),
    "uint64": ("Q", 8, "uint64"),
    "double": ("d", 8, "float64"),
}


@dataclass(frozen=True)
class Field:
    """One field of a table.

    ``type`` is a scalar, ``string``, an enum, a table, a union or ``[...]`` of these.
    """

    name: str
    type: str
    id: int
    id_type: int | None
    default: str | None


@dataclass(frozen=True)
class Enum:
    """An enum: its scalar type, and its names and values both ways."""

    name: str
    type: str
    values: dict[str, int]
    names: dict[int, str]


@dataclass(frozen=True)
class Schema:
    """The whole file format."""

    root: str
    tables: dict[str, tuple[Field, ...]]
    enums: dict[str, Enum]
    unions: dict[str, tuple[str, ...]]

    def default(self, field: Field) -> object:
        """The value that an absent field has.

        Enums come as names, scalars as Python values, everything else as ``None``.
        """
        if field.type in self.enums:
            enum = self.enums[field.type]
            if field.default is None:
                # A zero that no name stands for stays the number, as FlatBuffers has it.
                return enum.names.get(0, 0)
            return field.default
        if field.type in SCALARS:
            text = field.default
            if field.type == "bool":
                return text == "true"
            if field.type in ("float", "float32", "double"):
                return float(text or 0)
            return int(text or 0)
        return None


@functools.cache
def load() -> Schema:
    """The schema, parsed once per process."""
    raw = json.loads(Path(__file__).with_name("schema.json").read_text("utf-8"))
    tables = {
        name: tuple(
            Field(f["name"], f["type"], f["id"], f.get("id_type"), f.get("default")) for f in fields
        )
        for name, fields in raw["tables"].items()
    }
    enums = {
        name: Enum(name, e["type"], e["values"], {v: k for k, v in e["values"].items()})
        for name, e in raw["enums"].items()
    }
    unions = {name: tuple(members) for name, members in raw["unions"].items()}
    return Schema(raw["root_type"], tables, enums, unions)
