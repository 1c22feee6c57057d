"""The table of inference rules: op type -> function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mnnqnn_tasks.mnn.infer.facts import TensorFact
from mnnqnn_tasks.mnn.table import Table

#: ``rule(op, input facts, number of outputs)`` -> facts of the outputs; raises `Unknown`.
Rule = Callable[[Table, Sequence[TensorFact], int], list[TensorFact]]

RULES: dict[str, Rule] = {}


def rule(*types: str) -> Callable[[Rule], Rule]:
    """Register the decorated function for ``types`` (MNN OpType names)."""

    def register(function: Rule) -> Rule:
        for name in types:
            RULES[name] = function
        return function

    return register
