"""IR tensors and parameters as the structures that QNN's API takes."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from typing import Any

from mnnqnn_tasks.qnn import abi
from mnnqnn_tasks.qnn.ir import (
    AxisScaleOffset,
    BlockwiseExpansion,
    BwAxisScaleOffset,
    Quant,
    ScalarParam,
    ScaleOffset,
    Tensor,
    TensorParam,
)

#: What a structure points to must live as long as the structure is used.
Keep = list[Any]

_SCALAR_FIELD = {
    "FLOAT_32": "floatValue",
    "INT_32": "int32Value",
    "UINT_32": "uint32Value",
    "BOOL_8": "bool8Value",
}
_ARRAY_CODE = {"FLOAT_32": "f", "INT_32": "i", "UINT_32": "I"}


def buffer_of(values: array[Any], type_name: str, keep: Keep) -> Any:
    """A typed pointer into an array's memory."""
    keep.append(values)
    address, _ = values.buffer_info()
    return ctypes.cast(address, ctypes.POINTER(abi.ctype(type_name)))


def _pairs(scales: tuple[float, ...], offsets: tuple[int, ...], keep: Keep) -> Any:
    """Qnn_ScaleOffset_t[n]: scale and offset side by side, 4 bytes each."""
    words = array("i", bytes(8 * len(scales)))
    words[0::2] = array("i", array("f", scales).tobytes())
    words[1::2] = array("i", offsets)
    return buffer_of(words, "Qnn_ScaleOffset_t", keep)


def _scale_offset(into: Any, quant: ScaleOffset, _keep: Keep) -> None:
    into.scaleOffsetEncoding.scale = quant.scale
    into.scaleOffsetEncoding.offset = quant.offset


def _axis(into: Any, quant: AxisScaleOffset, keep: Keep) -> None:
    encoding = into.axisScaleOffsetEncoding
    encoding.axis = quant.axis
    encoding.numScaleOffsets = len(quant.scales)
    encoding.scaleOffset = _pairs(quant.scales, quant.offsets, keep)


def _bw_axis(into: Any, quant: BwAxisScaleOffset, keep: Keep) -> None:
    encoding = into.bwAxisScaleOffsetEncoding
    encoding.bitwidth = quant.bitwidth
    encoding.axis = quant.axis
    encoding.numElements = len(quant.scales)
    encoding.scales = ctypes.cast(
        buffer_of(array("f", quant.scales), "float", keep), ctypes.c_void_p
    )
    encoding.offsets = ctypes.cast(
        buffer_of(array("i", quant.offsets), "int32_t", keep), ctypes.c_void_p
    )


def _blockwise(into: Any, quant: BlockwiseExpansion, keep: Keep) -> None:
    encoding = abi.ctype("Qnn_BlockwiseExpansion_t")()
    encoding.axis = quant.axis
    encoding.scaleOffsets = _pairs(quant.scales, quant.offsets, keep)
    encoding.numBlocksPerAxis = quant.blocks_per_axis
    encoding.blockScaleBitwidth = quant.block_scale_bitwidth
    wide = quant.block_scale_bitwidth > 8
    encoding.blockScaleStorageType = int(wide)  # ..._STORAGE_8 is 0, ..._STORAGE_16 is 1
    values = array("H" if wide else "B", quant.block_scales)
    encoding.blocksScale8 = ctypes.cast(buffer_of(values, "uint8_t", keep), ctypes.c_void_p)
    keep.append(encoding)
    into.blockwiseExpansion = ctypes.pointer(encoding)


_ENCODERS: dict[type, tuple[str, Callable[[Any, Any, Keep], None]]] = {
    ScaleOffset: ("SCALE_OFFSET", _scale_offset),
    AxisScaleOffset: ("AXIS_SCALE_OFFSET", _axis),
    BwAxisScaleOffset: ("BW_AXIS_SCALE_OFFSET", _bw_axis),
    BlockwiseExpansion: ("BLOCKWISE_EXPANSION", _blockwise),
}


def _fill_quant(into: Any, quant: Quant | None, keep: Keep) -> None:
    definition, encoding = abi.enum("Definition"), abi.enum("QuantizationEncoding")
    into.encodingDefinition = definition["UNDEFINED"]
    into.quantizationEncoding = encoding["UNDEFINED"]
    if quant is not None:
        name, fill = _ENCODERS[type(quant)]
        into.encodingDefinition = definition["DEFINED"]
        into.quantizationEncoding = encoding[name]
        fill(into, quant, keep)


def make_tensor(tensor: Tensor, keep: Keep, address: int = 0, size: int = 0) -> Any:
    """A ``Qnn_Tensor_t`` (version 1); ``address`` and ``size`` of its data where it has any."""
    made = abi.ctype("Qnn_Tensor_t")()
    made.version = 1
    made.v1.name = tensor.name.encode()
    made.v1.type = abi.enum("TensorType")[tensor.kind]
    made.v1.dataType = abi.enum("DataType")[tensor.dtype]
    _fill_quant(made.v1.quantizeParams, tensor.quant, keep)
    made.v1.rank = len(tensor.dims)
    made.v1.dimensions = ctypes.cast(
        buffer_of(array("I", tensor.dims), "uint32_t", keep), ctypes.c_void_p
    )
    made.v1.clientBuf.data = address or None
    made.v1.clientBuf.dataSize = size
    return made


def make_scalar(param: ScalarParam) -> Any:
    """A ``Qnn_Param_t`` that holds a scalar."""
    made = abi.ctype("Qnn_Param_t")()
    made.paramType = 0
    made.name = param.name.encode()
    made.scalarParam.dataType = abi.enum("DataType")[param.dtype]
    setattr(made.scalarParam, _SCALAR_FIELD[param.dtype], param.value)
    return made


def make_param_tensor(node_name: str, param: TensorParam, keep: Keep) -> Any:
    """The STATIC ``Qnn_Tensor_t`` of a tensor parameter, named after node and parameter."""
    values = array(_ARRAY_CODE[param.dtype], param.values)
    keep.append(values)
    address, count = values.buffer_info()
    tensor = Tensor(f"{node_name}_{param.name}", "STATIC", param.dtype, param.dims)
    return make_tensor(tensor, keep, address, count * values.itemsize)
