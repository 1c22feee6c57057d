"""What the names of graphs promise, against what the loader takes from their tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mnnqnn_tasks.genie.finding import Finding
from mnnqnn_tasks.genie.graphs import GraphInfo
from mnnqnn_tasks.genie.infer import Found, context, context_by_name, tokens, tokens_by_name
from mnnqnn_tasks.genie.order import split_label
from mnnqnn_tasks.genie.versions import NEWEST

_EXPLICIT_CL = re.compile(r"(?:cl|CL)_?[0-9]")
_KIND = re.compile(r"(?:^|_)(prompt|token)(?:_|$)")


def numbers(names: Sequence[str]) -> str:
    """The split labels of names, in order, for a message: ``10, 11, 1, 2``."""
    return ", ".join(split_label(name) or name for name in names)


def check(graphs: Sequence[GraphInfo], versions: tuple[str, ...]) -> Iterator[Finding]:
    """Findings about names, whatever the release."""
    for graph in graphs:
        yield from _incomplete(graph, versions)
        yield from _contradicts(graph, versions)


def _incomplete(graph: GraphInfo, versions: tuple[str, ...]) -> Iterator[Finding]:
    name = graph.name
    missing = [] if tokens_by_name(name).value is not None else ["ar"]
    explicit = _EXPLICIT_CL.search(name) is not None
    missing += [] if explicit else ["cl"]
    length = context(graph)
    if not explicit and length.source == "name":
        what = f"{name}: the loader takes {length.value} for its context length"
        yield Finding("cl-guessed", what, (name,), versions)
    elif missing:
        what = f"{name} has no {' and no '.join(missing)} with a number"
        yield Finding("name-incomplete", what, (name,), versions)


def _contradicts(graph: GraphInfo, versions: tuple[str, ...]) -> Iterator[Finding]:
    name, ar, cl = graph.name, tokens(graph, NEWEST), context(graph)
    said = []
    if _differ(ar, tokens_by_name(name)):
        said.append(f"AR {tokens_by_name(name).value}, {ar.source} has {ar.value}")
    if _EXPLICIT_CL.search(name) and _differ(cl, context_by_name(name)):
        said.append(f"CL {context_by_name(name).value}, {cl.source} has {cl.value}")
    kind = _KIND.search(name)
    if kind and ar.value is not None and (kind[1] == "prompt") != (ar.value > 1):
        said.append(f"{kind[1]}, and the graph takes {ar.value} tokens")
    if said:
        yield Finding("name-contradicts", f"{name} says {'; '.join(said)}", (name,), versions)


def _differ(tensor: Found, name: Found) -> bool:
    return (
        tensor.source not in ("", "name") and name.value is not None and tensor.value != name.value
    )
