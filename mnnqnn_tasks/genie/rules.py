"""A model of Genie's loader: the table that it builds of a set of graphs, or its refusal.

The steps stand in the loader's order; the first that fails ends the loading, and the table is
there from `_table` on.  Which release has which rule, and where it was seen, is in
`mnnqnn_tasks.genie.rulebook`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mnnqnn_tasks.genie import shapes
from mnnqnn_tasks.genie.graphs import GraphInfo, Tensor
from mnnqnn_tasks.genie.infer import MASK, Found, context, past_keys, tokens
from mnnqnn_tasks.genie.kv import Cache, analyze
from mnnqnn_tasks.genie.order import ordered
from mnnqnn_tasks.genie.prediction import LoaderConfig, Prediction, Refusal, Variant
from mnnqnn_tasks.genie.rulebook import holds
from mnnqnn_tasks.genie.versions import NEWEST, Version, nearest

_CRASH = "SIGSEGV"

Key = tuple[int, int]


@dataclass
class State:
    """What the loader knows while it loads."""

    graphs: Mapping[str, GraphInfo]
    config: LoaderConfig
    version: Version
    ar: dict[str, int] = field(default_factory=dict)
    cl: dict[str, int] = field(default_factory=dict)
    table: dict[Key, tuple[str, ...]] = field(default_factory=dict)

    def split(self, index: int) -> Iterator[tuple[Key, GraphInfo]]:
        """The graphs of a split index, by variant."""
        for key, names in self.table.items():
            if index < len(names):
                yield key, self.graphs[names[index]]

    def cache(self) -> Cache:
        """How the loader maps the KV cache."""
        return analyze(self.table, self.graphs, self.version)

    @property
    def splits(self) -> int:
        """How many split indices there are."""
        return max(map(len, self.table.values()), default=0)


def _mask(state: State) -> Iterator[Refusal]:
    if not any(graph.input(MASK) for graph in state.graphs.values()):
        yield Refusal("mask", "Default Group past_ has no associated attention mask")


def _numbers(state: State) -> Iterator[Refusal]:
    """AR and CL of every graph; the first one that fails ends the loading."""
    for name, graph in state.graphs.items():
        cl, ar = context(graph), tokens(graph, state.version)
        if cl.overflows or ar.overflows:
            yield Refusal("number", "stoi: out of range", (name,))
            return
        if ar.value is None:
            text = f"Unexpected model. Couldn't determine required input tokens {name}"
            yield Refusal("ar", text, (name,))
            return
        state.ar[name] = ar.value
        state.cl[name] = _or_none(cl)


def _or_none(found: Found) -> int:
    return -1 if found.value is None else found.value


def _table(state: State) -> Iterator[Refusal]:
    """Group by (AR, CL), order, number; graphs without CL are in the way of each other."""
    groups: dict[Key, set[str]] = {}
    known = sorted({cl for cl in state.cl.values() if cl >= 0})
    for name in state.graphs:
        for cl in known if state.cl[name] < 0 else (state.cl[name],):
            groups.setdefault((state.ar[name], cl), set()).add(name)
    taken: dict[tuple[int, int], str] = {}
    for key in sorted(groups):
        names = ordered(groups[key], state.version)
        unknown = tuple(name for name in names if state.cl[name] < 0)
        state.table[key] = names
        if len(unknown) > 1:
            yield Refusal("cl-unknown", _CRASH, unknown, crash=True)
            return
        for name in unknown:
            index, ar = names.index(name), key[0]
            other = taken.get((index, ar))
            if other is not None:
                state.table[key] = names[: index + 1]  # it stops in the middle
                text = f"qnn-htp: Detected duplicate AR-{ar} CL--1 graphs: {other} and {name}"
                yield Refusal("cl-unknown", text, (name,))
                return
            taken[index, ar] = name


def _context_size(state: State) -> Iterator[Refusal]:
    size, largest = state.config.context_size, max((cl for _, cl in state.table), default=0)
    if size is None or state.config.long_context:
        return
    message = f"Config specifies context->size={size}, but loaded max-CL={largest}"
    if size > largest:
        yield Refusal("context-size", message)
    elif size < largest and holds("context-size-equal", state.version):
        yield Refusal("context-size-equal", message)


def _kv_dimension(state: State) -> Iterator[Refusal]:
    """Scatter (CL positions) or concat (CL - AR)."""
    cache = state.cache()
    if cache.undecided:
        (ar, cl) = next(key for key, names in state.table.items() if cache.graph in names)
        text = (
            "Could not determine whether KV$ uses Scatter or Concat. KV$ has input "
            f"dimension {cache.positions}.Expected CL={cl} or CL - AR-n={cl - ar}"
        )
        yield Refusal("kv-dimension", text, (cache.graph,))


def _kv_mapping(state: State) -> Iterator[Refusal]:
    if missing := state.cache().missing:
        yield Refusal("kv-mapping", _CRASH, missing, crash=True)


def _validate(state: State) -> Iterator[Refusal]:
    for (ar, _), graph in state.split(0):
        if not any(graph.input(name) for name in shapes.FIRST_INPUTS):
            text = f"{graph.name} : input_ids - Tensor not found"
            yield Refusal("first-input", text, (graph.name,))
        for text in shapes.embeddings(graph, ar, state.config):
            yield Refusal("shape", text, (graph.name,))
    for _, graph in state.split(state.splits - 1):
        if graph.output("logits") is None:
            text = f"{graph.name} : logits - Tensor not found"
            yield Refusal("last-output", text, (graph.name,))
    entries = shapes.vocabulary(graph for _, graph in state.split(state.splits - 1))
    for (ar, _), graph in state.split(state.splits - 1):
        for text in shapes.logits(graph, ar, entries):
            yield Refusal("shape", text, (graph.name,))
    cache = state.cache()
    for key, names in state.table.items():
        for name in names:
            for text in shapes.problems(
                state.graphs[name], key, cache, state.config, state.version
            ):
                yield Refusal("shape", text, (name,))
    yield from _quantization(state)


def _quantization(state: State) -> Iterator[Refusal]:
    """One scale and offset per tensor name, in all splits and variants."""
    first: dict[str, tuple[float | None, int | None]] = {}
    for index in range(state.splits):
        for _, graph in state.split(index):
            for tensor in (*graph.inputs, *graph.outputs):
                pair = (tensor.scale, tensor.offset)
                if tensor.scale is not None and first.setdefault(tensor.name, pair) != pair:
                    text = (
                        f"{graph.name} : {tensor.name} - Non-identical quantization parameters "
                        "found for the same tensor"
                    )
                    yield Refusal("quantization", text, (graph.name,))


def _positions(state: State) -> Iterator[Refusal]:
    for wanted in ("position_ids_sin", "position_ids_cos"):
        if not any(graph.input(wanted) for graph in state.graphs.values()):
            yield Refusal("positions", f"Tensor not found: {wanted}", tuple(state.graphs))


def _kv_cache(state: State) -> Iterator[Refusal]:
    names = state.table[max(state.table)] if state.table else ()
    graphs = [state.graphs[name] for name in names]
    if not any(past_keys(graph.outputs, "_out") for graph in graphs):
        yield Refusal("kv-cache", "Invalid cache-group prefix detected: past_", names)
        return
    for graph in graphs:
        if any(graph.output(value) is None for value in _values(graph.outputs, "_out")):
            yield Refusal("kv-values", _CRASH, (graph.name,), crash=True)
            return


def _values(tensors: tuple[Tensor, ...], suffix: str) -> Iterator[str]:
    """The names that the loader looks for beside the past keys."""
    return (key.replace("past_key", "past_value", 1) for key in past_keys(tensors, suffix))


def _kv_value_inputs(state: State) -> Iterator[Refusal]:
    lacking = []
    for name in dict.fromkeys(name for names in state.table.values() for name in names):
        graph = state.graphs[name]
        if any(graph.input(value) is None for value in _values(graph.inputs, "_in")):
            lacking.append(name)
    if lacking:
        yield Refusal("kv-value-inputs", _CRASH, tuple(lacking), crash=True, chance=True)


_STEPS: tuple[tuple[str, Callable[[State], Iterator[Refusal]]], ...] = (
    ("mask", _mask),
    ("ar", _numbers),
    ("cl-unknown", _table),
    ("context-size", _context_size),
    ("kv-dimension", _kv_dimension),
    ("kv-mapping", _kv_mapping),
    ("first-input", _validate),
    ("positions", _positions),
    ("kv-cache", _kv_cache),
    ("kv-value-inputs", _kv_value_inputs),
)


def predict(
    graphs: Sequence[GraphInfo],
    config: LoaderConfig = LoaderConfig(),  # noqa: B008  # frozen
    version: Version = NEWEST,
) -> Prediction:
    """What libGenie of ``version`` does with ``graphs``.

    Of several graphs with one name the loader keeps one; the last is taken here.
    """
    release = nearest(version)
    state = State({graph.name: graph for graph in graphs}, config, release)
    refusals: list[Refusal] = []
    for key, step in _STEPS:
        if not holds(key, release):
            continue
        refusals += step(state)
        if refusals:
            break
    variants = tuple(Variant(ar, cl, names) for (ar, cl), names in state.table.items())
    return Prediction(version, variants, tuple(refusals))
