"""From the structs of a source to tensors and parameters of the graph IR."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mnnqnn_tasks.qnn.ir import (
    AxisScaleOffset,
    BlockwiseExpansion,
    BwAxisScaleOffset,
    Param,
    Quant,
    ScalarParam,
    ScaleOffset,
    Tensor,
    TensorParam,
)
from mnnqnn_tasks.toolchain.cppnet.fields import TENSOR_ALWAYS, Raw
from mnnqnn_tasks.toolchain.cppnet.scan import Scanner
from mnnqnn_tasks.toolchain.cppnet.values import Item

#: More than any tensor of a graph for a phone has; sizes beyond are mistakes or attacks.
_MAX_RANK = 16
_MAX_BYTES = 1 << 40

_Q = "v1.quantizeParams."
_LOST = (
    "compilefornpu prints six decimals, so that a scale under 0.0000005 is lost: translate the "
    "model natively (partition: native), which keeps every scale"
)


class _Fields:
    """The fields of a struct, taken one by one; none may be missing, none left over."""

    def __init__(self, scanner: Scanner, item: Item) -> None:
        self._scanner = scanner
        self._item = item
        self._left = dict(item.fields)

    def take(self, name: str) -> Any:
        if name not in self._left:
            raise self._scanner.wrong(
                f"expected a value for {name} of {self._item.symbol}, which has none",
                self._item.pos,
            )
        return self._left.pop(name)[0]

    def has(self, name: str) -> bool:
        return name in self._left

    def maybe(self, name: str) -> Any:
        """``None`` where nothing was assigned."""
        return self._left.pop(name, (None,))[0]

    def end(self, kind: str) -> None:
        for name, (_, pos) in self._left.items():
            raise self._scanner.wrong(
                f"expected no {name} for {self._item.symbol}, which is {kind}", pos
            )

    def refuse(self, name: str, why: str, **more: str) -> Exception:
        """The error for the value of a field."""
        pos = self._item.fields[name][1]
        return self._scanner.wrong(f"{name} of {self._item.symbol}: {why}", pos, **more)

    def same(self, name: str, found: int, expected: int, of: str) -> None:
        if found != expected:
            raise self.refuse(name, f"expected {expected}, the number of {of}, found {found}")

    def scales(self, name: str, scales: tuple[float, ...]) -> tuple[float, ...]:
        for index, scale in enumerate(scales if min(scales, default=0) <= 0 else ()):
            if scale <= 0:
                why = f"expected scales above 0, found {scale} at index {index}"
                raise self.refuse(name, why, todo=_LOST)
        return scales


def _undefined(fields: _Fields) -> None:
    """MNN gives such a tensor a scale and an offset of 0, our emitter gives it none."""
    scale, offset = (f"{_Q}scaleOffsetEncoding.{name}" for name in ("scale", "offset"))
    if fields.has(scale) or fields.has(offset):
        for name in (scale, offset):
            if value := fields.take(name):
                raise fields.refuse(name, f"expected 0 for a tensor without encoding, not {value}")


def _scale_offset(fields: _Fields) -> Quant:
    scale = f"{_Q}scaleOffsetEncoding.scale"
    value = fields.take(scale)
    fields.scales(scale, (value,))
    return ScaleOffset(value, fields.take(f"{_Q}scaleOffsetEncoding.offset"))


def _axis(fields: _Fields) -> Quant:
    at = f"{_Q}axisScaleOffsetEncoding."
    scales, offsets = fields.take(f"{at}scaleOffset").values
    count = fields.take(f"{at}numScaleOffsets")
    fields.same(f"{at}numScaleOffsets", count, len(scales), "pairs")
    fields.scales(f"{at}scaleOffset", scales)
    return AxisScaleOffset(fields.take(f"{at}axis"), scales, offsets)


def _bw_axis(fields: _Fields) -> Quant:
    at = f"{_Q}bwAxisScaleOffsetEncoding."
    scales = fields.scales(f"{at}scales", fields.take(f"{at}scales").values)
    count = fields.take(f"{at}numElements")
    fields.same(f"{at}numElements", count, len(scales), "scales")
    given = fields.maybe(f"{at}offsets") or fields.maybe(f"{at}offset")
    # QNN takes no offsets for zeros.
    offsets = (0,) * len(scales) if given is None else given.values
    axis, bitwidth = fields.take(f"{at}axis"), fields.take(f"{at}bitwidth")
    return BwAxisScaleOffset(axis, bitwidth, scales, offsets)


def _blockwise(fields: _Fields) -> Quant:
    inner = _Fields(fields._scanner, fields.take(f"{_Q}blockwiseExpansion"))
    storage = inner.take("blockScaleStorageType")
    blocks = inner.take(f"blocksScale{storage}")
    scales, offsets = inner.take("scaleOffsets").values
    made = BlockwiseExpansion(
        inner.take("axis"),
        inner.scales("scaleOffsets", scales),
        offsets,
        inner.take("numBlocksPerAxis"),
        inner.take("blockScaleBitwidth"),
        blocks.values,
    )
    inner.end(f"of storage {storage}")
    return made


#: Encoding -> reads its fields.
_ENCODINGS: dict[str, Callable[[_Fields], Quant | None]] = {
    "UNDEFINED": _undefined,
    "SCALE_OFFSET": _scale_offset,
    "AXIS_SCALE_OFFSET": _axis,
    "BW_AXIS_SCALE_OFFSET": _bw_axis,
    "BLOCKWISE_EXPANSION": _blockwise,
}


def tensor_of(scanner: Scanner, item: Item) -> tuple[Tensor, Item | None]:
    """The tensor that a struct describes, without a blob, and the array of its values.

    The array is there for a parameter's tensor alone, which has its values in the source.

    Raises:
        SourceFileError: a field is missing, too many, or contradicts another.
    """
    fields = _Fields(scanner, item)
    given = {name: fields.take(name) for name in TENSOR_ALWAYS}
    encoding, definition = (
        given[f"{_Q}{name}"] for name in ("quantizationEncoding", "encodingDefinition")
    )
    if (encoding == "UNDEFINED") != (definition == "UNDEFINED"):
        raise fields.refuse(
            f"{_Q}quantizationEncoding", f"{encoding}, but the definition is {definition}"
        )
    quant = _ENCODINGS[encoding](fields)
    fields.end(f"of encoding {encoding}")
    dims = given["v1.dimensions"].values
    fields.same("v1.rank", given["v1.rank"], len(dims), "dimensions")
    tensor = Tensor(given["v1.name"], given["v1.type"], given["v1.dataType"], dims, quant)
    if len(dims) > _MAX_RANK or not 0 < tensor.size <= _MAX_BYTES:
        raise fields.refuse("v1.dimensions", f"expected 1 to {_MAX_RANK}, of 1 byte to 1 TiB")
    return tensor, _values(fields, tensor, given["v1.clientBuf.data"], given)


def _values(
    fields: _Fields, tensor: Tensor, data: Raw | Item | None, given: dict[str, Any]
) -> Item | None:
    """Where a tensor's values are must fit its kind; gives the array if it is one."""
    size = given["v1.clientBuf.dataSize"]
    if tensor.kind != "STATIC":
        if data is not None or isinstance(size, Raw) or size != 0:
            raise fields.refuse("v1.clientBuf.data", f"expected nullptr and 0 for {tensor.kind}")
        return None
    if isinstance(data, Item):
        if isinstance(size, Raw) or size != tensor.size or len(data.values) * 4 != size:
            raise fields.refuse(
                "v1.clientBuf.dataSize",
                f"expected {tensor.size} bytes in {math.prod(tensor.dims)} elements, "
                f"found {size} in {len(data.values)}",
            )
        return data
    if not (isinstance(size, Raw) and data == size == tensor.name):
        raise fields.refuse(
            "v1.clientBuf.data", f"expected BINVARSTART and BINLEN of {tensor.name}"
        )
    return None


#: Data type of a scalar -> its field, and the conversion of its value.
_SCALARS: dict[str, tuple[str, Callable[[Any], float | int | bool]]] = {
    "BOOL_8": ("bool8Value", bool),
    "UINT_32": ("uint32Value", int),
    "INT_32": ("int32Value", int),
    "FLOAT_32": ("floatValue", float),
}
_ELEMENT_TYPE = {"UINT_32": "uint32_t", "INT_32": "int32_t", "FLOAT_32": "float"}


def param_of(scanner: Scanner, item: Item) -> Param:
    """The parameter that a struct describes.

    Raises:
        SourceFileError: a field is missing, too many, or contradicts another.
    """
    fields = _Fields(scanner, item)
    name, kind = fields.take("name"), fields.take("paramType")
    made = _tensor_param(fields, name) if kind == "TENSOR" else _scalar_param(fields, name)
    fields.end(f"a parameter of type {kind}")
    return made


def _scalar_param(fields: _Fields, name: str) -> Param:
    dtype = fields.take("scalarParam.dataType")
    field, convert = _SCALARS[dtype]
    value = fields.take(f"scalarParam.{field}")
    if dtype == "BOOL_8" and value not in (0, 1):
        raise fields.refuse(f"scalarParam.{field}", f"expected 0 or 1, found {value}")
    return ScalarParam(name, dtype, convert(value))


def _tensor_param(fields: _Fields, name: str) -> Param:
    tensor, values = tensor_of(fields._scanner, fields.take("tensorParam"))
    if values is None or _ELEMENT_TYPE.get(tensor.dtype) != values.ctype or tensor.quant:
        raise fields.refuse("tensorParam", "expected a STATIC tensor with an array of its type")
    return TensorParam(name, tensor.dtype, tensor.dims, values.values)
