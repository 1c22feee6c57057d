"""Cast between float and int."""

from __future__ import annotations

from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.translate.builder import Builder
from mnnqnn_tasks.translate.params import param
from mnnqnn_tasks.translate.registry import translates

#: Targets whose values an int32 or float tensor of MNN carries as they are.
_PLAIN = {"DT_FLOAT", "DT_INT32", "DT_INT64", "DT_HALF", "DT_DOUBLE", "DT_BFLOAT16"}


def _supports(op: SubOp, subgraph: Subgraph) -> str | None:
    target = str(param(op, "CastParam", "dstT"))
    return None if target in _PLAIN | {"DT_BOOL"} else f"Cast to {target}"


@translates("Cast", supports=_supports)
def translate(builder: Builder, op: SubOp) -> None:
    """The same numbers in the output's type; floats are cut towards zero."""
    source, out = op.inputs[0], op.outputs[0]
    if str(param(op, "CastParam", "dstT")) == "DT_BOOL":
        builder.define(out, builder.read(source, "bool"))
        return
    if builder.kind(source) == builder.kind(out):
        builder.alias(out, source)
        return
    value = builder.read(source, builder.kind(source))
    builder.define(out, builder.node("Cast", [value], value.dims, builder.kind(out)))
