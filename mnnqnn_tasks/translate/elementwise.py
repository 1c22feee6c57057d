"""Shapes and forms of element-wise ops with several inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mnnqnn_tasks.partition.subgraph import Subgraph
from mnnqnn_tasks.translate.builder import Builder, Dims


def broadcast_dims(builder: Builder, inputs: Sequence[int], output: int) -> tuple[list[Dims], Dims]:
    """Dims in which the inputs are read and the output is written.

    Where every input is as large as the output or a single number, shapes do not
    matter: all take the dims in which the first full input is held, so nothing is
    reshaped.  Otherwise shapes are aligned at the right with leading ones, as MNN
    and numpy broadcast.
    """
    out = builder.dims(output)
    size = math.prod(out)
    shapes = [builder.dims(i) for i in inputs]
    held = [builder.stored(i) for i in inputs]
    full = [s.dims for s in held if s is not None and math.prod(s.dims) == size]
    if full and all(math.prod(s) in (1, size) for s in shapes):
        base = full[0]
        ones = (1,) * len(base)
        return [base if math.prod(s) == size else ones for s in shapes], base
    rank = max(len(out), *(len(s) for s in shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return padded, (1,) * (rank - len(out)) + out


def broadcast_reason(subgraph: Subgraph, inputs: Sequence[int], output: int) -> str | None:
    """Why the shapes of an element-wise op do not fit, or ``None``."""
    out = subgraph.tensors[output].dims
    for index in inputs:
        dims = subgraph.tensors[index].dims
        pairs = zip(reversed(dims), reversed(out), strict=False)
        fits = len(dims) <= len(out) and all(d in (1, o) for d, o in pairs)
        if not fits and math.prod(dims) not in (1, math.prod(out)):
            return f"shape {list(dims)} does not broadcast to {list(out)}"
    return None
