"""Cast: to the same type, to a truth value, and from float to int."""

from __future__ import annotations

from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp
from mnnqnn_tasks.translate.builder import Builder
from mnnqnn_tasks.translate.params import param
from mnnqnn_tasks.translate.registry import translates

#: Targets whose values an int32 or float tensor of MNN carries as they are.
_PLAIN = {"DT_FLOAT", "DT_INT32", "DT_INT64", "DT_HALF", "DT_DOUBLE", "DT_BFLOAT16"}


def _supports(op: SubOp, subgraph: Subgraph) -> str | None:
    target = str(param(op, "CastParam", "dstT"))
    if target not in _PLAIN | {"DT_BOOL"}:
        return f"Cast to {target}"
    source, out = (subgraph.tensors[i].dtype for i in (op.inputs[0], op.outputs[0]))
    if (source, out) == ("int32", "float32"):
        # Positions of a long context would come out as neighbours, or as infinity.
        return "integers above 2048 have no exact float16"
    return None


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
