"""Which module translates which MNN op.

A module in ``translate/ops`` registers its function with a decorator; the modules are
found by listing that package, so a new op is one new file and its test.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mnnqnn_tasks.errors import UnsupportedOp
from mnnqnn_tasks.partition.subgraph import Subgraph, SubOp

if TYPE_CHECKING:
    from mnnqnn_tasks.translate.builder import Builder

#: Why an op cannot be translated, or ``None`` when it can.
Supports = Callable[[SubOp, Subgraph], str | None]
Translate = Callable[["Builder", SubOp], None]

#: HTP's tensors have at most five dimensions.
MAX_RANK = 5

#: Element types of MNN tensors that the translator carries.
DTYPES = ("float32", "int32")


@dataclass(frozen=True)
class OpTranslator:
    """The two functions of an op family, and how many inputs it takes at least and most."""

    inputs: tuple[int, int]
    supports: Supports
    translate: Translate


_TABLE: dict[str, OpTranslator] = {}


def _always(op: SubOp, subgraph: Subgraph) -> str | None:
    return None


def translates(
    *types: str, inputs: tuple[int, int] = (1, 1), supports: Supports = _always
) -> Callable[[Translate], Translate]:
    """Register the decorated function for the MNN op types ``types``.

    Args:
        types: MNN OpType names.
        inputs: how many inputs the op takes, at least and at most.
        supports: called first; returns the reason why this use of the op has no
            translation, or ``None``.
    """

    def register(function: Translate) -> Translate:
        for name in types:
            if name in _TABLE:
                raise ValueError(f"two translators for {name}")
            _TABLE[name] = OpTranslator(inputs, supports, function)
        return function

    return register


@functools.cache
def translators() -> dict[str, OpTranslator]:
    """All registered translators by MNN op type."""
    from mnnqnn_tasks.translate import ops

    for module in sorted(pkgutil.iter_modules(ops.__path__), key=lambda m: m.name):
        importlib.import_module(f"{ops.__name__}.{module.name}")
    return dict(sorted(_TABLE.items()))


def unsupported_reason(op: SubOp, subgraph: Subgraph) -> str | None:
    """Why ``op`` has to stay on the CPU, or ``None`` when it translates.

    Reads the op, its parameters and its tensors' shapes, types, constants; no weights.
    """
    found = translators().get(op.type)
    if found is None:
        return f"no translation for MNN op {op.type}"
    least, most = found.inputs
    present = [i for i in op.inputs[:least] if i >= 0]
    if len(present) < least or len(op.inputs) > most or not op.outputs or min(op.outputs) < 0:
        return f"{len(op.inputs)} inputs and {len(op.outputs)} outputs"
    for index in (*op.inputs, *op.outputs):
        if index < 0:
            continue
        tensor = subgraph.tensors[index]
        if tensor.dtype not in DTYPES:
            return f"tensor type {tensor.dtype}"
        if any(d <= 0 for d in tensor.dims):
            return f"a tensor of shape {list(tensor.dims)}"
    for index in op.outputs:
        if len(subgraph.tensors[index].dims) > MAX_RANK:
            return f"{len(subgraph.tensors[index].dims)} dimensions, the HTP has {MAX_RANK}"
    return found.supports(op, subgraph)


def require(op: SubOp, subgraph: Subgraph) -> OpTranslator:
    """The translator of ``op``.

    Raises:
        UnsupportedOp: naming the op and the reason.
    """
    reason = unsupported_reason(op, subgraph)
    if reason is not None:
        raise UnsupportedOp(
            f"op {op.name!r} ({op.type}) has no QNN translation",
            where=subgraph.graph,
            why=reason,
            todo="the op has to stay on the CPU; run the partition again",
        )
    return translators()[op.type]
