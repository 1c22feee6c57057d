"""Whether a ``genie_config.json`` fits the graphs that it is for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeGuard

from mnnqnn_tasks.genie.config_problem import Problem, join
from mnnqnn_tasks.genie.config_read import Raw, blocks
from mnnqnn_tasks.genie.graphs import ContextFile, GraphInfo
from mnnqnn_tasks.genie.names import parse

_HTP = "dialog.engine.backend.QnnHtp"
_BINARY = "dialog.engine.model.binary"


def chip(files: Mapping[str, ContextFile], soc: int | None) -> Iterator[Problem]:
    """Whether the binaries were made for the SoC id that the extensions file names."""
    for name, file in files.items():
        if soc is not None and file.soc_id is not None and file.soc_id != soc:
            yield Problem(
                "dialog.engine.backend.extensions",
                f"it names SoC {soc}, and {name} was made for SoC {file.soc_id}",
                "compile the binary for the chip, or correct soc_model",
            )


def fit(config: Raw, files: Mapping[str, ContextFile]) -> Iterator[Problem]:
    """Whether sizes and the order of the binaries fit the graphs."""
    graphs = [graph for file in files.values() for graph in file.graphs]
    yield from _sizes(config, graphs)
    yield from _split_order(config, files)


def _sizes(config: Raw, graphs: Sequence[GraphInfo]) -> Iterator[Problem]:
    for place, name, wanted, source in (
        ("dialog.context", "n-vocab", _last(graphs, "output", "logits", -1), "entries of logits"),
        (_HTP, "kv-dim", _last(graphs, "input", "past_key_", -2), "rows of past_key, a head"),
        (_HTP, "pos-id-dim", _last(graphs, "input", "position_ids_cos", -1), "entries of cos"),
    ):
        for at, block in blocks(config, place):
            if wanted and _is_int(block.get(name)) and block[name] not in wanted:
                sizes = " or ".join(map(str, sorted(wanted)))
                what = f"it is {block[name]}, and the graphs have {sizes} {source}"
                yield Problem(join(at, name), what, f"write {max(wanted)}")
    for at, block in blocks(config, "dialog.context"):
        yield from _context(at, block, graphs)


def _context(at: str, block: Mapping[str, Any], graphs: Sequence[GraphInfo]) -> Iterator[Problem]:
    lengths = _last(graphs, "input", "attention_mask", -1)
    size, vocabulary = block.get("size"), block.get("n-vocab")
    if lengths and _is_int(size) and size != max(lengths):
        what = f"it is {size}, and the largest context length of the graphs is {max(lengths)}"
        more = size > max(lengths)
        what += ": libGenie refuses it" if more else ": the rest is not used, 2.42 refuses it"
        todo = f"write {max(lengths)}"
        yield Problem(join(at, "size"), what, todo, "error" if more else "warning")
    for name in ("bos-token", "eos-token", "eot-token", "pad-token"):
        ids = block.get(name)
        for token in ids if isinstance(ids, list) else [ids]:
            if _is_int(token) and _is_int(vocabulary) and token >= vocabulary:
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


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _split_order(config: Raw, files: Mapping[str, ContextFile]) -> Iterator[Problem]:
    for at, block in blocks(config, _BINARY):
        listed = block.get("ctx-bins")
        if not isinstance(listed, list):
            continue
        numbers = []
        for name in listed:
            file = files.get(name) if isinstance(name, str) else None
            named = [parse(graph.name) for graph in file.graphs] if file else []
            numbers.append(min((one.split for one in named if one), default=None))
        known = [number for number in numbers if number is not None]
        if known != sorted(known):
            order = ", ".join("?" if number is None else str(number) for number in numbers)
            what = f"the binaries hold splits {order}"
            yield Problem(
                join(at, "ctx-bins"), what, "list them in the order of the splits", "warning"
            )
