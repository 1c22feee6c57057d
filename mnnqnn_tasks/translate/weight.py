"""The static tensors of a Linear: weights and bias in the best form that is exact.

Measured on the HTP emulator (QNN 2.51, fp16 activations, random data, signal to noise
against float32 mathematics) and in context binaries:

=====================================  ======  ==========================
weights                                dB      bytes per weight in binary
=====================================  ======  ==========================
int8, per channel (axis encoding)      68      1
int4, per channel (bw-axis encoding)   71      0.5
float16                                71      2
=====================================  ======  ==========================

So per-channel weights keep their integers and the model's own scales, bit for bit.  If
they are asymmetric, a Linear of fp16 activations adds the sum of a row times the offset
of each channel (67 to 70 dB); QNN's own offsets are ignored by libQnnHtp (28 dB).
Everything else (blocks of a row with their own scales, floats) is dequantized to
float16: QNN refuses block encodings beside fp16 activations, and one scale for a whole
row costs more than 50 dB allow.  A product per block, added up, is exact, a third of the
size and still 61 to 66 dB, but preparing it takes up to twenty times as long (2048 x
2048, blocks of 64, 128 rows: 6.2 s instead of 0.3 s of CPU), so it is not done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mnnqnn_tasks.errors import UnsupportedOp
from mnnqnn_tasks.mnn.weights import FloatWeight, QuantWeight, decode_convolution
from mnnqnn_tasks.partition.subgraph import SubOp
from mnnqnn_tasks.qnn.ir import AxisScaleOffset, BwAxisScaleOffset, Quant, ScaleOffset
from mnnqnn_tasks.translate.builder import Builder
from mnnqnn_tasks.translate.values import FLOAT16_MAX, Stored, to_float16

Weight = QuantWeight | FloatWeight

#: Storage bits that have an encoding of their own; other widths are stored in int8.
_PACKED_BITS = 4


@dataclass(frozen=True)
class Layout:
    """Where a weight's axes go: ``perm`` of [oc, ic(, kh, kw)], and the axis of oc then."""

    perm: tuple[int, ...]
    channel_axis: int


#: [oc, ic] as the model has it: no bytes are moved.
LINEAR = Layout((0, 1), 0)
#: [oc, ic, kh, kw] to QNN's [kh, kw, ic, oc]; ic is 1 for a depthwise one.
CONV = Layout((2, 3, 1, 0), 3)


def decode(builder: Builder, op: SubOp) -> Weight:
    """The op's weights as numbers (views of the file where nothing has to be unpacked)."""
    blobs = {role: builder.read_bytes(ref) for role, ref in op.weights.items()}
    return decode_convolution(op.params, blobs, name=op.name)


def is_exact_integer(weight: Weight) -> bool:
    """Whether the integers and scales of ``weight`` can be given to QNN as they are."""
    return (
        isinstance(weight, QuantWeight)
        and weight.offsets is None
        and weight.scales.shape[1] == 1
        and bool(np.isfinite(weight.scales).all() and (weight.scales > 0).all())
    )


def offsets_of(weight: Weight) -> NDArray[np.float32] | None:
    """The offset of every row where that is all that keeps the integers from being exact."""
    if isinstance(weight, QuantWeight) and weight.offsets is not None:
        plain = replace(weight, offsets=None)
        return weight.offsets[:, 0] if is_exact_integer(plain) else None
    return None


def without_offsets(weight: Weight) -> Weight:
    """``weight`` as if it were symmetric; the caller adds what is missing."""
    return replace(weight, offsets=None) if isinstance(weight, QuantWeight) else weight


def static_weight(builder: Builder, weight: Weight, layout: Layout) -> Stored:
    """The weight as a static tensor in ``layout``: integers where exact, else float16."""
    if isinstance(weight, QuantWeight) and is_exact_integer(weight):
        values = weight.values.transpose(layout.perm)
        quant = _channel_encoding(weight, layout.channel_axis)
        data = np.ascontiguousarray(values)
        name = builder.static_raw(data, "SFIXED_POINT_8", data.shape, quant, "_weight")
        return Stored(name, "fixed", data.shape, quant)
    return half_weight(builder, weight, layout)


def half_weight(builder: Builder, weight: Weight, layout: Layout) -> Stored:
    """The weight dequantized to float16; [oc, ic] counts as a 1x1 kernel for `CONV`."""
    values = _half(weight)
    values = values.reshape(values.shape + (1,) * (len(layout.perm) - values.ndim))
    return builder.static(values.transpose(layout.perm), "float", "_weight")


def _channel_encoding(weight: QuantWeight, axis: int) -> Quant:
    scales = tuple(weight.scales[:, 0].tolist())
    offsets = (0,) * len(scales)
    if weight.bits <= _PACKED_BITS:
        return BwAxisScaleOffset(axis, _PACKED_BITS, scales, offsets)
    return AxisScaleOffset(axis, scales, offsets)


def _half(weight: Weight) -> NDArray[np.float16]:
    """``weight`` dequantized, some rows at a time: no float32 copy of the whole."""
    out = np.empty(weight.values.shape, np.float16)
    rows = max(1, (1 << 22) // max(1, weight.values[0].size))
    for start in range(0, len(out), rows):
        part = _rows(weight, slice(start, start + rows)).dequantize()
        if np.abs(part).max(initial=0) > FLOAT16_MAX or not np.isfinite(part).all():
            raise UnsupportedOp(
                "the weights do not fit into float16",
                why=f"the largest is {np.abs(part).max()!r}",
                todo="the op has to stay on the CPU",
            )
        out[start : start + rows] = part
    return out


def _rows(weight: Weight, rows: slice) -> Weight:
    if isinstance(weight, FloatWeight):
        return FloatWeight(weight.values[rows], weight.bias[rows])
    offsets = None if weight.offsets is None else weight.offsets[rows]
    return QuantWeight(
        weight.values[rows],
        weight.bits,
        weight.scales[rows],
        offsets,
        weight.block,
        weight.bias[rows],
    )


def static_bias(builder: Builder, weight: Weight, source: Stored) -> Stored | None:
    """The bias for an input ``source``, or ``None`` where it is zero.

    float16 for a float input.  For a 16-bit one it is SFIXED_POINT_32 with the scale of
    the accumulator, input scale times weight scale, channel by channel; any other scale
    makes libQnnHtp round it (17 dB).
    """
    bias = weight.bias
    if not bias.any():
        return None
    if source.form == "float":
        return builder.static(to_float16(bias), "float", "_bias")
    assert isinstance(weight, QuantWeight) and isinstance(source.quant, ScaleOffset)
    scales = np.float32(source.quant.scale) * weight.scales[:, 0]
    stored = np.rint(bias.astype(np.float64) / scales)
    limit = np.iinfo(np.int32)
    data = np.clip(stored, limit.min, limit.max).astype("<i4")
    quant = AxisScaleOffset(0, tuple(scales.tolist()), (0,) * len(scales))
    name = builder.static_raw(data, "SFIXED_POINT_32", data.shape, quant, "_bias")
    return Stored(name, "int", data.shape, quant)
