"""How good is good enough, and why.

Float activations run in fp16 on the NPU.  An fp16 number has 11 bits of mantissa, so
one rounding adds noise about 73 dB below the signal; the few dozen roundings of a
decoder layer, with sums that are kept in fp16 too, measure 57 to 65 dB on graphs that
are right.  A graph that is wrong measures far less: operators that a library
miscomputes and transposed axes -1 to 25 dB, scales that are off by 2 % 34 dB.  50 dB
sits in the gap, with room for layers that are wider or deeper than the ones measured.

With 16-bit static activations the noise is set by the calibration of each tensor (its
range over 65535 steps) and by weights of 4 bits whose scales the NPU keeps in its own
form, so a ratio in dB says more about the model than about its translation.  A cosine
of 0.99 is 17 dB: clipping, wrong signedness and wrong scales all fall below it.

The chain adds up the noise of all layers, and attention is not linear in it; what
matters at its end is which token is the most likely one.  A cosine of 0.999 (27 dB) on
the logits of a float model leaves the order of all but near-ties alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mnnqnn_tasks.qnn.ir import Graph
from mnnqnn_tasks.verify.metrics import Comparison

Activations = Literal["float", "fixed"]


@dataclass(frozen=True)
class Thresholds:
    """Lowest values that pass.

    Attributes:
        graph_snr_db: every output of a graph with float activations, dB.
        graph_cosine: every output of a graph with fixed-point activations.
        chain_cosine: logits of the chain, all graphs with float activations.
        chain_cosine_fixed: logits of the chain, some graph with fixed-point ones.
    """

    graph_snr_db: float = 50.0
    graph_cosine: float = 0.99
    chain_cosine: float = 0.999
    chain_cosine_fixed: float = 0.99

    def graph_miss(self, kind: Activations, found: Comparison) -> str | None:
        """Why an output of a graph fails, or ``None``."""
        if kind == "float":
            return _miss("SNR", found.snr_db, self.graph_snr_db, " dB")
        return _miss("cosine", found.cosine, self.graph_cosine)

    def chain_miss(self, kind: Activations, found: Comparison) -> str | None:
        """Why the logits of a chain fail, or ``None``."""
        limit = self.chain_cosine if kind == "float" else self.chain_cosine_fixed
        return _miss("cosine", found.cosine, limit)


def _miss(name: str, value: float, limit: float, unit: str = "") -> str | None:
    # Written so that NaN is a miss.
    if value >= limit:
        return None
    digits = 1 if unit else 5
    return f"{name} {value:.{digits}f}{unit} is below {limit:g}{unit}"


def activations(graph: Graph) -> Activations:
    """``fixed`` where any tensor that is computed (not stored) is fixed-point."""
    moving = (t for t in graph.tensors if t.kind != "STATIC")
    return "fixed" if any("FIXED_POINT" in t.dtype for t in moving) else "float"


def strictest(kinds: Iterable[Activations]) -> Activations:
    """The kind of a chain: ``fixed`` if any of its graphs is."""
    return "fixed" if "fixed" in set(kinds) else "float"
