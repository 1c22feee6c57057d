"""Shapes, types, layouts and, where they are needed for shapes, values of tensors.

One small function per op type, registered in a table (`registry.RULES`); the semantics
are those of MNN's shape computers (``source/shape``) and CPU kernels.
"""

from mnnqnn_tasks.mnn.infer.content import needs_values, shape_inputs
from mnnqnn_tasks.mnn.infer.facts import DTYPES, TensorFact, of_value
from mnnqnn_tasks.mnn.infer.registry import RULES
from mnnqnn_tasks.mnn.infer.run import blob_fact, infer

__all__ = [
    "DTYPES",
    "RULES",
    "TensorFact",
    "blob_fact",
    "infer",
    "needs_values",
    "of_value",
    "shape_inputs",
]
