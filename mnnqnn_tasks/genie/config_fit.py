"""Whether a ``genie_config.json`` fits the graphs that it is for.

Only where the loader does not look, or not in every release: the context size is a rule of
`mnnqnn_tasks.genie.rulebook`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Literal

from mnnqnn_tasks.genie.config_problem import Problem, join
from mnnqnn_tasks.genie.config_read import BundleConfig, Raw, blocks, file_names, is_whole
from mnnqnn_tasks.genie.graphs import ContextFile, GraphInfo
from mnnqnn_tasks.genie.names import parse

_HTP = "dialog.engine.backend.QnnHtp"
_BINARY = "dialog.engine.model.binary"


def fit(config: BundleConfig, files: Sequence[ContextFile]) -> Iterator[Problem]:
    """Whether sizes and the order of the binaries fit the graphs."""
    yield from _sizes(config.raw, [graph for file in files for graph in file.graphs])
    yield from _split_order(config, files)


def _sizes(config: Raw, graphs: Sequence[GraphInfo]) -> Iterator[Problem]:
    for place, name, wanted, source in (
        ("dialog.context", "n-vocab", _last(graphs, "output", "logits", -1), "entries of logits"),
        (_HTP, "kv-dim", _last(graphs, "input", "past_key_", -2), "rows of past_key, a head"),
        (_HTP, "pos-id-dim", _last(graphs, "input", "position_ids_cos", -1), "entries of cos"),
    ):
        for at, block in blocks(config, place):
            if wanted and is_whole(block.get(name)) and block[name] not in wanted:
                sizes = " or ".join(map(str, sorted(wanted)))
                what = f"it is {block[name]}, and the graphs have {sizes} {source}"
                yield Problem(join(at, name), what, f"write {max(wanted)}")
    for at, block in blocks(config, "dialog.context"):
        yield from _tokens(at, block)


def _tokens(at: str, block: Raw) -> Iterator[Problem]:
    vocabulary = block.get("n-vocab")
    for name in ("bos-token", "eos-token", "eot-token", "pad-token"):
        ids = block.get(name)
        for token in ids if isinstance(ids, list) else [ids]:
            if is_whole(token) and is_whole(vocabulary) and token >= vocabulary:
                what = f"token {token} is not among the {vocabulary} of n-vocab"
                yield Problem(join(at, name), what, "correct the token or n-vocab")


def _last(
    graphs: Sequence[GraphInfo], kind: Literal["input", "output"], prefix: str, axis: int
) -> set[int]:
    """Sizes of one axis over all tensors with such a name."""
    return {
        tensor.dims[axis]
        for graph in graphs
        for tensor in (graph.inputs if kind == "input" else graph.outputs)
        if tensor.name.startswith(prefix) and len(tensor.dims) >= 2
    }


def _split_order(config: BundleConfig, files: Sequence[ContextFile]) -> Iterator[Problem]:
    by_path = {os.path.realpath(file.file): file for file in files}
    for at, block in blocks(config.raw, _BINARY):
        numbers = []
        for name in file_names(block, "ctx-bins"):
            file = by_path.get(os.path.realpath(config.path(name)))
            named = [parse(graph.name) for graph in file.graphs] if file else []
            numbers.append(min((one.split for one in named if one), default=None))
        known = [number for number in numbers if number is not None]
        if known != sorted(known):
            order = ", ".join("?" if number is None else str(number) for number in numbers)
            what = f"the binaries hold splits {order}"
            yield Problem(
                join(at, "ctx-bins"), what, "list them in the order of the splits", "warning"
            )
