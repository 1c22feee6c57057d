"""An op's parameters as plain values, and where its numbers lie.

MNN moves large numbers out of ``llm.mnn`` into ``llm.mnn.weight`` and leaves a table's
``external`` field behind: one offset, then the sizes of the parts that follow each other
there (written by MNN's ``RemoveParams.cpp``, read by ``OpCommonUtils.cpp``).  Which part
is what depends on the table; `_PARTS` says so.

A *role* names one array of an op: for external parts the names in `_PARTS`, for inline
vectors the field path (``quanParameter.buffer``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn import schema as _schema
from mnnqnn_tasks.mnn.table import Table

#: Inline vectors with more elements than this are byte ranges, not parameters.
INLINE_LIMIT = 64

#: Parts of ``external`` by table; a Convolution2D with ``quanParameter`` has its own.
_PARTS: dict[str, tuple[str, ...]] = {
    "Convolution2D": ("weight", "bias"),
    "Convolution3D": ("weight", "bias"),
    "Scale": ("scaleData", "biasData"),
    "LayerNorm": ("gamma", "beta"),
    "GroupNorm": ("gamma", "beta"),
    "Blob": ("data",),
}
_QUANTIZED_PARTS = ("weight", "scale", "bias", "index")


@dataclass(frozen=True)
class WeightRange:
    """Bytes of the weight file that an op reads: ``size`` bytes from ``offset``."""

    op: str
    role: str
    offset: int
    size: int


def _tables(table: Table, path: str = "") -> Iterator[tuple[str, Table]]:
    """``table`` and every table nested in it, each with the path of its fields."""
    yield path, table
    for name, value in table.fields.items():
        if isinstance(value, Table):
            yield from _tables(value, f"{path}{name}.")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, Table):
                    yield from _tables(item, f"{path}{name}[{index}].")


def _parts(table: Table) -> tuple[str, ...]:
    if table.type_name == "Convolution2D" and "quanParameter" in table:
        return _QUANTIZED_PARTS
    return _PARTS.get(table.type_name, ())


def convolution_ranges(op: Table) -> dict[str, tuple[int, int]]:
    """The byte ranges of the weight file that ``op`` reads, by role.

    Args:
        op: any ``Op``; one without external data gives an empty dict.

    Returns:
        role -> (offset, size) in bytes; parts of size 0 are left out.

    Raises:
        ModelFileError: when ``external`` does not have the form its table calls for.
    """
    ranges: dict[str, tuple[int, int]] = {}
    main = op.main
    if not isinstance(main, Table):
        return ranges
    for path, table in _tables(main):
        external = table.fields.get("external")
        if external is None or len(external) < 2:  # MNN ignores such a field, too
            continue
        offset, *sizes = (int(number) for number in external)
        parts = _parts(table)
        if len(sizes) > len(parts) or offset < 0 or min(sizes) < 0:
            raise ModelFileError(
                "damaged reference into the weight file",
                where=f"op {op.name}",
                why=f"external of {table.type_name} is {[offset, *sizes]}; "
                f"expected an offset and the sizes of {', '.join(parts) or 'nothing'}",
                todo="export the model again",
            )
        for role, size in zip(parts, sizes, strict=False):
            if size:
                ranges[path + role] = (offset, size)
            offset += size
    return ranges


def net_ops(net: Table) -> Iterator[Table]:
    """Every op of the model: the main list first, then those of its subgraphs."""
    yield from net.oplists or ()
    for graph in net.subgraphs or ():
        yield from graph.nodes or ()


def net_ranges(net: Table) -> Iterator[WeightRange]:
    """Every byte range that any op reads, in op order.

    Raises:
        ModelFileError: see `convolution_ranges`.
    """
    for op in net_ops(net):
        for role, (offset, size) in convolution_ranges(op).items():
            yield WeightRange(op.name or op.type, role, offset, size)


def check_range(item: WeightRange, file_size: int, file_name: str) -> None:
    """Refuse a range that is not inside a weight file of ``file_size`` bytes.

    Raises:
        ModelFileError: naming the op, the range and the size of the file.
    """
    if item.offset + item.size > file_size:
        raise ModelFileError(
            "the model reads past the end of its weight file",
            where=file_name,
            why=f"op {item.op} reads its {item.role} from bytes {item.offset} to "
            f"{item.offset + item.size}; the file has {file_size}",
            todo="copy the whole weight file, or export the model again: llm.mnn and "
            "the weight file must come from one export",
        )


def _is_large(value: object) -> bool:
    return isinstance(value, np.ndarray) and len(value) > INLINE_LIMIT


def inline_vectors(table: Table) -> dict[str, np.ndarray[Any, Any]]:
    """Number vectors of more than `INLINE_LIMIT` elements inside ``table``, by field path.

    They are views of the file; `file_offset` says where they lie.
    """
    return {
        path + name: value
        for path, inner in _tables(table)
        for name, value in inner.fields.items()
        if _is_large(value) and name != "external"
    }


def file_offset(vector: np.ndarray[Any, Any]) -> int:
    """The byte offset in its file of a vector that `reader.decode` gave.

    Raises:
        ValueError: when the vector owns its memory and so lies in no file.
    """
    if vector.base is None:
        raise ValueError("the vector is no view of a file")
    whole = np.frombuffer(vector.base, np.uint8)
    return int(vector.__array_interface__["data"][0] - whole.__array_interface__["data"][0])


def _plain(value: Any) -> Any:
    if isinstance(value, Table):
        return params_as_json(value)
    if isinstance(value, np.ndarray):
        return [_plain(number) for number in value.tolist()]
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinities; float("-inf") brings them back
    if isinstance(value, str):
        # Names that are not UTF-8 were read with surrogates, which JSON files cannot hold.
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return value


def params_as_json(table: Table) -> dict[str, Any]:
    """The present fields of ``table`` as plain JSON values.

    Nested tables are dicts with ``_type``; floats are the exact values (a float32 as
    the double that equals it), infinities and NaN are the strings ``inf``, ``-inf`` and
    ``nan``; enums are names.  ``external`` and vectors of more than `INLINE_LIMIT`
    numbers are left out: see `convolution_ranges` and `inline_vectors`.
    """
    plain = {
        name: _plain(value)
        for name, value in table.fields.items()
        if name != "external" and not _is_large(value)
    }
    return {"_type": table.type_name, **plain}


def field_default(table_type: str, name: str) -> Any:
    """The schema's default of a field, for parameters that went through JSON."""
    spec = _schema.load()
    for field in spec.tables[table_type]:
        if field.name == name:
            return spec.default(field)
    raise AttributeError(f"MNN table {table_type} has no field {name}")
