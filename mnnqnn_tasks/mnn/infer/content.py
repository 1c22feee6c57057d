"""Which inputs of an op are read for their values, not only for their shapes.

Two questions that MNN keeps apart:

* `needs_values`: does the op's *result* depend on the values of an input
  (OpCommonUtils.cpp, ``opNeedContent``)?  ``Shape`` does not.
* `shape_inputs`: on the values of which inputs does the *shape* of its result depend
  (SizeComputer.cpp, ``needInputContent``, and the ``REGISTER_SHAPE_INPUTS`` table)?
"""

from __future__ import annotations

from mnnqnn_tasks.mnn.table import Table

_NO_VALUES = frozenset({"ZerosLike", "ZeroGrad", "Shape", "Rank", "Const", "Size", "PriorBox"})

#: Op type -> the one input of which only the shape counts.
_SHAPE_ONLY: dict[str, int] = {
    "Interp": 1,
    "Crop": 1,
    "Reshape": 1,
    "Reduction": 1,
    "Resize": 1,
    "GridSample": 2,
}


def needs_values(op: Table, index: int) -> bool:
    """Whether the result of ``op`` depends on the values of input ``index``."""
    return op.type not in _NO_VALUES and _SHAPE_ONLY.get(op.type) != index


_SHAPE_INPUTS: dict[str, tuple[int, ...]] = {
    "BatchToSpaceND": (1, 2),
    "BroadcastTo": (1,),
    "Col2Im": (1,),
    "CosineSimilarity": (2,),
    "CropAndResize": (3,),
    "CumSum": (1,),
    "ExpandDims": (1,),
    "Fill": (0,),
    "GatherV2": (2,),
    "GridSample": (2,),
    "Interp": (1,),
    "Interp3D": (1,),
    "LinSpace": (2,),
    "NonMaxSuppressionV2": (2, 3),
    "OneHot": (1,),
    "Padding": (1,),
    "QuantizedReshape": (1,),
    "RandomNormal": (0,),
    "RandomUniform": (0,),
    "Range": (0, 1, 2),
    "Reduction": (1,),
    "Reshape": (1,),
    "Reverse": (1,),
    "ReverseSequence": (1,),
    "ScatterNd": (2,),
    "Segment": (1,),
    "SetDiff1D": (0, 1),
    "Slice": (1,),
    "SliceTf": (1, 2),
    "SpaceToBatchND": (1, 2),
    "Squeeze": (1,),
    "Stft": (1,),
    "TensorArray": (0,),
    "TensorArrayErase": (1,),
    "TensorArrayGather": (1,),
    "TensorArrayInsert": (1,),
    "TensorArrayRead": (1,),
    "TensorArrayScatter": (1,),
    "TensorArraySplit": (2,),
    "TensorArrayWrite": (1,),
    "Tile": (1,),
    "TopKV2": (1, 2),
    "Transpose": (1,),
    "Unique": (0,),
    "Unsqueeze": (1,),
    "Where": (0,),
}


def shape_inputs(op: Table, count: int) -> tuple[int, ...]:
    """Indices, all below ``count``, of the inputs whose values the result's shape needs."""
    indices = _SHAPE_INPUTS.get(op.type, ())
    if op.type == "StridedSlice":
        if op.main is not None and op.main.fields.get("fromType", 0) == 1:
            indices = (1, 2, 3, 4)
        else:
            indices = () if count == 5 else (1, 2, 3)
    elif op.type == "Deconvolution" and op.main is not None and "common" in op.main:
        indices = (count - 1,) if op.main.common.hasOutputShape else ()
    return tuple(i for i in indices if i < count)
