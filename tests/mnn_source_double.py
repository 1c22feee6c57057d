"""A double of the source writer in MNN's ``compilefornpu``, for the graphs in ``../shared/golden``.

The golden data holds what MNN's tool wrote as JSON: every tensor and node, the names of
parameters, sizes and digests of the raw data.  This renders it as C++ in the form that
MNN's ``QNNConvertor`` gives it: six decimals, four pairs a line, its names and its order.
What the record lacks is found again where it can be: raw bytes by their digest among what
the model file gives, values of parameters from our own translation of the same op.  The rest
is made up to fit: values that follow from the shapes, and random bytes.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mnnqnn_tasks.qnn.ir import Param, ScalarParam, TensorParam

Fields = dict[str, Any]
#: Graph, node and parameter name -> a parameter of our own translation.
Params = Mapping[tuple[str, str, str], Param]
Dims = Sequence[int]


def _perm(name: str, ins: list[Dims], outs: list[Dims], _rank: int) -> list[int]:
    usual = {"_pre_convert": (0, 2, 3, 1), "_post_convert": (0, 3, 1, 2)}
    known = [order for end, order in usual.items() if name.endswith(end)]
    orders = [*known, *itertools.permutations(range(len(ins[0])))]
    return list(next(o for o in orders if [ins[0][i] for i in o] == list(outs[0])))


def _concat_axis(_name: str, ins: list[Dims], outs: list[Dims], _rank: int) -> list[int]:
    for axis, size in enumerate(outs[0]):
        if sum(dims[axis] for dims in ins) == size and ins[0][axis] != size:
            return [axis]
    raise AssertionError(ins)


def _multiples(_name: str, ins: list[Dims], outs: list[Dims], _rank: int) -> list[int]:
    return [out // size for size, out in zip(ins[0], outs[0], strict=True)]


def _ranges(_name: str, ins: list[Dims], outs: list[Dims], _rank: int) -> list[int]:
    """From the start along every axis; an axis that the output lacks is cut to one."""
    lost = len(ins[0]) - len(outs[0])
    ends = [1] * lost + list(outs[0])
    return [number for end in ends for number in (0, end, 1)]


def _shrink(_name: str, ins: list[Dims], outs: list[Dims], _rank: int) -> list[int]:
    return [(1 << (len(ins[0]) - len(outs[0]))) - 1]


def _fixed(*values: int | float) -> Callable[..., list[Any]]:
    return lambda *_: list(values)


#: Op and parameter -> data type of a scalar, and the values.
_VALUES: dict[tuple[str, str], tuple[str, Callable[..., list[Any]]]] = {
    ("RmsNorm", "epsilon"): ("FLOAT_32", _fixed(1e-06)),
    ("RmsNorm", "axes"): ("", lambda _n, ins, _o, _r: [len(ins[0]) - 1]),
    ("Transpose", "perm"): ("", _perm),
    ("Tile", "multiples"): ("", _multiples),
    ("Gather", "axis"): ("INT_32", _fixed(0)),
    ("Concat", "axis"): ("UINT_32", _concat_axis),
    ("StridedSlice", "ranges"): ("", _ranges),
    ("StridedSlice", "begin_mask"): ("UINT_32", _fixed(0)),
    ("StridedSlice", "end_mask"): ("UINT_32", _fixed(0)),
    ("StridedSlice", "shrink_axes"): ("UINT_32", _shrink),
    ("StridedSlice", "new_axes_mask"): ("UINT_32", _fixed(0)),
    ("Conv2d", "stride"): ("", _fixed(1, 1)),
    ("Conv2d", "pad_amount"): ("", _fixed(0, 0, 0, 0)),
    ("Conv2d", "dilation"): ("", _fixed(1, 1)),
    ("Conv2d", "group"): ("UINT_32", _fixed(1)),
    ("MatMul", "transpose_in0"): ("BOOL_8", _fixed(0)),
    ("MatMul", "transpose_in1"): ("BOOL_8", _fixed(0)),
}
_SCALAR = {"FLOAT_32": "float", "INT_32": "int32", "UINT_32": "uint32", "BOOL_8": "bool8"}
_C_TYPE = {"UINT_32": "uint32_t", "INT_32": "int"}


def six(value: float) -> str:
    """A float as ``std::to_string`` prints it."""
    return f"{value:.6f}"


class Double:
    """Renders one graph of the record."""

    def __init__(self, graph: Fields, params: Params | None = None) -> None:
        self.graph = graph
        self.params = params or {}
        self.tensors: dict[str, Fields] = {t["name"]: t for t in graph["tensors"]}
        #: Values of the tensors of parameters, and the tensor of each node's parameter.
        self.values: dict[str, list[Any]] = {}
        self.param_tensors: dict[tuple[str, str], str] = {}
        for node in graph["nodes"]:
            for param in node["params"]:
                if name := self._tensor_of(node["name"], param):
                    self.param_tensors[node["name"], param] = name
                    self.values[name] = self.value(node, param)

    def _tensor_of(self, node: str, param: str) -> str | None:
        """``<node>_<param>_PARAM``; parts of a node share the beginning of its name."""
        best = ""
        for name in self.tensors:
            base, found, rest = name.rpartition(f"_{param}_")
            if found and rest.endswith("PARAM") and node.startswith(base) and len(name) > len(best):
                best = name
        return best or None

    def value(self, node: Fields, param: str) -> list[Any]:
        """Ours where the same op has the parameter in the same shape, else what fits."""
        ours = self.params.get((self.graph["graph"], node["name"], param))
        if ours is not None and node["type"] == "StridedSlice":
            name = self._tensor_of(node["name"], param)
            if name is None and isinstance(ours, ScalarParam):
                return [ours.value]
            same = name and isinstance(ours, TensorParam)
            if same and list(ours.dims) == self.tensors[name]["dims"]:
                return list(ours.values)
        ins, outs = ([self.tensors[t]["dims"] for t in node[k]] for k in ("inputs", "outputs"))
        return _VALUES[node["type"], param][1](node["name"], ins, outs, len(ins[0]))

    def text(self) -> str:
        """The source."""
        return "\n".join([*self._begin(), *self._body(), *self._end()]) + "\n"

    def _begin(self) -> Iterator[str]:
        name, indent = self.graph["graph"], " " * 36
        yield '#include "QnnModel.hpp"\n#include "QnnOpDef.h"\n'
        yield "// Flag to determine if Backend should node validation for each opNode added"
        yield "#define DO_GRAPH_NODE_VALIDATIONS 1\n"
        yield 'using namespace qnn_wrapper_api;\nextern "C" {\nQNN_API'
        yield "ModelError_t QnnModel_composeGraphs(Qnn_BackendHandle_t backendHandle,"
        for line in (
            "QNN_INTERFACE_VER_TYPE interface,",
            "Qnn_ContextHandle_t contextHandle,",
            "const GraphConfigInfo_t** graphsConfigInfo,",
            "const uint32_t numGraphsConfigInfo,",
            "GraphInfoPtr_t** graphsInfo,",
            "uint32_t* numGraphsInfo,",
            "bool debug,",
            "QnnLog_Callback_t logCallback,",
            "QnnLog_Level_t maxLogLevel) {",
        ):
            yield indent + line
        yield f"  ModelError_t err = MODEL_NO_ERROR;\n\n  /* model/graph for {name}*/"
        yield f"  QnnModel {name};\n  const QnnGraph_Config_t** graphConfigs = nullptr;"
        yield "  VALIDATE(getQnnGraphConfigFromInfo("
        yield f'               "{name}", graphsConfigInfo, numGraphsConfigInfo, graphConfigs),'
        yield f"           err);\n  VALIDATE({name}.initialize(backendHandle,"
        for line in ("interface,", "contextHandle,", f'"{name}",', "debug,"):
            yield indent + line
        yield f"{indent}DO_GRAPH_NODE_VALIDATIONS,\n{indent}graphConfigs),\n           err);\n"

    def _body(self) -> Iterator[str]:
        """Every tensor just before the first node that needs it or one that comes later."""
        order, done = list(self.tensors), 0
        for node in self.graph["nodes"]:
            used = [*node["inputs"], *node["outputs"]]
            used += [
                self.param_tensors[key]
                for param in node["params"]
                if (key := (node["name"], param)) in self.param_tensors
            ]
            upto = max(done, *(order.index(name) + 1 for name in used))
            for name in order[done:upto]:
                yield from self._tensor(self.tensors[name])
            done = upto
            yield from self._node(node)
        for name in order[done:]:
            yield from self._tensor(self.tensors[name])

    def _tensor(self, tensor: Fields) -> Iterator[str]:
        name, encoding = tensor["name"], tensor["encoding"]
        symbol = f"tensor_{name}"
        dims = ", ".join(map(str, tensor["dims"]))
        yield f"\n  // Adding Tensor for {name}.\n  uint32_t dimensions_{name}[] = {{{dims}}};"
        if name in self.values:
            values = ", ".join(map(str, self.values[name]))
            yield f"  {_C_TYPE[tensor['dataType']]} data_{name}[] = {{{values}}};"
        yield from _QUANTS[encoding][0](symbol, tensor)
        yield f"  Qnn_Tensor_t {symbol} = QNN_TENSOR_INIT;\n  {{"
        yield f"  {symbol}.version = QNN_TENSOR_VERSION_1;"
        data, size = "nullptr", "0"
        if name in self.values:
            data, size = f"data_{name}", str(4 * math.prod(tensor["dims"]))
        elif "raw" in tensor:
            data, size = f"BINVARSTART({name})", f"BINLEN({name})"
        for line in (
            "id = 0",
            f'name = "{name}"',
            f"type = QNN_TENSOR_TYPE_{tensor['type']}",
            "dataFormat = QNN_TENSOR_DATA_FORMAT_FLAT_BUFFER",
            f"dataType = QNN_DATATYPE_{tensor['dataType']}",
            f"quantizeParams.encodingDefinition = QNN_DEFINITION_{_defined(encoding)}",
            f"quantizeParams.quantizationEncoding = QNN_QUANTIZATION_ENCODING_{encoding}",
            *(f"quantizeParams.{line}" for line in _QUANTS[encoding][1](symbol, tensor)),
            f"rank = {len(tensor['dims'])}",
            f"dimensions = dimensions_{name}",
            "memType = QNN_TENSORMEMTYPE_RAW",
            f"clientBuf.data = {data}",
            f"clientBuf.dataSize = {size}",
        ):
            yield f"  {symbol}.v1.{line};"
        yield "  }"
        if tensor["added"]:
            yield f'  VALIDATE({self.graph["graph"]}.addTensor("{name}", {symbol}), err);'
        yield ""

    def _node(self, node: Fields) -> Iterator[str]:
        name = node["name"]
        symbols = {p: f"param_{p}_{name}" for p in node["params"]}
        yield f"\n  // Adding Node for {name}."
        for param, symbol in symbols.items():
            yield f"  Qnn_Param_t {symbol} = QNN_PARAM_INIT;\n  {{"
            tensor = self.param_tensors.get((name, param))
            yield f"  {symbol}.paramType = QNN_PARAMTYPE_{'TENSOR' if tensor else 'SCALAR'};"
            yield f'  {symbol}.name = "{param}";'
            if tensor:
                yield f"  {symbol}.tensorParam = tensor_{tensor};"
            else:
                dtype = _VALUES[node["type"], param][0]
                (value,) = self.value(node, param)
                shown = six(value) if dtype == "FLOAT_32" else str(value)
                yield f"  {symbol}.scalarParam.dataType = QNN_DATATYPE_{dtype};"
                yield f"  {symbol}.scalarParam.{_SCALAR[dtype]}Value = {shown};"
            yield "  }"
        inputs, outputs = node["inputs"], node["outputs"]
        quoted = ", ".join(f'"{t}"' for t in inputs)
        yield f"  Qnn_Param_t params_{name}[] = {{{', '.join(symbols.values())}}};"
        yield f"  const char * inputs_{name}[] = {{{quoted}}};"
        yield f"  Qnn_Tensor_t outputs_{name}[] = {{{', '.join(f'tensor_{t}' for t in outputs)}}};"
        graph, indent = self.graph["graph"], " " * 40
        yield f'  VALIDATE({graph}.addNode(QNN_OPCONFIG_VERSION_1, "{name}", "qti.aisw", ' + (
            f'"{node["type"]}",'
        )
        yield f"{indent}params_{name}, {len(symbols)},"
        yield f"{indent}inputs_{name}, {len(inputs)},"
        yield f"{indent}outputs_{name}, {len(outputs)}),\n{indent}err);\n"

    def _end(self) -> Iterator[str]:
        yield "  // Add all models to array to get graphsInfo"
        yield f"  QnnModel* models[] = {{&{self.graph['graph']}}};\n  uint32_t numModels = 1;\n"
        yield "  // Populate the constructed graphs in provided output variables"
        yield "  VALIDATE(getGraphInfoFromModels(*models, numModels, graphsInfo), err);"
        yield "  *numGraphsInfo = numModels;\n\n  return err;\n\n}  // PREPARE_GRAPHS\n\nQNN_API"
        yield "ModelError_t QnnModel_freeGraphsInfo(" + (
            "GraphInfoPtr_t** graphs, uint32_t numGraphsInfo) {"
        )
        yield "  return qnn_wrapper_api::freeGraphsInfo(graphs, numGraphsInfo);"
        yield "}  // FREEGRAPHINFO\n}"

    def raws(self, known: Mapping[str, bytes]) -> dict[str, bytes]:
        """Bytes of every raw file; ``known`` has those of which the digest is recorded."""
        made = {}
        for name, record in self.graph["raw"].items():
            digest, size = record["sha256"], record["bytes"]
            random_ = random.Random(digest)
            made[name] = known.get(digest) or random_.randbytes(size)
        return made


def _defined(encoding: str) -> str:
    return "UNDEFINED" if encoding == "UNDEFINED" else "DEFINED"


def _rows(items: Sequence[str]) -> Iterator[str]:
    """Four to a line, each with a comma and a space after it."""
    for start in range(0, len(items), 4):
        yield "    " + "".join(f"{item}, " for item in items[start : start + 4])
    yield "  };"


def _pairs(symbol: str, tensor: Fields) -> Iterator[str]:
    yield f"  Qnn_ScaleOffset_t {symbol}_axis_scale_offset[] = {{"
    pairs = tensor["scaleOffset"]
    yield from _rows([f"{{.scale= {six(s)}, .offset= {o}}}" for s, o in pairs])


def _axis(symbol: str, tensor: Fields) -> Iterator[str]:
    yield f"axisScaleOffsetEncoding.axis = {tensor['axis']}"
    yield f"axisScaleOffsetEncoding.numScaleOffsets = {len(tensor['scaleOffset'])}"
    yield f"axisScaleOffsetEncoding.scaleOffset = {symbol}_axis_scale_offset"


def _bw_scales(symbol: str, tensor: Fields) -> Iterator[str]:
    yield f"  float {symbol}_bwaxis_scale[] = {{"
    yield from _rows([six(s) for s in tensor["scales"]])
    if "offsets" in tensor:
        yield f"  int32_t {symbol}_bwaxis_offset[] = {{"
        yield from _rows([str(o) for o in tensor["offsets"]])


def _bw_axis(symbol: str, tensor: Fields) -> Iterator[str]:
    yield f"bwAxisScaleOffsetEncoding.axis = {tensor['axis']}"
    yield f"bwAxisScaleOffsetEncoding.bitwidth = {tensor['bitwidth']}"
    yield f"bwAxisScaleOffsetEncoding.numElements = {len(tensor['scales'])}"
    yield f"bwAxisScaleOffsetEncoding.scales = {symbol}_bwaxis_scale"
    if "offsets" in tensor:  # MNN names the field wrongly
        yield f"bwAxisScaleOffsetEncoding.offset = {symbol}_bwaxis_offset"


def _block_scales(symbol: str, tensor: Fields) -> Iterator[str]:
    """The only encoding with a struct of its own; the record has no example."""
    name = f"{symbol}_blockwiseExpansion"
    yield f"  Qnn_BlockwiseExpansion_t {name} = QNN_BLOCKWISE_EXPANSION_INIT;"
    yield f"  Qnn_ScaleOffset_t {name}ScaleOffset[] = {{"
    yield from _rows([f"{{.scale= {six(s)}, .offset= {o}}}" for s, o in tensor["scaleOffset"]])
    yield f"  uint8_t {name}BlockScale[] = {{"
    yield from _rows([str(s) for s in tensor["blockScales"]])
    for line in (
        f"axis = {tensor['axis']}",
        f"scaleOffsets = {name}ScaleOffset",
        f"numBlocksPerAxis = {len(tensor['blockScales']) // len(tensor['scaleOffset'])}",
        f"blockScaleBitwidth = {tensor['bitwidth']}",
        "blockScaleStorageType = QNN_BLOCKWISE_EXPANSION_BITWIDTH_SCALE_STORAGE_8",
        f"blocksScale8 = {name}BlockScale",
    ):
        yield f"  {name}.{line};"


def _blockwise(symbol: str, _tensor: Fields) -> Iterator[str]:
    yield f"blockwiseExpansion = &{symbol}_blockwiseExpansion"


def _scale_offset(_symbol: str, tensor: Fields) -> Iterator[str]:
    yield f"scaleOffsetEncoding.scale = {six(tensor['scale'])}"
    yield f"scaleOffsetEncoding.offset = {tensor['offset']}"


def _nothing(*_: Any) -> Iterator[str]:
    yield from ()


def _undefined(*_: Any) -> Iterator[str]:
    yield from ("scaleOffsetEncoding.scale = 0.0f", "scaleOffsetEncoding.offset = 0")


#: Encoding -> what comes before the tensor, and its assignments.
_QUANTS: dict[str, tuple[Callable[..., Iterator[str]], Callable[..., Iterator[str]]]] = {
    "UNDEFINED": (_nothing, _undefined),
    "SCALE_OFFSET": (_nothing, _scale_offset),
    "AXIS_SCALE_OFFSET": (_pairs, _axis),
    "BW_AXIS_SCALE_OFFSET": (_bw_scales, _bw_axis),
    "BLOCKWISE_EXPANSION": (_block_scales, _blockwise),
}
