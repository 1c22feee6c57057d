"""How the splits of a variant hand tensors on: by name, from lower to higher split indices.

libGenie 2.47 to 2.51 were asked: an input that nothing gives is filled with zeros, and neither
shapes nor types of what is handed on are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mnnqnn_tasks.genie.finding import Finding
from mnnqnn_tasks.genie.graphs import GraphInfo, Tensor
from mnnqnn_tasks.genie.infer import elements, past_keys
from mnnqnn_tasks.genie.order import split_label, split_total
from mnnqnn_tasks.genie.prediction import Variant
from mnnqnn_tasks.genie.shapes import FIRST_INPUTS

#: Inputs that the loader itself fills (names among the strings of libGenie 2.47 to 2.51).
_FILLED = re.compile(
    r"past_.*|.*position_ids.*|.*attention_mask|cache_index|token_type_ids|valid_token_mask"
    r"|anchor_buffer|cross_attention_.*|full_text_row_masked_out_mask|per_layer_inputs"
    r"|linear_attn_mask|conv_masks|num_last_accepted|.*alpha.*|lora.*|target_hidden_states"
    r"|draft_tree_mask|encoder_.*"
)


def check(
    variant: Variant, graphs: Mapping[str, GraphInfo], versions: tuple[str, ...]
) -> Iterator[Finding]:
    """Findings about one variant: its splits are complete, joined and of one mind."""
    splits = [graphs[name] for name in variant.graphs]
    yield from _count(variant, versions)
    made: dict[str, tuple[GraphInfo, Tensor]] = {}
    later = {t.name: g for g in splits for t in g.outputs if not t.name.startswith("past_")}
    for index, graph in enumerate(splits):
        yield from _kv_pairs(graph, versions)
        open_inputs = [t for t in graph.inputs if not _given(t)]
        linked = [t for t in open_inputs if t.name in made]
        early = [t for t in open_inputs if t.name not in made and t.name in later]
        lost = [t for t in open_inputs if t.name not in made and t.name not in later]
        for tensor in linked:
            yield from _link(tensor, graph, *made[tensor.name], versions)
        for tensor in early:
            what = f"{graph.name} reads {tensor.name}, which {later[tensor.name].name} gives later"
            yield Finding("too-early", what, (graph.name, later[tensor.name].name), versions)
        joined = bool(linked or early or not index)
        for tensor in lost:
            rule = "zero-filled" if joined else "unconnected"
            what = f"{graph.name} reads {tensor.name}, which no split gives"
            yield Finding(rule, what, (graph.name,), versions)
        if not joined and not lost:
            what = f"{graph.name} reads nothing of the splits before it"
            yield Finding("unconnected", what, (graph.name,), versions)
        made |= {t.name: (graph, t) for t in graph.outputs}


def _given(tensor: Tensor) -> bool:
    return tensor.name in FIRST_INPUTS or _FILLED.fullmatch(tensor.name) is not None


def _link(
    tensor: Tensor, graph: GraphInfo, giver: GraphInfo, given: Tensor, versions: tuple[str, ...]
) -> Iterator[Finding]:
    differ = []
    if elements(tensor) != elements(given):
        differ.append(f"{list(given.dims)} becomes {list(tensor.dims)}")
    if tensor.dtype != given.dtype:
        differ.append(f"{given.dtype} becomes {tensor.dtype}")
    if differ:
        what = f"{tensor.name} from {giver.name} to {graph.name}: {'; '.join(differ)}"
        yield Finding("link-differs", what, (giver.name, graph.name), versions)


def _kv_pairs(graph: GraphInfo, versions: tuple[str, ...]) -> Iterator[Finding]:
    """Keys without values, and caches that are read and never written."""
    for suffix, tensors in (("_in", graph.inputs), ("_out", graph.outputs)):
        names = {tensor.name for tensor in tensors}
        for key in past_keys(tensors, suffix):
            value = key.replace("past_key", "past_value", 1)
            if value not in names:
                what = f"{graph.name} has {key} and no {value}"
                yield Finding("kv-pair", what, (graph.name,), versions)


def _count(variant: Variant, versions: tuple[str, ...]) -> Iterator[Finding]:
    """Whether the names of a variant count from 1 to T, each once."""
    place = f"AR-{variant.ar} CL-{variant.cl}"
    labels: dict[int | str, list[str]] = {}
    for name in variant.graphs:
        label = split_label(name)
        key: int | str = name if label is None else int(label) if label.isdigit() else label
        labels.setdefault(key, []).append(name)
    for key, names in labels.items():
        if len(names) > 1:
            what = f"split {key} of {place} is there {len(names)} times: {', '.join(names)}"
            yield Finding("splits-twice", what, tuple(names), versions)
    totals = {total for name in variant.graphs if (total := split_total(name)) is not None}
    if len(totals) > 1:
        what = f"the names of {place} say {' and '.join(map(str, sorted(totals)))} splits"
        yield Finding("splits-missing", what, variant.graphs, versions)
    elif totals and len(labels) < min(totals):
        absent = _absent(labels, min(totals))
        what = f"{place} has {len(labels)} of {min(totals)} splits{absent}"
        yield Finding("splits-missing", what, variant.graphs, versions)


def _absent(labels: Mapping[int | str, list[str]], total: int) -> str:
    if total > 1000 or any(isinstance(label, str) for label in labels):
        return ""
    missing = [str(number) for number in range(1, total + 1) if number not in labels]
    return f", without {', '.join(missing)}" if missing else ""
