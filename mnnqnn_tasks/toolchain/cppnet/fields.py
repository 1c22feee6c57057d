"""The structs of a source: which fields each has, and what may stand there.

Field names are those of QNN's headers (QnnTypes.h), version 1 of ``Qnn_Tensor_t``.
"""

from __future__ import annotations

import re

from mnnqnn_tasks.qnn.ir import DTYPE_BYTES
from mnnqnn_tasks.qnn.spec import SCALAR_DTYPES
from mnnqnn_tasks.toolchain.cppnet.scan import IDENT, Scanner
from mnnqnn_tasks.toolchain.cppnet.values import (
    Item,
    Reader,
    Symbols,
    accept_null,
    array,
    integer,
    number,
    struct,
    take_integer,
    take_item,
    text,
    word,
    zero,
)

KINDS = ("APP_WRITE", "APP_READ", "NATIVE", "STATIC")
_Q = "v1.quantizeParams."

_START = re.compile(rb"BINVARSTART\s*\(\s*(%s)\s*\)" % IDENT)
_LENGTH = re.compile(rb"BINLEN\s*\(\s*(%s)\s*\)" % IDENT)


class Raw(str):
    """The name of a ``.raw`` file, from ``BINVARSTART(name)`` or ``BINLEN(name)``."""

    __slots__ = ()


def _data(scanner: Scanner, symbols: Symbols) -> Raw | Item | None:
    """``nullptr``, ``BINVARSTART(name)`` or an array of a parameter's values."""
    if accept_null(scanner):
        return None
    if found := scanner.accept(_START):
        return Raw(found[1].decode())
    at = scanner.pos
    name = scanner.accept(re.compile(IDENT))
    item = symbols.get(name[0].decode()) if name else None
    scanner.pos = at
    if item is None or item.ctype not in ("uint32_t", "int32_t", "float"):
        raise scanner.unexpected("nullptr, BINVARSTART(name) or the name of an array")
    return take_item(scanner, symbols, item.ctype, True)


def _size(scanner: Scanner, _symbols: Symbols) -> Raw | int:
    """``BINLEN(name)`` or a number of bytes."""
    if found := scanner.accept(_LENGTH):
        return Raw(found[1].decode())
    return take_integer(scanner, "uint32_t")


TENSOR: dict[str, Reader] = {
    "version": word("QNN_TENSOR_VERSION_", ("1",)),
    "v1.id": zero,
    "v1.name": text,
    "v1.type": word("QNN_TENSOR_TYPE_", KINDS),
    "v1.dataFormat": word("QNN_TENSOR_DATA_FORMAT_", ("FLAT_BUFFER",)),
    "v1.dataType": word("QNN_DATATYPE_", tuple(DTYPE_BYTES)),
    f"{_Q}encodingDefinition": word("QNN_DEFINITION_", ("DEFINED", "UNDEFINED")),
    f"{_Q}quantizationEncoding": word(
        "QNN_QUANTIZATION_ENCODING_",
        (
            "UNDEFINED",
            "SCALE_OFFSET",
            "AXIS_SCALE_OFFSET",
            "BW_AXIS_SCALE_OFFSET",
            "BLOCKWISE_EXPANSION",
        ),
    ),
    f"{_Q}scaleOffsetEncoding.scale": number,
    f"{_Q}scaleOffsetEncoding.offset": integer("int32_t"),
    f"{_Q}axisScaleOffsetEncoding.axis": integer("int32_t"),
    f"{_Q}axisScaleOffsetEncoding.numScaleOffsets": integer("uint32_t"),
    f"{_Q}axisScaleOffsetEncoding.scaleOffset": array("Qnn_ScaleOffset_t"),
    f"{_Q}bwAxisScaleOffsetEncoding.bitwidth": integer("uint32_t"),
    f"{_Q}bwAxisScaleOffsetEncoding.axis": integer("int32_t"),
    f"{_Q}bwAxisScaleOffsetEncoding.numElements": integer("uint32_t"),
    f"{_Q}bwAxisScaleOffsetEncoding.scales": array("float"),
    f"{_Q}bwAxisScaleOffsetEncoding.offsets": array("int32_t"),
    # What MNN writes for `offsets`; no compiler takes it, but it says what is meant.
    f"{_Q}bwAxisScaleOffsetEncoding.offset": array("int32_t"),
    f"{_Q}blockwiseExpansion": struct("Qnn_BlockwiseExpansion_t", "&"),
    "v1.rank": integer("uint32_t"),
    "v1.dimensions": array("uint32_t"),
    "v1.memType": word("QNN_TENSORMEMTYPE_", ("RAW",)),
    "v1.clientBuf.data": _data,
    "v1.clientBuf.dataSize": _size,
}

PARAM: dict[str, Reader] = {
    "name": text,
    "paramType": word("QNN_PARAMTYPE_", ("SCALAR", "TENSOR")),
    "tensorParam": struct("Qnn_Tensor_t"),
    "scalarParam.dataType": word("QNN_DATATYPE_", SCALAR_DTYPES),
    "scalarParam.bool8Value": integer("uint8_t"),
    "scalarParam.uint32Value": integer("uint32_t"),
    "scalarParam.int32Value": integer("int32_t"),
    "scalarParam.floatValue": number,
}

BLOCKWISE: dict[str, Reader] = {
    "axis": integer("int32_t"),
    "scaleOffsets": array("Qnn_ScaleOffset_t"),
    "numBlocksPerAxis": integer("uint32_t"),
    "blockScaleBitwidth": integer("uint32_t"),
    "blockScaleStorageType": word(
        "QNN_BLOCKWISE_EXPANSION_BITWIDTH_SCALE_STORAGE_",
        ("8", "16"),
    ),
    "blocksScale8": array("uint8_t"),
    "blocksScale16": array("uint16_t"),
}

#: Struct type -> what it is initialized with, and its fields.
STRUCTS: dict[str, tuple[str, dict[str, Reader]]] = {
    "Qnn_Tensor_t": ("QNN_TENSOR_INIT", TENSOR),
    "Qnn_Param_t": ("QNN_PARAM_INIT", PARAM),
    "Qnn_BlockwiseExpansion_t": ("QNN_BLOCKWISE_EXPANSION_INIT", BLOCKWISE),
}

#: What every tensor needs, whatever its encoding.
TENSOR_ALWAYS = (
    "version",
    "v1.id",
    "v1.name",
    "v1.type",
    "v1.dataFormat",
    "v1.dataType",
    f"{_Q}encodingDefinition",
    f"{_Q}quantizationEncoding",
    "v1.rank",
    "v1.dimensions",
    "v1.memType",
    "v1.clientBuf.data",
    "v1.clientBuf.dataSize",
)
