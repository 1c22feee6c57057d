"""A graph as C++ source for Qualcomm's ``qnn-model-lib-generator``.

The generator compiles one source against its own ``QnnModel.hpp`` and packs the
``.raw`` files of a folder behind the macros ``BINVARSTART`` and ``BINLEN``; the source
defines ``QnnModel_composeGraphs`` and ``QnnModel_freeGraphsInfo``.  MNN's QNN convertor
writes the same form with six decimals; here every float is a literal that gives its
float32 back exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from mnnqnn_tasks.qnn.floats import decimals
from mnnqnn_tasks.qnn.ir import (
    AxisScaleOffset,
    BlockwiseExpansion,
    BwAxisScaleOffset,
    Graph,
    Node,
    Quant,
    ScalarParam,
    ScaleOffset,
    Tensor,
    TensorParam,
)
from mnnqnn_tasks.translate.names import NamePool, sanitize

_PER_LINE = 8
_C_TYPE = {"UINT_32": "uint32_t", "INT_32": "int32_t", "FLOAT_32": "float"}
_PLAIN = re.compile(r"[A-Za-z0-9_ ./,:-]*")
_C_FIELD = {
    "UINT_32": "uint32Value",
    "INT_32": "int32Value",
    "FLOAT_32": "floatValue",
    "BOOL_8": "bool8Value",
}
Lines = Iterator[str]


def literals(values: Sequence[float]) -> list[str]:
    """C++ ``float`` literals that give each value's float32 back exactly.

    Decimal: hexadecimal ones would need C++17.

    Raises:
        ValueError: a value is not finite.
    """
    # Digits alone are an integer, which takes no f.
    return [f"{t}f" if "." in t or "e" in t else f"{t}.0f" for t in decimals(values)]


def quoted(text: str) -> str:
    """``text`` as a C++ string literal: anything but plain ASCII as an octal escape."""
    if _PLAIN.fullmatch(text):  # nearly every name
        return f'"{text}"'
    out = []
    for byte in text.encode("utf-8", "surrogateescape"):
        char = chr(byte)
        plain = 32 <= byte < 127 and char not in '"\\?'
        out.append(char if plain else f"\\{byte:03o}")
    return '"' + "".join(out) + '"'


def _array(c_type: str, symbol: str, items: Sequence[str]) -> Lines:
    if len(items) <= _PER_LINE:
        yield f"  {c_type} {symbol}[] = {{{', '.join(items)}}};"
        return
    yield f"  {c_type} {symbol}[] = {{"
    for start in range(0, len(items), _PER_LINE):
        yield "    " + ", ".join(items[start : start + _PER_LINE]) + ","
    yield "  };"


def _pairs(symbol: str, scales: Sequence[float], offsets: Sequence[int]) -> Lines:
    items = [f"{{{s}, {o}}}" for s, o in zip(literals(scales), offsets, strict=True)]
    yield from _array("Qnn_ScaleOffset_t", symbol, items)


def _scale_offset(symbol: str, quant: ScaleOffset) -> tuple[list[str], list[str]]:
    field = "scaleOffsetEncoding"
    return [], [f"{field}.scale = {literals([quant.scale])[0]}", f"{field}.offset = {quant.offset}"]


def _axis(symbol: str, quant: AxisScaleOffset) -> tuple[list[str], list[str]]:
    field = "axisScaleOffsetEncoding"
    return list(_pairs(f"{symbol}_pairs", quant.scales, quant.offsets)), [
        f"{field}.axis = {quant.axis}",
        f"{field}.numScaleOffsets = {len(quant.scales)}",
        f"{field}.scaleOffset = {symbol}_pairs",
    ]


def _bw_axis(symbol: str, quant: BwAxisScaleOffset) -> tuple[list[str], list[str]]:
    field = "bwAxisScaleOffsetEncoding"
    before = list(_array("float", f"{symbol}_scales", literals(quant.scales)))
    before += _array("int32_t", f"{symbol}_offsets", [str(o) for o in quant.offsets])
    return before, [
        f"{field}.bitwidth = {quant.bitwidth}",
        f"{field}.axis = {quant.axis}",
        f"{field}.numElements = {len(quant.scales)}",
        f"{field}.scales = {symbol}_scales",
        f"{field}.offsets = {symbol}_offsets",
    ]


def _blockwise(symbol: str, quant: BlockwiseExpansion) -> tuple[list[str], list[str]]:
    wide = quant.block_scale_bitwidth > 8
    storage, c_type = ("16", "uint16_t") if wide else ("8", "uint8_t")
    name = f"{symbol}_blocks"
    before = list(_pairs(f"{symbol}_pairs", quant.scales, quant.offsets))
    before += _array(c_type, f"{symbol}_block_scales", [str(v) for v in quant.block_scales])
    before += [
        f"  Qnn_BlockwiseExpansion_t {name} = QNN_BLOCKWISE_EXPANSION_INIT;",
        f"  {name}.axis = {quant.axis};",
        f"  {name}.scaleOffsets = {symbol}_pairs;",
        f"  {name}.numBlocksPerAxis = {quant.blocks_per_axis};",
        f"  {name}.blockScaleBitwidth = {quant.block_scale_bitwidth};",
        f"  {name}.blockScaleStorageType = "
        f"QNN_BLOCKWISE_EXPANSION_BITWIDTH_SCALE_STORAGE_{storage};",
        f"  {name}.blocksScale{storage} = {symbol}_block_scales;",
    ]
    return before, [f"blockwiseExpansion = &{name}"]


#: Encoding class -> its name in QNN, and what gives its arrays and assignments.
_ENCODINGS: dict[type, tuple[str, Callable[..., tuple[list[str], list[str]]]]] = {
    ScaleOffset: ("SCALE_OFFSET", _scale_offset),
    AxisScaleOffset: ("AXIS_SCALE_OFFSET", _axis),
    BwAxisScaleOffset: ("BW_AXIS_SCALE_OFFSET", _bw_axis),
    BlockwiseExpansion: ("BLOCKWISE_EXPANSION", _blockwise),
}


def _encoding(symbol: str, quant: Quant | None) -> tuple[list[str], list[str]]:
    """Lines before a tensor's own, and assignments to its ``quantizeParams``."""
    if quant is None:
        return [], [
            "encodingDefinition = QNN_DEFINITION_UNDEFINED",
            "quantizationEncoding = QNN_QUANTIZATION_ENCODING_UNDEFINED",
        ]
    name, lines = _ENCODINGS[type(quant)]
    before, assignments = lines(symbol, quant)
    return before, [
        "encodingDefinition = QNN_DEFINITION_DEFINED",
        f"quantizationEncoding = QNN_QUANTIZATION_ENCODING_{name}",
        *assignments,
    ]


def _tensor(symbol: str, tensor: Tensor, data: str, size: str) -> Lines:
    dims = [str(d) for d in tensor.dims]
    yield from _array("uint32_t", f"{symbol}_dims", dims)
    before, encoding = _encoding(symbol, tensor.quant)
    yield from before
    yield f"  Qnn_Tensor_t {symbol} = QNN_TENSOR_INIT;"
    yield f"  {symbol}.version = QNN_TENSOR_VERSION_1;"
    fields = [
        "id = 0",
        f"name = {quoted(tensor.name)}",
        f"type = QNN_TENSOR_TYPE_{tensor.kind}",
        "dataFormat = QNN_TENSOR_DATA_FORMAT_FLAT_BUFFER",
        f"dataType = QNN_DATATYPE_{tensor.dtype}",
        *(f"quantizeParams.{line}" for line in encoding),
        f"rank = {len(tensor.dims)}",
        f"dimensions = {symbol}_dims",
        "memType = QNN_TENSORMEMTYPE_RAW",
        f"clientBuf.data = {data}",
        f"clientBuf.dataSize = {size}",
    ]
    for field in fields:
        yield f"  {symbol}.v1.{field};"


def _graph_tensor(graph: str, tensor: Tensor) -> Lines:
    symbol = f"tensor_{tensor.name}"
    static = tensor.kind == "STATIC"
    data = f"BINVARSTART({tensor.name})" if static else "nullptr"
    size = f"BINLEN({tensor.name})" if static else "0"
    yield ""
    yield from _tensor(symbol, tensor, data, size)
    if tensor.kind in ("STATIC", "APP_WRITE"):
        yield f"  VALIDATE({graph}.addTensor({quoted(tensor.name)}, {symbol}), err);"


def _scalar(param: ScalarParam) -> str:
    if param.dtype == "FLOAT_32":
        return literals([float(param.value)])[0]
    return str(int(param.value))


def _param(symbol: str, param: ScalarParam | TensorParam, tensor_name: str) -> Lines:
    if isinstance(param, TensorParam):
        values = [float(v) for v in param.values]
        items = literals(values) if param.dtype == "FLOAT_32" else [str(int(v)) for v in values]
        yield from _array(_C_TYPE[param.dtype], f"{symbol}_data", items)
        made = Tensor(tensor_name, "STATIC", param.dtype, param.dims)
        yield from _tensor(f"{symbol}_tensor", made, f"{symbol}_data", f"{made.size}")
    yield f"  Qnn_Param_t {symbol} = QNN_PARAM_INIT;"
    yield f"  {symbol}.name = {quoted(param.name)};"
    if isinstance(param, TensorParam):
        yield f"  {symbol}.paramType = QNN_PARAMTYPE_TENSOR;"
        yield f"  {symbol}.tensorParam = {symbol}_tensor;"
        return
    yield f"  {symbol}.paramType = QNN_PARAMTYPE_SCALAR;"
    yield f"  {symbol}.scalarParam.dataType = QNN_DATATYPE_{param.dtype};"
    yield f"  {symbol}.scalarParam.{_C_FIELD[param.dtype]} = {_scalar(param)};"


def _node(graph: str, node: Node, pool: NamePool) -> Lines:
    symbols = [f"param_{node.name}_{p.name}" for p in node.params]
    yield ""
    for symbol, param in zip(symbols, node.params, strict=True):
        yield from _param(symbol, param, pool.take(f"{node.name}_{param.name}"))
    inputs, outputs, params = (f"{k}_{node.name}" for k in ("inputs", "outputs", "params"))
    if symbols:
        yield from _array("Qnn_Param_t", params, symbols)
    yield from _array("const char *", inputs, [quoted(i) for i in node.inputs])
    yield from _array("Qnn_Tensor_t", outputs, [f"tensor_{o}" for o in node.outputs])
    yield f"  VALIDATE({graph}.addNode(QNN_OPCONFIG_VERSION_1, {quoted(node.name)},"
    yield f"      {quoted(node.package)}, {quoted(node.type)},"
    yield f"      {params if symbols else 'nullptr'}, {len(symbols)},"
    yield f"      {inputs}, {len(node.inputs)}, {outputs}, {len(node.outputs)}), err);"


def _head(graph: str, name: str) -> Lines:
    yield from (
        '#include "QnnModel.hpp"',
        '#include "QnnOpDef.h"',
        "",
        "#define DO_GRAPH_NODE_VALIDATIONS 1",
        "",
        "using namespace qnn_wrapper_api;",
        'extern "C" {',
        "QNN_API",
        "ModelError_t QnnModel_composeGraphs(Qnn_BackendHandle_t backendHandle,",
        "                                    QNN_INTERFACE_VER_TYPE interface,",
        "                                    Qnn_ContextHandle_t contextHandle,",
        "                                    const GraphConfigInfo_t** graphsConfigInfo,",
        "                                    const uint32_t numGraphsConfigInfo,",
        "                                    GraphInfoPtr_t** graphsInfo,",
        "                                    uint32_t* numGraphsInfo,",
        "                                    bool debug,",
        "                                    QnnLog_Callback_t logCallback,",
        "                                    QnnLog_Level_t maxLogLevel) {",
        "  ModelError_t err = MODEL_NO_ERROR;",
        f"  QnnModel {graph};",
        "  const QnnGraph_Config_t** graphConfigs = nullptr;",
        f"  VALIDATE(getQnnGraphConfigFromInfo({name}, graphsConfigInfo,",
        "      numGraphsConfigInfo, graphConfigs), err);",
        f"  VALIDATE({graph}.initialize(backendHandle, interface, contextHandle, {name},",
        "      debug, DO_GRAPH_NODE_VALIDATIONS, graphConfigs), err);",
    )


def _foot(graph: str) -> Lines:
    yield from (
        "",
        f"  QnnModel* models[] = {{&{graph}}};",
        "  uint32_t numModels = 1;",
        "  VALIDATE(getGraphInfoFromModels(*models, numModels, graphsInfo), err);",
        "  *numGraphsInfo = numModels;",
        "  return err;",
        "}",
        "",
        "QNN_API",
        "ModelError_t QnnModel_freeGraphsInfo(GraphInfoPtr_t** graphs, uint32_t numGraphsInfo) {",
        "  return qnn_wrapper_api::freeGraphsInfo(graphs, numGraphsInfo);",
        "}",
        "}",
    )


def lines(graph: Graph) -> Lines:
    """The source, line by line.

    Tensor and node names are C identifiers (`translate.names`); a graph's name becomes
    one for its symbol and stays as it is in its string.
    """
    symbol = f"model_{sanitize(graph.name)}"
    pool = NamePool()
    for tensor in graph.tensors:
        pool.reserve(tensor.name)
    yield from _head(symbol, quoted(graph.name))
    for tensor in graph.tensors:
        yield from _graph_tensor(symbol, tensor)
    for node in graph.nodes:
        yield from _node(symbol, node, pool)
    yield from _foot(symbol)


def source(graph: Graph) -> str:
    """The whole source."""
    return "\n".join(lines(graph)) + "\n"
