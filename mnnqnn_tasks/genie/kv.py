"""How the loader finds its way around the KV cache.

It takes one key tensor as a reference: of the first variant that has any, the first split with
one, and there the first by name.  The reference tells whether a past key holds the whole context
(scatter) or the context without the tokens of the call (concat), and its positions in the first
split with keys of every later variant tell that variant's context.  Variants before it keep the
CL that they have.  Up to 2.49 the key output there tells the tokens that the mask and the whole
cache of the variant must have, whatever the ids say.
Tried with libGenie 2.47, 2.48, 2.49, 2.50 and 2.51.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mnnqnn_tasks.genie.graphs import GraphInfo
from mnnqnn_tasks.genie.infer import past_keys
from mnnqnn_tasks.genie.rulebook import holds
from mnnqnn_tasks.genie.versions import Version

Key = tuple[int, int]


@dataclass(frozen=True)
class Cache:
    """What the loader makes of a table of graphs.

    Attributes:
        graph: name of the graph with the reference, empty where no graph has a key.
        positions: of the reference where it was found; 0 where only its output is there.
        concat: past keys hold the context without the tokens of the call.
        contexts: context length by variant, of those that were mapped.
        calls: tokens per call by variant, where they are not those of the table.
        missing: graphs of later variants that do not write the reference in the split where the
            first variant has it.
        undecided: the reference fits neither scatter nor concat.
    """

    graph: str
    positions: int
    concat: bool
    contexts: Mapping[Key, int]
    calls: Mapping[Key, int]
    missing: tuple[str, ...] = ()
    undecided: bool = False

    def context(self, key: Key) -> int:
        """The context length that the loader expects of a variant's tensors."""
        return self.contexts.get(key, key[1])

    def tokens(self, key: Key) -> int:
        """The tokens that the loader expects of a variant's mask and KV cache."""
        return self.calls.get(key, key[0])

    def past(self, key: Key) -> int:
        """The positions that the loader expects of a variant's past keys."""
        return self.context(key) - self.tokens(key) if self.concat else self.context(key)


def _keys(graph: GraphInfo) -> dict[str, int]:
    """Positions of past keys by the name of the input; 0 where there is an output only."""
    found = {name.removesuffix("_out") + "_in": 0 for name in past_keys(graph.outputs, "_out")}
    for name, tensor in past_keys(graph.inputs, "_in").items():
        found[name] = tensor.dims[-1] if tensor.dims else 0
    return found


def analyze(
    table: Mapping[Key, tuple[str, ...]], graphs: Mapping[str, GraphInfo], version: Version
) -> Cache:
    """Find the reference and what follows from it.

    Args:
        table: names of graphs by (AR, CL), in the order of the splits.
    """
    order = sorted(table)
    for number, key in enumerate(order):
        for index, name in enumerate(table[key]):
            if _keys(graphs[name]):
                return _map(table, graphs, order[number:], index, version)
    return Cache("", 0, True, {}, {})


def _map(
    table: Mapping[Key, tuple[str, ...]],
    graphs: Mapping[str, GraphInfo],
    order: Sequence[Key],
    index: int,
    version: Version,
) -> Cache:
    """Map variants; the first of them has the reference in split ``index``."""
    (ar, cl), first = order[0], table[order[0]][index]
    reference, positions = min(_keys(graphs[first]).items())
    concat = positions != cl
    written = reference.removesuffix("_in") + "_out"
    contexts, calls, missing = {}, {}, []
    for key in order:
        holder = next((graphs[name] for name in table[key] if _keys(graphs[name])), None)
        keys = _keys(holder) if holder else {}
        output = holder.output(written) if holder else None
        if holds("kv-calls", version) and output is not None and output.dims:
            calls[key] = output.dims[-1]
        contexts[key] = keys.get(reference, 0) + (calls.get(key, key[0]) if concat else 0)
        if key != order[0] and index < len(table[key]):
            graph = graphs[table[key][index]]
            if graph.output(written) is None:
                missing.append(graph.name)
    undecided = positions not in (0, cl, cl - ar)
    return Cache(first, positions, concat, contexts, calls, tuple(missing), undecided)
