"""LayerNorm: layer norm and RMS norm over the last axes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mnnqnn_tasks.errors import TranslateError
from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.qnn.ir import Param, ScalarParam, TensorParam
from mnnqnn_tasks.translate.builder import Builder
from mnnqnn_tasks.translate.consts import positive_axis
from mnnqnn_tasks.translate.params import param
from mnnqnn_tasks.translate.registry import translates
from mnnqnn_tasks.translate.values import Form, to_float16


def _supports(op: SubOp, subgraph: Subgraph) -> str | None:
    dims = subgraph.tensors[op.inputs[0]].dims
    if len(op.inputs) not in (1, 2) or len(op.inputs) != len(op.outputs):
        return f"{len(op.inputs)} inputs and {len(op.outputs)} outputs"
    if any(subgraph.tensors[i].dims != dims for i in op.inputs):
        return "inputs of different shapes"
    if param(op, "LayerNorm", "group") > 1:
        return f"{param(op, 'LayerNorm', 'group')} groups"
    axes = param(op, "LayerNorm", "axis")
    if axes is None:
        return "no axis"
    front = sorted(-1 if (f := positive_axis(int(a), len(dims))) is None else f for a in axes)
    if not front or front != list(range(len(dims) - len(front), len(dims))):
        return f"axes {list(axes)} that are not the last ones"
    return None


def _floats(builder: Builder, op: SubOp, role: str, size: int) -> NDArray[np.float32] | None:
    if role in op.weights:
        values = np.frombuffer(builder.read_bytes(op.weights[role]), "<f4")
    elif (inline := op.params.get(role)) is not None and len(inline):
        values = np.asarray(inline, np.float32)
    else:
        return None
    if values.size != size:
        raise TranslateError(
            f"{role} has {values.size} values for an axis of {size}",
            todo="llm.mnn and the weight file must come from one export: export again",
        )
    return values


@translates("LayerNorm", inputs=(1, 2), supports=_supports)
def translate(builder: Builder, op: SubOp) -> None:
    """``x * rsqrt(mean(x^2) + eps) * gamma + beta``; layer norm subtracts the mean first.

    With two inputs their sum is normalized and is the first output, too.

    All rows are flattened into one dimension: libQnnHtp computes RmsNorm wrongly for
    many shapes with two leading dimensions above 1 (2.47 and 2.51).  16-bit activations
    keep RmsNorm in fixed point (80 dB), its weights with a scale of their own; LayerNorm
    is computed in fp16.
    """
    dims = builder.dims(op.inputs[0])
    size = math.prod(dims[len(dims) - len(param(op, "LayerNorm", "axis")) :])
    rows = (math.prod(dims) // size, size)
    out = op.outputs[-1]
    source = op.inputs[0]
    if len(op.inputs) == 2:
        source = op.outputs[0]
        terms = [builder.read(i, "float", rows) for i in op.inputs]
        builder.define(source, builder.node("ElementWiseAdd", terms, rows, "float", suffix="_sum"))
    encoding = builder.encoding(out)
    rms = bool(param(op, "LayerNorm", "useRMSNorm"))
    fixed = rms and encoding is not None and builder.is_fixed(source)
    form: Form = "fixed" if fixed else "float"
    value = builder.read(source, form, rows)
    gamma = _floats(builder, op, "gamma", size)
    beta = _floats(builder, op, "beta", size)
    gamma = np.ones(size, np.float32) if gamma is None else gamma
    beta = np.zeros(size, np.float32) if beta is None else beta
    inputs = [value]
    for values, suffix in ((gamma, "_gamma"), (beta, "_beta")):
        if fixed:
            inputs.append(builder.static_fixed(values, suffix))
        else:
            inputs.append(builder.static(to_float16(values), "float", suffix))
    params: list[Param] = [
        ScalarParam("epsilon", "FLOAT_32", float(np.float32(param(op, "LayerNorm", "epsilon")))),
        TensorParam("axes", "UINT_32", (1,), (1,)),
    ]
    quant = encoding if fixed else None
    builder.define(
        out, builder.node("RmsNorm" if rms else "LayerNorm", inputs, rows, form, quant, params)
    )
