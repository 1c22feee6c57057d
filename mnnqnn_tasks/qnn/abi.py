"""QNN's C structures as ctypes classes, built from the table ``abi.json``.

The layouts follow the public headers (QnnTypes.h, QnnInterface.h, QnnHtpGraph.h, ...).
Every size and offset in the table is compared with what ctypes laid out, so a slip in
the table cannot turn into a write at a wrong address.
"""

from __future__ import annotations

import ctypes
import json
from functools import cache
from pathlib import Path
from typing import Any

_PRIMITIVES: dict[str, Any] = {
    "uint8_t": ctypes.c_uint8,
    "int8_t": ctypes.c_int8,
    "uint16_t": ctypes.c_uint16,
    "int16_t": ctypes.c_int16,
    "uint32_t": ctypes.c_uint32,
    "int32_t": ctypes.c_int32,
    "uint64_t": ctypes.c_uint64,
    "int64_t": ctypes.c_int64,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "_Bool": ctypes.c_bool,
    "void *": ctypes.c_void_p,
    "void **": ctypes.POINTER(ctypes.c_void_p),
    "char *": ctypes.c_char_p,
    "char **": ctypes.POINTER(ctypes.c_char_p),
}


class AbiError(AssertionError):
    """``abi.json`` contradicts the layout that ctypes makes of it; a programming error."""


@cache
def _table() -> dict[str, Any]:
    text = Path(__file__).with_name("abi.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def constant(name: str) -> int:
    """A number of the table's top level, such as ``backend_id_htp``."""
    value: int = _table()[name]
    return value


def enum(name: str) -> dict[str, int]:
    """An enum of the table: short name (``FLOAT_16``) to value."""
    values: dict[str, int] = _table()["enums"][name]
    return values


@cache
def enum_names(name: str) -> dict[int, str]:
    """The same enum the other way round, value to short name."""
    return {value: key for key, value in enum(name).items()}


@cache
def ctype(name: str) -> Any:
    """The ctypes type that a C type name of the table stands for."""
    if name in _PRIMITIVES:
        return _PRIMITIVES[name]
    if name.endswith("*"):
        return ctypes.POINTER(ctype(name[:-1].strip()))
    if name.endswith("]"):
        base, _, count = name[:-1].partition("[")
        return ctype(base) * int(count)
    return _structure(name)


def _structure(name: str) -> Any:
    """Build one structure class and check it against the table's numbers."""
    spec = _table()["structs"][name]
    fields: list[tuple[str, Any]] = []
    anonymous: list[str] = []
    offsets: dict[str, int] = {}
    for index, entry in enumerate(spec["fields"]):
        if isinstance(entry, list):
            field, offset, type_name = entry
            fields.append((field, ctype(type_name)))
            offsets[field] = offset
            continue
        members = [(field, ctype(type_name)) for field, _, type_name in entry["any"]]
        offsets.update({field: offset for field, offset, _ in entry["any"]})
        if len(members) == 1 and ctypes.sizeof(members[0][1]) == entry["size"]:
            fields += members  # a plain member: libffi refuses unions passed by value
            continue
        pad = ("_size", ctypes.c_uint8 * entry["size"])
        union = type(f"{name}_u{index}", (ctypes.Union,), {"_fields_": [*members, pad]})
        fields.append((f"_u{index}", union))
        anonymous.append(f"_u{index}")
    made: Any = type(name, (ctypes.Structure,), {"_anonymous_": anonymous, "_fields_": fields})
    if ctypes.sizeof(made) != spec["size"]:
        raise AbiError(f"{name}: size {ctypes.sizeof(made)}, the table says {spec['size']}")
    for field, offset in offsets.items():
        if getattr(made, field).offset != offset:
            raise AbiError(f"{name}.{field}: at {getattr(made, field).offset}, not {offset}")
    return made


@cache
def prototype(function: str) -> Any:
    """The ctypes function type of an interface function; all return ``Qnn_ErrorHandle_t``."""
    arguments = [ctype(name) for name in _table()["functions"][function]]
    return ctypes.CFUNCTYPE(ctypes.c_uint64, *arguments)


def functions() -> list[str]:
    """Names of all interface functions that the table gives argument types for."""
    return list(_table()["functions"])


def struct_names() -> list[str]:
    """Names of all structures in the table."""
    return list(_table()["structs"])
