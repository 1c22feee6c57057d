"""Convolution: a 1x1 one is a Linear, [rows, channels] times weights; the rest Conv2d."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mnnqnn_tasks.errors import TranslateError
from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.qnn.ir import Param, ScalarParam, TensorParam
from mnnqnn_tasks.translate import weight as weights
from mnnqnn_tasks.translate.builder import Builder, Dims
from mnnqnn_tasks.translate.params import param
from mnnqnn_tasks.translate.registry import translates
from mnnqnn_tasks.translate.values import Stored, to_float16

#: [N, C, H, W] to [N, H, W, C] and back.
_TO_NHWC = (0, 2, 3, 1)
_TO_NCHW = (0, 3, 1, 2)

#: FullyConnected takes [oc, ic] weights, MatMul the same with ``transpose_in1``.  Both
#: give the same numbers; only FullyConnected takes a bias with per-channel scales, and
#: MatMul is prepared a little faster.
_TRANSPOSED = (
    ScalarParam("transpose_in0", "BOOL_8", False),
    ScalarParam("transpose_in1", "BOOL_8", True),
)


#: See `_add_offsets`.
_SUM_FACTOR = np.float32(64)


def _common(op: SubOp, name: str) -> int:
    value = param(op, "Convolution2D", "common", name)
    return int(value)


def _kernel(op: SubOp) -> tuple[int, int]:
    return _common(op, "kernelY"), _common(op, "kernelX")


def _pair(op: SubOp, name: str) -> tuple[int, int]:
    return _common(op, name + "Y"), _common(op, name + "X")


def _is_linear(op: SubOp, source: Dims, target: Dims) -> bool:
    """A 1x1 kernel that sees every pixel once: a Linear whose rows are pixels."""
    plain = _kernel(op) == (1, 1) and _pair(op, "stride") == (1, 1) and _common(op, "group") == 1
    return op.type == "Convolution" and plain and source[2:] == target[2:]


def _supports(op: SubOp, subgraph: Subgraph) -> str | None:
    source, target = subgraph.tensors[op.inputs[0]], subgraph.tensors[op.outputs[0]]
    if source.dtype != "float32" or target.dtype != "float32":
        return f"a convolution of {source.dtype}"
    if len(source.dims) != 4 or len(target.dims) != 4:
        return f"a convolution of shape {list(source.dims)}"
    if source.format == "NHWC":
        return "a convolution in NHWC"
    if source.dims[1] != _inputs(op, source.dims):
        return f"{source.dims[1]} channels where the weights have {_inputs(op, source.dims)}"
    if min(*_kernel(op), *_pair(op, "stride"), *_pair(op, "dilate"), _common(op, "group")) < 1:
        return "a kernel, stride, dilation or group below 1"
    if source.dims[0] != target.dims[0] or target.dims[1] != _common(op, "outputCount"):
        return f"{list(source.dims)} to {list(target.dims)}"
    if _padding(op, source.dims, target.dims) is None:
        return "a padding that does not give MNN's output shape"
    if param(op, "Convolution2D", "symmetricQuan") is not None:
        return "int8 activations"
    return None


def _inputs(op: SubOp, dims: Dims) -> int:
    if op.type == "ConvolutionDepthwise":
        return _common(op, "outputCount")
    return _common(op, "inputCount") or dims[1]


def _groups(op: SubOp) -> int:
    return _common(op, "outputCount" if op.type == "ConvolutionDepthwise" else "group")


def _padding(op: SubOp, source: Dims, target: Dims) -> tuple[int, ...] | None:
    """(top, bottom, left, right), as MNN's ``convolutionPadFull`` finds it.

    ``None`` where the sizes do not come out right.
    """
    mode = str(param(op, "Convolution2D", "common", "padMode"))
    pads = param(op, "Convolution2D", "common", "pads")
    found: list[int] = []
    for axis, size in enumerate(("Y", "X")):
        kernel = (_common(op, "kernel" + size) - 1) * _common(op, "dilate" + size) + 1
        stride, before, after = _common(op, "stride" + size), 0, 0
        length, out = source[2 + axis], target[2 + axis]
        if mode == "SAME":
            total = max(0, (out - 1) * stride + kernel - length)
            before, after = total // 2, total - total // 2
        elif mode == "CAFFE" and pads is not None and len(pads) >= 4:
            before, after = int(pads[axis]), int(pads[axis + len(pads) // 2])
        elif mode == "CAFFE":
            before = after = _common(op, "pad" + size)
        if length + before + after < kernel:
            return None
        if (length + before + after - kernel) // stride + 1 != out:
            return None
        found += [before, after]
    return tuple(found)


@translates("Convolution", "ConvolutionDepthwise", supports=_supports)
def translate(builder: Builder, op: SubOp) -> None:
    """``out = conv(x, w) + bias``, then a ReLU or ReLU6 where the op has one."""
    weight = weights.decode(builder, op)
    channels = builder.dims(op.inputs[0])[1]
    if weight.values.shape[1] * _groups(op) != channels:
        raise TranslateError(
            f"the weights are for {weight.values.shape[1] * _groups(op)} channels",
            why=f"the input has {channels}",
            todo="llm.mnn and the weight file must come from one export: export again",
        )
    if _is_linear(op, builder.dims(op.inputs[0]), builder.dims(op.outputs[0])):
        result = _linear(builder, op, weight)
    else:
        result = _conv2d(builder, op, weight)
    builder.define(op.outputs[0], _activation(builder, op, result))


def _activation(builder: Builder, op: SubOp, value: Stored) -> Stored:
    relu, relu6 = (param(op, "Convolution2D", "common", n) for n in ("relu", "relu6"))
    if relu6:
        limits = [
            ScalarParam("min_value", "FLOAT_32", 0.0),
            ScalarParam("max_value", "FLOAT_32", 6.0),
        ]
        return builder.node(
            "ReluMinMax", [value], value.dims, value.form, value.quant, limits, suffix="_relu6"
        )
    if relu:
        return builder.node("Relu", [value], value.dims, value.form, value.quant, suffix="_relu")
    return value


def _runs_fixed(builder: Builder, op: SubOp, weight: weights.Weight) -> bool:
    """16-bit activations need integer weights; otherwise the op runs in fp16."""
    return (
        builder.is_fixed(op.inputs[0])
        and builder.encoding(op.outputs[0]) is not None
        and weights.is_exact_integer(weight)
    )


def _linear(builder: Builder, op: SubOp, weight: weights.Weight) -> Stored:
    source, target = builder.dims(op.inputs[0]), builder.dims(op.outputs[0])
    fixed = _runs_fixed(builder, op, weight)
    value = builder.read(op.inputs[0], "fixed" if fixed else "float")
    if source[2:] != (1, 1):
        value = _turn(builder, builder.view(value, source), _TO_NHWC, "_nhwc")
    value = builder.view(value, (math.prod(source) // source[1], source[1]))
    offsets = weights.offsets_of(weight)
    weight = weight if offsets is None else weights.without_offsets(weight)
    inputs = [value, weights.static_weight(builder, weight, weights.LINEAR)]
    bias = weights.static_bias(builder, weight, value)
    if bias is not None:
        inputs.append(bias)
    dims = (value.dims[0], target[1])
    if fixed:
        quant = builder.encoding(op.outputs[0])
        result = builder.node("FullyConnected", inputs, dims, "fixed", quant)
    else:
        result = builder.node("MatMul", inputs, dims, "float", None, _TRANSPOSED)
        if offsets is not None:
            result = _add_offsets(builder, value, result, offsets)
    if source[2:] != (1, 1):
        nhwc = builder.view(result, tuple(target[i] for i in _TO_NHWC))
        result = _turn(builder, nhwc, _TO_NCHW, "_nchw")
    return result


def _add_offsets(
    builder: Builder, value: Stored, product: Stored, offsets: NDArray[np.float32]
) -> Stored:
    """``x @ (s q + o) = x @ (s q) + sum(x) o``: asymmetric rows keep their integers.

    The sum is taken smaller and the offsets larger by a power of two, which costs
    nothing: a sum may leave float16's range, an offset may fall into its denormals.
    """
    rows, channels = value.dims
    ones = builder.static(np.full((1, channels), 1 / _SUM_FACTOR, np.float16), "float", "_ones")
    column = builder.static(to_float16(offsets * _SUM_FACTOR)[:, None], "float", "_offset")
    kind = "MatMul"
    total = builder.node(kind, [value, ones], (rows, 1), "float", None, _TRANSPOSED, suffix="_sum")
    shift = builder.node(
        kind, [total, column], product.dims, "float", None, _TRANSPOSED, suffix="_shift"
    )
    return builder.node(
        "ElementWiseAdd", [product, shift], product.dims, "float", suffix="_shifted"
    )


def _conv2d(builder: Builder, op: SubOp, weight: weights.Weight) -> Stored:
    """In fp16 with fp16 weights, whatever they are in the model.

    libQnnHtp (2.51) accepts a Conv2d of fp16 activations with integer weights, and
    computes something else (4 dB) unless the kernel is 1x1.
    """
    source, target = builder.dims(op.inputs[0]), builder.dims(op.outputs[0])
    value = builder.read(op.inputs[0], "float", source)
    inputs = [_turn(builder, value, _TO_NHWC, "_nhwc")]
    inputs.append(weights.half_weight(builder, weight, weights.CONV))
    bias = weights.static_bias(builder, weight, value)
    if bias is not None:
        inputs.append(bias)
    padding = _padding(op, source, target)
    assert padding is not None
    params: list[Param] = [
        TensorParam("stride", "UINT_32", (2,), _pair(op, "stride")),
        TensorParam("pad_amount", "UINT_32", (2, 2), padding),
        TensorParam("dilation", "UINT_32", (2,), _pair(op, "dilate")),
    ]
    depthwise = op.type == "ConvolutionDepthwise"
    if not depthwise:
        params.append(ScalarParam("group", "UINT_32", _common(op, "group")))
    kind = "DepthWiseConv2d" if depthwise else "Conv2d"
    dims = tuple(target[i] for i in _TO_NHWC)
    out = builder.node(kind, inputs, dims, "float", None, params)
    return _turn(builder, out, _TO_NCHW, "_nchw")


def _turn(builder: Builder, value: Stored, perm: tuple[int, ...], suffix: str) -> Stored:
    dims = tuple(value.dims[i] for i in perm)
    if value.dims[2:] == (1, 1) or dims[2:] == (1, 1):
        return builder.view(value, dims)
    order = TensorParam("perm", "UINT_32", (4,), perm)
    return builder.node("Transpose", [value], dims, value.form, value.quant, [order], suffix=suffix)
