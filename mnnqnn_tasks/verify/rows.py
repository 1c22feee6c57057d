"""Positions inside tensors: a tensor of n tokens is n tensors of one token.

The axis of the tokens is the one on which a tensor of a chunk differs from the same
tensor of a decode call.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mnnqnn_tasks.verify.metrics import Array

Dims = tuple[int, ...]
Mask = NDArray[np.bool_]


def token_axis(dims: Dims, single: Dims) -> int | None:
    """The axis of the tokens, or ``None`` if there is none or not just one.

    Args:
        dims: of the tensor for a chunk.
        single: of the same tensor for one token.
    """
    if len(dims) != len(single):
        return None
    differing = [
        axis for axis, pair in enumerate(zip(dims, single, strict=True)) if len({*pair}) > 1
    ]
    if len(differing) != 1 or single[differing[0]] != 1:
        return None
    return differing[0]


def one_row(array: Array, single: Dims, row: int) -> Array | None:
    """Token ``row`` of a chunk's tensor in the shape ``single``; ``None`` if it has no such.

    A tensor that does not depend on the number of tokens is its own row.
    """
    if array.shape == single:
        return array
    axis = token_axis(array.shape, single)
    return None if axis is None else np.take(array, [row], axis=axis)


def rows_where(array: Array, axis: int, mask: Mask) -> Array:
    """The tokens of ``array`` at which ``mask`` holds."""
    return np.compress(mask, array, axis=axis)


def any_per_row(flags: Mask, axis: int) -> Mask:
    """Whether any of a token's flags is set, by token."""
    others = tuple(i for i in range(flags.ndim) if i != axis)
    return np.asarray(flags.any(axis=others))
