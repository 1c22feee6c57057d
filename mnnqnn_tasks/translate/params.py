"""Parameters of an op: present fields from the subgraph, the rest from MNN's schema."""

from __future__ import annotations

import functools
from typing import Any

from mnnqnn_tasks.mnn import schema
from mnnqnn_tasks.partition.subgraph import SubOp


@functools.cache
def _defaults(table: str) -> dict[str, object]:
    spec = schema.load()
    return {f.name: spec.default(f) for f in spec.tables.get(table, ())}


def param(op: SubOp, table: str, *path: str) -> Any:
    """A field of ``op``'s parameter table ``table`` (its name in MNN's schema).

    With more than one name the first ones are nested tables.  An absent field has the
    schema's default: ``None`` for vectors and tables.
    """
    return _field(op.params, table, path)


def _field(values: dict[str, Any], table: str, path: tuple[str, ...]) -> Any:
    name, rest = path[0], path[1:]
    if not rest:
        return values[name] if name in values else _defaults(table)[name]
    field = next(f for f in schema.load().tables[table] if f.name == name)
    return _field(values.get(name) or {}, field.type, rest)
