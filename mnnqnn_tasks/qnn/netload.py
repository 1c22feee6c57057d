"""The structure of a ``net.json`` document, checked by hand while it becomes a `Graph`.

The same rules as ``schemas/net.schema.json``; a JSON Schema library would cost the link
worker more time than a small link.  Problems are `FormError`, which names the place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mnnqnn_tasks.qnn.floats import f32_tuple
from mnnqnn_tasks.qnn.ir import (
    AxisScaleOffset,
    Blob,
    BlockwiseExpansion,
    BwAxisScaleOffset,
    Graph,
    Node,
    Param,
    Quant,
    ScalarParam,
    ScaleOffset,
    Tensor,
    TensorParam,
)

FORMAT = "mnnqnn-net"
VERSION = 1

Fields = dict[str, Any]


class FormError(ValueError):
    """The document has another form than the schema; the text names the place."""


def graph(data: object) -> Graph:
    """A `Graph` from a parsed document.

    Raises:
        FormError: naming the first place with another form than the schema.
    """
    head = _object(data, "document", ("format", "version", "graph", "tensors", "nodes"))
    if head["format"] != FORMAT or head["version"] != VERSION:
        raise FormError(
            f"document: format {head['format']!r} version {head['version']!r}, "
            f"not {FORMAT!r} version {VERSION}"
        )
    return Graph(
        name=_string(head["graph"], "graph"),
        tensors=[
            _tensor(item, f"tensors[{i}]")
            for i, item in enumerate(_list(head["tensors"], "tensors"))
        ],
        nodes=[_node(item, f"nodes[{i}]") for i, item in enumerate(_list(head["nodes"], "nodes"))],
    )


def _object(
    data: object, place: str, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Fields:
    if not isinstance(data, dict):
        raise FormError(f"{place}: an object is needed")
    for key in required:
        if key not in data:
            raise FormError(f"{place}: {key!r} is missing")
    for key in data:
        if key not in required and key not in optional:
            raise FormError(f"{place}: unknown key {key!r}")
    return data


def _list(data: object, place: str) -> list[Any]:
    if not isinstance(data, list):
        raise FormError(f"{place}: a list is needed")
    return data


def _string(data: object, place: str) -> str:
    if not isinstance(data, str) or not data or "\0" in data:
        raise FormError(f"{place}: a non-empty text is needed")
    return data


def _int(data: object, place: str) -> int:
    if type(data) is not int:
        raise FormError(f"{place}: an integer is needed")
    return data


def _ints(data: object, place: str) -> tuple[int, ...]:
    values = _list(data, place)
    if not set(map(type, values)) <= {int}:
        raise FormError(f"{place}: integers are needed")
    return tuple(values)


def _strings(data: object, place: str) -> tuple[str, ...]:
    return tuple(_string(item, f"{place}[{i}]") for i, item in enumerate(_list(data, place)))


def _float(data: object, place: str) -> float:
    return _floats([data], place)[0]


def _floats(data: object, place: str) -> tuple[float, ...]:
    values = _list(data, place)
    if not set(map(type, values)) <= {int, float}:
        raise FormError(f"{place}: numbers are needed")
    try:
        exact = f32_tuple(values)
    except OverflowError:  # an integer beyond double
        exact = (math.inf,)
    # After rounding: the text of the largest float32 lies above it.
    if exact and math.isinf(max(map(abs, exact))):
        raise FormError(f"{place}: a number is beyond the range of float32")
    return exact


def _channels(fields: Fields, place: str) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Scales, and offsets as one number for all or one each."""
    scales = _floats(fields["scales"], f"{place}.scales")
    offsets = fields["offsets"]
    if type(offsets) is int:
        return scales, (offsets,) * len(scales)
    return scales, _ints(offsets, f"{place}.offsets")


def _scale_offset(fields: Fields, place: str) -> Quant:
    return ScaleOffset(
        _float(fields["scale"], f"{place}.scale"), _int(fields["offset"], f"{place}.offset")
    )


def _axis(fields: Fields, place: str) -> Quant:
    return AxisScaleOffset(_int(fields["axis"], f"{place}.axis"), *_channels(fields, place))


def _bw_axis(fields: Fields, place: str) -> Quant:
    return BwAxisScaleOffset(
        _int(fields["axis"], f"{place}.axis"),
        _int(fields["bitwidth"], f"{place}.bitwidth"),
        *_channels(fields, place),
    )


def _blockwise(fields: Fields, place: str) -> Quant:
    return BlockwiseExpansion(
        _int(fields["axis"], f"{place}.axis"),
        *_channels(fields, place),
        _int(fields["blocks_per_axis"], f"{place}.blocks_per_axis"),
        _int(fields["block_scale_bitwidth"], f"{place}.block_scale_bitwidth"),
        _ints(fields["block_scales"], f"{place}.block_scales"),
    )


_CHANNEL_KEYS = ("encoding", "axis", "scales", "offsets")
_QUANTS: dict[str, tuple[tuple[str, ...], Callable[[Fields, str], Quant]]] = {
    "SCALE_OFFSET": (("encoding", "scale", "offset"), _scale_offset),
    "AXIS_SCALE_OFFSET": (_CHANNEL_KEYS, _axis),
    "BW_AXIS_SCALE_OFFSET": ((*_CHANNEL_KEYS, "bitwidth"), _bw_axis),
    "BLOCKWISE_EXPANSION": (
        (*_CHANNEL_KEYS, "blocks_per_axis", "block_scale_bitwidth", "block_scales"),
        _blockwise,
    ),
}


def _quant(data: object, place: str) -> Quant:
    encoding = data.get("encoding") if isinstance(data, dict) else None
    if not isinstance(encoding, str) or encoding not in _QUANTS:
        raise FormError(f"{place}: 'encoding' must be one of {', '.join(_QUANTS)}")
    keys, make = _QUANTS[encoding]
    return make(_object(data, place, keys), place)


def _tensor(data: object, place: str) -> Tensor:
    fields = _object(data, place, ("name", "kind", "dtype", "dims"), ("quant", "blob"))
    blob = None
    if "blob" in fields:
        inner = _object(fields["blob"], f"{place}.blob", ("sha256", "size"))
        blob = Blob(
            _string(inner["sha256"], f"{place}.blob.sha256"),
            _int(inner["size"], f"{place}.blob.size"),
        )
    return Tensor(
        name=_string(fields["name"], f"{place}.name"),
        kind=_string(fields["kind"], f"{place}.kind"),  # type: ignore[arg-type]  # spec checks it
        dtype=_string(fields["dtype"], f"{place}.dtype"),
        dims=_ints(fields["dims"], f"{place}.dims"),
        quant=_quant(fields["quant"], f"{place}.quant") if "quant" in fields else None,
        blob=blob,
    )


def _scalar(dtype: str, data: object, place: str) -> float | int | bool:
    if dtype == "FLOAT_32":
        return _float(data, place)
    if dtype != "BOOL_8":
        return _int(data, place)
    if not isinstance(data, bool):
        raise FormError(f"{place}: true or false is needed")
    return data


def _param(data: object, place: str) -> Param:
    if isinstance(data, dict) and "value" in data:
        fields = _object(data, place, ("name", "dtype", "value"))
    else:
        fields = _object(data, place, ("name", "dtype", "dims", "values"))
    name = _string(fields["name"], f"{place}.name")
    dtype = _string(fields["dtype"], f"{place}.dtype")
    if "value" in fields:
        return ScalarParam(name, dtype, _scalar(dtype, fields["value"], f"{place}.value"))
    read = _floats if dtype == "FLOAT_32" else _ints
    values = read(fields["values"], f"{place}.values")
    return TensorParam(name, dtype, _ints(fields["dims"], f"{place}.dims"), values)


def _node(data: object, place: str) -> Node:
    fields = _object(data, place, ("name", "package", "type", "inputs", "outputs", "params"))
    return Node(
        name=_string(fields["name"], f"{place}.name"),
        type=_string(fields["type"], f"{place}.type"),
        inputs=_strings(fields["inputs"], f"{place}.inputs"),
        outputs=_strings(fields["outputs"], f"{place}.outputs"),
        params=tuple(
            _param(item, f"{place}.params[{i}]")
            for i, item in enumerate(_list(fields["params"], f"{place}.params"))
        ),
        package=_string(fields["package"], f"{place}.package"),
    )
