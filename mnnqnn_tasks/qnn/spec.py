"""The legality rules of the graph IR, as code: checked where a graph enters and leaves."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

from mnnqnn_tasks.errors import NetFileError
from mnnqnn_tasks.qnn.ir import (
    DTYPE_BYTES,
    AxisScaleOffset,
    BlockwiseExpansion,
    BwAxisScaleOffset,
    Graph,
    Node,
    Quant,
    ScalarParam,
    ScaleOffset,
    Tensor,
    TensorParam,
)

#: Types that the host passes through a graph's border.  MNN's runtime passes FLOAT_16 for a
#: KV cache alone (``_mnn_mask``, ``_mnn_i0``, ``_mnn_o0``); what is translated here has none.
BORDER_DTYPES = ("FLOAT_32", "INT_32", "FLOAT_16")
SCALAR_DTYPES = ("FLOAT_32", "INT_32", "UINT_32", "BOOL_8")
TENSOR_PARAM_DTYPES = ("UINT_32", "INT_32", "FLOAT_32")
_KINDS = ("APP_WRITE", "APP_READ", "NATIVE", "STATIC")
_RANGES = {"INT_32": (-(1 << 31), (1 << 31) - 1), "UINT_32": (0, (1 << 32) - 1)}
_BITS = {"4": 4, "8": 8, "16": 16, "32": 32}
_SHA256 = re.compile(r"[0-9a-f]{64}")

Problems = Iterator[str]


def check(graph: Graph, where: str | None = None) -> None:
    """Check every rule.

    Args:
        graph: the graph.
        where: its file, for the message.

    Raises:
        NetFileError: naming the first tensor or node that breaks a rule, and the rule.
    """
    for place, problem in problems(graph):
        raise NetFileError(
            f"{place}: {problem}",
            where=where or graph.name or "graph",
            why="a rule of the graph IR is broken",
            todo="remove the file and translate again" if where else None,
        )


def problems(graph: Graph) -> Iterator[tuple[str, str]]:
    if not graph.name:
        yield "graph", "has no name"
    if not graph.nodes:
        yield "graph", "has no node"
    tensors: dict[str, Tensor] = {}
    for tensor in graph.tensors:
        if tensor.name in tensors:
            yield f"tensor {tensor.name}", "the name is used twice"
        tensors[tensor.name] = tensor
        for problem in _tensor(tensor):
            yield f"tensor {tensor.name}", problem
    names: set[str] = set()
    ready = {t.name for t in graph.tensors if t.kind in ("APP_WRITE", "STATIC")}
    for node in graph.nodes:
        if node.name in names:
            yield f"node {node.name}", "the name is used twice"
        names.add(node.name)
        for problem in _node(node, tensors, ready):
            yield f"node {node.name}", problem
        ready.update(node.outputs)
    for tensor in graph.tensors:
        if tensor.name not in ready:
            yield f"tensor {tensor.name}", "no node produces it"
    if not graph.outputs():
        yield "graph", "has no output"


def _tensor(tensor: Tensor) -> Problems:
    if not tensor.name:
        yield "the name is empty"
    if tensor.kind not in _KINDS:
        yield f"unknown kind {tensor.kind}"
    if tensor.dtype not in DTYPE_BYTES:
        yield f"unknown dtype {tensor.dtype}"
        return
    if not tensor.dims:
        yield "has no dimension; QNN wants at least one"
    if any(dim <= 0 or dim > 0xFFFFFFFF for dim in tensor.dims):
        yield f"dims {list(tensor.dims)} are not all positive"
    if tensor.kind in ("APP_WRITE", "APP_READ") and tensor.dtype not in BORDER_DTYPES:
        yield f"{tensor.dtype} cannot pass the graph's border, only {' or '.join(BORDER_DTYPES)}"
    yield from _blob(tensor)
    fixed = "FIXED_POINT" in tensor.dtype
    if tensor.quant is None and fixed:
        yield f"{tensor.dtype} needs a quantization encoding"
    if tensor.quant is not None:
        if not fixed:
            yield f"{tensor.dtype} cannot have a quantization encoding"
        else:
            yield from _QUANT_RULES[type(tensor.quant)](tensor, tensor.quant)


def _blob(tensor: Tensor) -> Problems:
    if (tensor.blob is not None) != (tensor.kind == "STATIC"):
        yield "STATIC tensors, and only they, have a blob"
    elif tensor.blob is not None:
        if not _SHA256.fullmatch(tensor.blob.sha256):
            yield f"{tensor.blob.sha256!r} is no SHA-256"
        if tensor.blob.size != tensor.size:
            yield f"blob of {tensor.blob.size} bytes for a tensor of {tensor.size}"


def _scale(scale: float) -> bool:
    return math.isfinite(scale) and scale > 0


def _per_tensor(_tensor: Tensor, quant: Quant) -> Problems:
    assert isinstance(quant, ScaleOffset)
    if not _scale(quant.scale):
        yield f"scale {quant.scale} is not a positive number"
    yield from _offsets((quant.offset,))


def _offsets(offsets: tuple[int, ...]) -> Problems:
    low, high = _RANGES["INT_32"]
    if offsets and not (low <= min(offsets) and max(offsets) <= high):
        yield "an offset does not fit 32 bits"


def _per_axis(
    tensor: Tensor, axis: int, scales: tuple[float, ...], offsets: tuple[int, ...]
) -> Problems:
    if not 0 <= axis < len(tensor.dims):
        yield f"quantization axis {axis} of a tensor of rank {len(tensor.dims)}"
    elif len(scales) != tensor.dims[axis]:
        yield f"{len(scales)} scales for {tensor.dims[axis]} channels of axis {axis}"
    if len(offsets) != len(scales):
        yield f"{len(offsets)} offsets for {len(scales)} scales"
    # One look at all first: a model has hundreds of thousands of scales.
    if scales and not (min(scales) > 0 and math.isfinite(sum(scales))):
        for index, scale in enumerate(scales):
            if not _scale(scale):
                yield f"scale {scale} of channel {index} is not a positive number"
    yield from _offsets(offsets)


def _axis(tensor: Tensor, quant: Quant) -> Problems:
    assert isinstance(quant, AxisScaleOffset)
    yield from _per_axis(tensor, quant.axis, quant.scales, quant.offsets)


def _bw_axis(tensor: Tensor, quant: Quant) -> Problems:
    assert isinstance(quant, BwAxisScaleOffset)
    bits = _BITS[tensor.dtype.rsplit("_", 1)[1]]
    if not 1 <= quant.bitwidth <= bits:
        yield f"bitwidth {quant.bitwidth} does not fit {tensor.dtype}"
    yield from _per_axis(tensor, quant.axis, quant.scales, quant.offsets)


def _blockwise(tensor: Tensor, quant: Quant) -> Problems:
    assert isinstance(quant, BlockwiseExpansion)
    yield from _per_axis(tensor, quant.axis, quant.scales, quant.offsets)
    if not 1 <= quant.block_scale_bitwidth <= 16:
        yield f"block scale bitwidth {quant.block_scale_bitwidth} is not in 1..16"
    expected = len(quant.scales) * quant.blocks_per_axis
    if quant.blocks_per_axis < 1 or len(quant.block_scales) != expected:
        yield f"{len(quant.block_scales)} block scales, not {expected}"
    # QNN takes 16 for 4 bits as what it is; 8 and 16 bits end where their storage does.
    most = min(1 << quant.block_scale_bitwidth, 0xFF if quant.block_scale_bitwidth <= 8 else 0xFFFF)
    if any(not 0 <= s <= most for s in quant.block_scales):
        yield f"a block scale of {quant.block_scale_bitwidth} bits is not in 0..{most}"


_QUANT_RULES: dict[type, Callable[[Tensor, Quant], Problems]] = {
    ScaleOffset: _per_tensor,
    AxisScaleOffset: _axis,
    BwAxisScaleOffset: _bw_axis,
    BlockwiseExpansion: _blockwise,
}


def _node(node: Node, tensors: dict[str, Tensor], ready: set[str]) -> Problems:
    if not (node.name and node.type and node.package):
        yield "name, type and package must not be empty"
    if not node.outputs:
        yield "has no output"
    for name in node.inputs:
        if name not in tensors:
            yield f"input {name} does not exist"
        elif name not in ready:
            yield f"input {name} is used before a node produces it"
    for name in node.outputs:
        if name not in tensors:
            yield f"output {name} does not exist"
        elif tensors[name].kind not in ("NATIVE", "APP_READ"):
            yield f"output {name} is a {tensors[name].kind} tensor"
        elif name in ready:
            yield f"output {name} is produced twice"
    if len({param.name for param in node.params}) != len(node.params):
        yield "a parameter is given twice"
    for param in node.params:
        yield from _param(param)


def _param(param: ScalarParam | TensorParam) -> Problems:
    values: tuple[float | int | bool, ...]
    allowed: tuple[str, ...]
    if isinstance(param, ScalarParam):
        allowed, values = SCALAR_DTYPES, (param.value,)
    else:
        allowed, values = TENSOR_PARAM_DTYPES, param.values
        if not param.dims or math.prod(param.dims) != len(values) or min(param.dims) < 1:
            yield f"parameter {param.name}: {len(values)} values for dims {list(param.dims)}"
    if param.dtype not in allowed:
        yield f"parameter {param.name}: dtype {param.dtype} is not one of {', '.join(allowed)}"
    for value in values:
        if problem := _value(param.dtype, value):
            yield f"parameter {param.name}: {problem}"


def _value(dtype: str, value: float | int | bool) -> str | None:
    if dtype == "BOOL_8":
        return None if value in (0, 1) else f"{value} is no truth value"
    if dtype == "FLOAT_32":
        return None if math.isfinite(value) else f"{value} is not finite"
    low, high = _RANGES.get(dtype, (0, 0))
    if isinstance(value, float):
        return f"{value} is no integer"
    return None if low <= value <= high else f"{value} does not fit {dtype}"
