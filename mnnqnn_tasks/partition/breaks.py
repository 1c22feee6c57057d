"""Ops that never go to the NPU, with the reason, and the ops that feed an attention mask.

The rules are those of MNN's ``compilefornpu.cpp`` (``isBreakOp``, ``_npuSupportOp``,
``_findMaskToAttentionOps``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.partition.net_view import CONST_OPS, NetOp, NetView

_CONTROL = "control flow runs on the CPU"
_CONTENT = "the shape of its result depends on the values of its inputs"


def _while(op: Table) -> str | None:
    # A While with a LoopParam is a plain loop that MNN made of one op, not control flow.
    is_control = op.main is not None and op.main.type_name == "WhileParam"
    return _CONTROL if is_control else None


def _attention(op: Table) -> str | None:
    cached = op.main is not None and op.main.type_name == "AttentionParam" and op.main.kv_cache
    return "the KV cache is kept on the CPU" if cached else None


#: Op type -> why an op of this type stays on the CPU, or ``None`` if this one need not.
BREAK_OPS: dict[str, Callable[[Table], str | None]] = {
    "If": lambda op: _CONTROL,
    "While": _while,
    "Where": lambda op: _CONTENT,
    "Segment": lambda op: _CONTENT,
    "Unique": lambda op: _CONTENT,
    "NonMaxSuppressionV2": lambda op: _CONTENT,
    "Attention": _attention,
    "LinearAttention": lambda op: "the state of linear attention is kept on the CPU",
}

_ATTENTIONS = frozenset({"Attention", "LinearAttention"})


def break_reason(op: NetOp) -> str | None:
    """Why ``op`` stays on the CPU whatever its inputs, or ``None``."""
    rule = BREAK_OPS.get(op.type)
    return None if rule is None else rule(op.table)


def mask_ops(view: NetView, needed: Iterable[int], inputs: Collection[int]) -> frozenset[int]:
    """Needed ops between an ``attention_mask`` input and an Attention on the CPU.

    The mask is as long as the history, so what is computed from it on the way to such an
    Attention cannot have one shape on the NPU.
    """
    masks = {t for t in inputs if "attention_mask" in view.names[t]}
    if not masks:
        return frozenset()
    needed = tuple(needed)
    depends = set(masks)
    for index in needed:
        op = view.ops[index]
        if op.type not in _ATTENTIONS and any(t in depends for t in op.inputs):
            depends.update(op.outputs)
    found: set[int] = set()
    for index in needed:
        op = view.ops[index]
        if op.type not in _ATTENTIONS or break_reason(op) is None:
            continue
        todo = [t for t in op.inputs if t in depends]
        seen: set[int] = set()
        while todo:
            tensor = todo.pop()
            if tensor in seen or tensor in masks:
                continue
            seen.add(tensor)
            source = view.ops[view.producer[tensor]]
            if source.type in CONST_OPS:
                continue
            found.add(source.index)
            todo.extend(t for t in source.inputs if t in depends)
    return frozenset(found)


MASK_REASON = "it makes an attention mask, as long as the history, for an Attention on the CPU"
