"""A convolution's weights as numbers.

MNN stores them as float32, float16, int8 or packed integers with a scale (and, if
asymmetric, a minimum) per output channel or per block of a channel.  The rules are
those of ``ConvolutionCommon::load`` in MNN's ``ConvolutionCommon.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mnnqnn_tasks.errors import MnnqnnError, ModelFileError, UnsupportedOp
from mnnqnn_tasks.mnn import idst
from mnnqnn_tasks.mnn.params import (
    WeightRange,
    check_range,
    convolution_ranges,
    field_default,
    file_offset,
    inline_vectors,
    net_ops,
    net_ranges,
    params_as_json,
)

__all__ = [
    "FloatWeight",
    "QuantWeight",
    "WeightRange",
    "check_range",
    "convolution_ranges",
    "decode_convolution",
    "file_offset",
    "inline_vectors",
    "net_ops",
    "net_ranges",
    "params_as_json",
]

Blobs = Mapping[str, "bytes | memoryview"]
Float32s = npt.NDArray[np.float32]
Int8s = npt.NDArray[np.int8]

#: MNN's ``IDSTQuan.type``.
_DENSE, _SPARSE, _HALF, _BYTES, _FLOAT = 1, 2, 3, 4, 8


@dataclass(frozen=True)
class FloatWeight:
    """Weights that are stored as floats.

    Attributes:
        values: float32, [oc, ic] for a 1x1 kernel, else [oc, ic, kh, kw]; ic is per group.
        bias: float32 [oc]; zeros if the model has none.
    """

    values: Float32s
    bias: Float32s

    def dequantize(self) -> Float32s:
        """The weights as float32, in the shape of ``values``."""
        return self.values


@dataclass(frozen=True)
class QuantWeight:
    """Weights that are stored as integers: ``real = scale * q + offset``.

    ``q`` is signed, as MNN computes with it.  The offset is thus the real value of
    q = 0, not of the smallest q: a file that stores the minimum of the range
    (``aMin`` <= 0) has ``offset = min - clamp * scale``, where clamp is ``aMin``, or
    -128 if that is 0; a file of MNN's LLM exporter (``aMin`` 1) stores the offset
    itself, which is ``min + 8 * scale`` for 4 bits and ``min + 128 * scale`` for 8.

    Attributes:
        values: int8, [oc, ic] for a 1x1 kernel, else [oc, ic, kh, kw]; ic is per group.
        bits: width of a stored value, 1 to 8; q lies in -2^(bits-1) .. 2^(bits-1)-1.
        scales: float32 [oc, blocks].
        offsets: float32 [oc, blocks], or ``None`` where the weights are symmetric.
        block: values that share a scale: the size of a row divided by ``blocks``.
        bias: float32 [oc]; zeros if the model has none.
    """

    values: Int8s
    bits: int
    scales: Float32s
    offsets: Float32s | None
    block: int
    bias: Float32s

    def dequantize(self) -> Float32s:
        """The weights as float32, in the shape of ``values``."""
        rows, blocks = self.scales.shape
        real = self.values.reshape(rows, blocks, self.block).astype(np.float32)
        real *= self.scales[:, :, None]
        if self.offsets is not None:
            real += self.offsets[:, :, None]
        return real.reshape(self.values.shape)


class _Params:
    """The parameters of one convolution, with MNN's defaults, and its arrays."""

    def __init__(self, params: Mapping[str, Any], blobs: Blobs) -> None:
        self.params = params
        self.blobs = blobs
        self.common: Mapping[str, Any] = params.get("common", {})
        self.quan: Mapping[str, Any] | None = params.get("quanParameter")

    def common_int(self, name: str) -> int:
        return int(self.common.get(name, field_default("Convolution2DCommon", name)))

    def quan_value(self, name: str) -> Any:
        assert self.quan is not None
        return self.quan.get(name, field_default("IDSTQuan", name))

    def array(self, kind: str, *roles: str) -> npt.NDArray[Any] | None:
        """The first of ``roles`` that is there, as numbers of the numpy type ``kind``."""
        for role in roles:
            if role in self.blobs:
                data = memoryview(self.blobs[role]).cast("B")
                if len(data) % np.dtype(kind).itemsize:
                    raise ModelFileError(
                        "damaged weight",
                        why=f"its {role} has {len(data)} bytes, no whole number of {kind}",
                        todo="copy the whole weight file, or export the model again",
                    )
                return np.frombuffer(data, kind)
            value: Any = self.params
            for name in role.split("."):
                value = value.get(name) if isinstance(value, Mapping) else None
            if value is not None:
                numbers = [float(v) for v in value] if kind == "<f4" else value
                return np.array(numbers, kind)
        return None


def decode_convolution(
    params: Mapping[str, Any], blobs: Blobs, *, name: str = ""
) -> QuantWeight | FloatWeight:
    """Decode the weights of a Convolution or ConvolutionDepthwise.

    Args:
        params: its ``Convolution2D`` table as `params_as_json` gives it.
        blobs: the bytes of its arrays by role, as `convolution_ranges` and
            `inline_vectors` name them.
        name: the op's name, for messages.

    Raises:
        ModelFileError: when the data is cut short or contradicts itself.
        UnsupportedOp: when the weights are stored in a way that is not known here.
    """
    try:
        return _decode(_Params(params, blobs))
    except MnnqnnError as error:
        error.where = error.where or (f"op {name}" if name else None)
        raise


def _decode(conv: _Params) -> QuantWeight | FloatWeight:
    channels = conv.common_int("outputCount")
    if channels <= 0:
        raise ModelFileError(
            "damaged convolution", why=f"it has {channels} output channels", todo="export again"
        )
    bias = conv.array("<f4", "bias")
    if bias is None:
        bias = np.zeros(channels, np.float32)
    elif len(bias) != channels:
        raise _mismatch("bias values", len(bias), channels)
    if conv.quan is None:
        values = conv.array("<f4", "weight")
        if values is None:
            raise _unsupported("it has no weights of its own: they come from another op")
        return FloatWeight(_shaped(conv, values, channels), bias)
    kind = int(conv.quan_value("type"))
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise _unsupported(f"its weights are stored as type {kind}")
    return decoder(conv, channels, bias)


def _unsupported(why: str) -> UnsupportedOp:
    return UnsupportedOp("the weights of this convolution cannot be read", why=why)


def _mismatch(what: str, found: int, expected: int) -> ModelFileError:
    return ModelFileError(
        "damaged convolution",
        why=f"it has {found} {what}, {expected} would fit",
        todo="llm.mnn and the weight file must come from one export: export again",
    )


def _shaped(conv: _Params, values: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    kernel = (conv.common_int("kernelY"), conv.common_int("kernelX"))
    row = channels * math.prod(kernel)
    if row <= 0 or len(values) == 0 or len(values) % row:
        raise _mismatch("weights", len(values), row)
    per_row = len(values) // row
    inputs, group = conv.common_int("inputCount"), max(1, conv.common_int("group"))
    # Depthwise convolutions of older exporters leave inputCount at 0 or at the group.
    if group == 1 and inputs not in (0, per_row):
        raise _mismatch("weights", len(values), row * inputs)
    shape = (channels, per_row) if kernel == (1, 1) else (channels, per_row, *kernel)
    return values.reshape(shape)


def _alpha(conv: _Params) -> Float32s:
    half = conv.quan_value("scaleStorage") == "FP16"
    kind, inline = ("<f2", "alphaFp16") if half else ("<f4", "alpha")
    if inline == "alphaFp16" and "scale" not in conv.blobs:
        bits = conv.array("<u2", "quanParameter.alphaFp16")
        alpha = None if bits is None else bits.view("<f2")
    else:
        alpha = conv.array(kind, "scale", f"quanParameter.{inline}")
    if alpha is None or len(alpha) == 0:
        raise _mismatch("scales", 0, 1)
    return alpha.astype(np.float32)


def _packed(conv: _Params) -> memoryview:
    # The inline buffer wins where both exist, as in MNN.
    data = conv.array("i1", "quanParameter.buffer", "weight")
    if data is None:
        raise _mismatch("bytes of weights", 0, 1)
    return data.data.cast("B")


def _dense(conv: _Params, channels: int, bias: Float32s) -> QuantWeight | FloatWeight:
    if conv.array("<u4", "index", "quanParameter.index") is not None:
        return _indexed(conv, channels, bias)
    unpacked = idst.unpack_dense(_packed(conv), bool(conv.quan_value("shapeInt32")))
    return _quantized(conv, channels, bias, unpacked, _alpha(conv))


def _sparse(conv: _Params, channels: int, bias: Float32s) -> QuantWeight | FloatWeight:
    if conv.array("<u4", "index", "quanParameter.index") is not None:
        return _indexed(conv, channels, bias)
    alpha = _alpha(conv)
    wide = bool(conv.quan_value("shapeInt32"))
    unpacked = idst.unpack_sparse(_packed(conv), wide, alpha)
    return _quantized(conv, channels, bias, unpacked, alpha)


def _bytes(conv: _Params, channels: int, bias: Float32s) -> QuantWeight:
    values = np.frombuffer(_packed(conv), np.int8)
    unpacked = idst.Unpacked(values, 8, (len(values),))
    return _quantized(conv, channels, bias, unpacked, _alpha(conv))


def _half(conv: _Params, channels: int, bias: Float32s) -> FloatWeight:
    data = _packed(conv)
    if len(data) % 2:
        raise _mismatch("bytes of float16 weights", len(data), len(data) + 1)
    values = np.frombuffer(data, "<f2").astype(np.float32)
    return FloatWeight(_shaped(conv, values, channels), bias)


def _float(conv: _Params, channels: int, bias: Float32s) -> FloatWeight:
    values = conv.array("<f4", "weight")
    if values is None:
        raise _mismatch("weights", 0, channels)
    return FloatWeight(_shaped(conv, values, channels), bias)


def _indexed(conv: _Params, channels: int, bias: Float32s) -> FloatWeight:
    """Float weights of which only those at ``index`` are not zero."""
    index = conv.array("<u4", "index", "quanParameter.index")
    assert index is not None
    alpha = _alpha(conv)
    count = int(conv.quan_value("weightSize"))
    if len(alpha) != len(index):
        raise _mismatch("values for sparse weights", len(alpha), len(index))
    if len(index) and int(index.max()) >= count:
        raise _mismatch("weights", count, int(index.max()) + 1)
    values = np.zeros(count, np.float32)
    values[index] = alpha
    return FloatWeight(_shaped(conv, values, channels), bias)


def _quantized(
    conv: _Params, channels: int, bias: Float32s, unpacked: idst.Unpacked, alpha: Float32s
) -> QuantWeight:
    values = _shaped(conv, unpacked.values, channels)
    clamp, factor = int(conv.quan_value("aMin")), np.float32(conv.quan_value("quantScale"))
    old = int(conv.quan_value("type")) == _BYTES and clamp == 0 and abs(factor) < 1e-6
    asymmetric = int(conv.quan_value("readType")) != 0 or old
    per_scale = 2 if asymmetric else 1
    row = values.size // channels
    blocks, rest = divmod(len(alpha), channels * per_scale)
    if rest or blocks == 0 or row % blocks:
        raise _mismatch("scales", len(alpha) // per_scale, channels)
    table = alpha.reshape(channels, blocks, per_scale)
    scales = table[:, :, -1]
    offsets = table[:, :, 0] if asymmetric else None
    if offsets is not None and clamp <= 0:
        offsets = offsets - np.float32(clamp or -128) * scales
    if not old and factor != 1 and not conv.quan_value("has_scaleInt"):
        scales = scales * factor
        offsets = None if offsets is None else offsets * factor
    return QuantWeight(
        values,
        unpacked.bits,
        np.ascontiguousarray(scales),
        None if offsets is None else np.ascontiguousarray(offsets),
        row // blocks,
        bias,
    )


_DECODERS = {
    _DENSE: _dense,
    _SPARSE: _sparse,
    _HALF: _half,
    _BYTES: _bytes,
    _FLOAT: _float,
}
