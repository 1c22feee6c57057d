"""Translates a subgraph: every op in order, then the outputs."""

from __future__ import annotations

from mnnqnn_tasks.errors import TranslateError
from mnnqnn_tasks.partition.subgraph import Subgraph
from mnnqnn_tasks.translate import registry
from mnnqnn_tasks.translate.builder import Builder, ByteReader, Translated


def translate(subgraph: Subgraph, read_bytes: ByteReader) -> Translated:
    """The QNN graph of ``subgraph`` and the bytes of its static tensors.

    The result depends on the arguments alone: same names, same order, same bytes.

    Args:
        subgraph: ops with shapes, constants and digests of weights.
        read_bytes: gives the bytes behind a digest.

    Raises:
        UnsupportedOp: when an op has no translation; the message names it.
        TranslateError: when the subgraph contradicts itself.
    """
    builder = Builder(subgraph, read_bytes)
    for op in subgraph.ops:
        translator = registry.require(op, subgraph)
        builder.scope(op)
        try:
            translator.translate(builder, op)
        except TranslateError as error:
            error.where = f"{subgraph.graph}, op {op.name!r} ({op.type})"
            raise
    return builder.finish()
