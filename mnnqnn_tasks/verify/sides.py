"""The two sides that are compared, as the rest of this package sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mnnqnn_tasks.verify.metrics import Array
from mnnqnn_tasks.verify.thresholds import Activations

Arrays = Mapping[str, Array]

#: Runs a model on the CPU: input arrays by tensor name, wanted names -> arrays.
Cpu = Callable[[Arrays, Sequence[str]], dict[str, Array]]


class Npu(Protocol):
    """Runs graphs on the host emulator."""

    def activations(self, graph: str) -> Activations:
        """Whether the graph computes in float or in fixed point."""

    def execute(self, graph: str, sets: Sequence[Arrays]) -> list[dict[str, Array]]:
        """Compile once, execute every set; arrays by the graph's own tensor names.

        Raises:
            MnnqnnError: when the library refuses the graph or crashes.
        """
