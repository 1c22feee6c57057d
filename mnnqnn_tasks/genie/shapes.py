"""Shapes that the loader checks once it has AR and CL, with the words of its messages.

Seen with libGenie 2.47 and 2.51.  ``*`` is its sign for a dimension that it does not compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mnnqnn_tasks.genie.graphs import GraphInfo, Tensor
from mnnqnn_tasks.genie.infer import MASK, elements, past_keys, past_values
from mnnqnn_tasks.genie.kv import Cache, Key
from mnnqnn_tasks.genie.prediction import LoaderConfig
from mnnqnn_tasks.genie.rulebook import holds
from mnnqnn_tasks.genie.versions import Version

#: ``n-embd`` of a config that does not say it.
DEFAULT_EMBEDDING = 1024

#: ``pos-id-dim`` of a config that does not say it (2.47 and 2.51 tried).
DEFAULT_POSITIONS = 64

#: Embeddings per token, in ``n-embd``, by the input that takes them.
_EMBEDDINGS = {
    "inputs_embeds": 1,
    "_model_model_embed_tokens_Gather_Gather_output_0": 1,
    "_model_embedding_concat_Concat_Concat_output_0": 2,
}

#: Inputs of which the first split must have one (strings of libGenie 2.47 to 2.51).
FIRST_INPUTS = ("input_ids", *_EMBEDDINGS)

Expected = tuple[int | None, ...]


def problems(
    graph: GraphInfo, key: Key, cache: Cache, config: LoaderConfig, version: Version
) -> Iterator[str]:
    """The loader's messages about shapes of a graph in the variant ``key``, (AR, CL)."""
    for tensor, expected in _expectations(graph, key, cache, config, version):
        found = (1, 1, 1, *tensor.dims)[-3:]
        if any(want not in (None, got) for want, got in zip(expected, found, strict=True)):
            wanted = ", ".join("*" if size is None else str(size) for size in expected)
            yield (
                f"ShapeError : {tensor.name} - Expected [ {wanted}] bitwidth=*. "
                f"Found [ {', '.join(map(str, found))}] bitwidth={_bytes(tensor)}"
            )


def _bytes(tensor: Tensor) -> int:
    digits = tensor.dtype.rpartition("_")[2]
    return max(int(digits) // 8, 1) if digits.isdigit() else 0


def embeddings(graph: GraphInfo, ar: int, config: LoaderConfig) -> Iterator[str]:
    """The loader's messages about embeddings that the first split takes."""
    if config.embedding is None:
        return
    for name, factor in _EMBEDDINGS.items():
        tensor = graph.input(name)
        if tensor is not None and elements(tensor) != ar * config.embedding * factor:
            yield f"{graph.name} : {name} - Wrong input shape"


def vocabulary(graphs: Iterable[GraphInfo]) -> int:
    """What the loader takes for the vocabulary: the largest dimension of the first logits."""
    every = (graph.output("logits") for graph in graphs)
    return next((max(tensor.dims, default=0) for tensor in every if tensor), 0)


def logits(graph: GraphInfo, ar: int, entries: int) -> Iterator[str]:
    """Logits of all tokens, or of one."""
    tensor = graph.output("logits")
    if tensor is not None and elements(tensor) not in (entries, entries * ar):
        yield f"{graph.name} : logits - Wrong logits shape"


def _expectations(
    graph: GraphInfo, key: Key, cache: Cache, config: LoaderConfig, version: Version
) -> Iterator[tuple[Tensor, Expected]]:
    ar, _ = key
    mask = graph.input(MASK)
    if mask is not None:
        yield mask, (1, cache.tokens(key), cache.context(key))
    for name in ("position_ids_sin", "position_ids_cos"):
        position = graph.input(name)
        if position is not None:
            yield position, (1, ar, config.pos_id_dim)
    outputs = (*past_keys(graph.outputs, "_out"), *past_values(graph.outputs, "_out"))
    if not outputs and not holds("kv-dim", version):
        return  # which are what it takes the head dimension from
    for tensors, suffix, positions in (
        (graph.inputs, "_in", cache.past(key)),
        (graph.outputs, "_out", cache.tokens(key)),
    ):
        for past in past_keys(tensors, suffix).values():
            yield past, (None, _head(past, -2, config, version), positions)
        for past in past_values(tensors, suffix).values():
            yield past, (None, positions, _head(past, -1, config, version))


def _head(past: Tensor, axis: int, config: LoaderConfig, version: Version) -> int | None:
    """The head dimension that the loader expects of a key or value: the config's, or its own."""
    if holds("kv-dim", version):
        return config.kv_dim
    return past.dims[axis] if len(past.dims) > 1 else None
