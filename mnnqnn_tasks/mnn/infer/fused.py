"""Ops that MNN's converter makes of whole parts of a transformer (ShapeAttention.cpp, ...).

None of them goes to the NPU; what they give is told here so that the ops behind can.
"""

from __future__ import annotations

from collections.abc import Sequence

from mnnqnn_tasks.mnn.infer.facts import TensorFact, require
from mnnqnn_tasks.mnn.infer.registry import rule
from mnnqnn_tasks.mnn.table import Table


@rule("LinearAttention")
def linear_attention(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """From ``[batch, channels, seq]``, or packed ``[seq, channels, 1, 1]``."""
    require(len(ins) >= 4 and outs == 1)
    x, heads, dim = ins[0], op.main.num_v_heads, op.main.head_v_dim
    require(heads > 0 and dim > 0)
    if x.format == "NC4HW4":
        require(x.rank == 4 and x.dims[2:] == (1, 1))
        return [TensorFact((x.dims[0] * heads, dim, 1, 1), x.dtype, x.format)]
    return [TensorFact((x.dims[0], x.dims[2], heads, dim), x.dtype, x.format)]


@rule("RoPE")
def rope(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Packed queries and keys ``[seq, heads * dim, ...]`` to ``[1, seq, heads, dim]``."""
    require(len(ins) == 4 and outs == 2)
    found = []
    for x, heads in zip(ins, (op.main.num_head, op.main.kv_num_head), strict=False):
        dim = op.main.head_dim
        require(heads > 0 and dim > 0 and x.format == "NC4HW4" and x.dims[1] == heads * dim)
        found.append(TensorFact((1, x.dims[0], heads, dim), x.dtype, "NHWC"))
    return found


@rule("GatedRMSNorm")
def gated_rms_norm(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Has the shape of the gate, ``ins[1]``."""
    require(len(ins) == 2 and outs == 1 and ins[0].size == ins[1].size)
    gate = ins[1]
    return [TensorFact(gate.dims, gate.dtype, gate.format)]


@rule("FusedLinear")
def fused_linear(op: Table, ins: Sequence[TensorFact], outs: int) -> list[TensorFact]:
    """Several 1x1 convolutions of one tensor, perhaps behind an addition and a norm."""
    param = op.main
    count = 1 if param.act_silu_mul else len(param.convs)
    require(outs == count + bool(param.has_ln))
    x = ins[1] if param.has_ln else ins[0]
    require(x.rank >= 2)
    found = []
    for conv in param.convs[:count]:
        channels = conv.common.outputCount
        require(channels > 0)
        found.append(TensorFact((x.dims[0], channels, *x.dims[2:]), x.dtype, x.format))
    if param.has_ln:
        found.append(TensorFact(ins[0].dims, ins[0].dtype, ins[0].format))
    return found
