"""A graph source as a graph: the statements, and what they leave behind.

The form is what MNN's ``QNNConvertor`` and our own emitter write for Qualcomm's
``qnn-model-lib-generator``: one function that declares arrays and structs, assigns fields,
and adds tensors and nodes to a ``QnnModel``.  Read strictly: everything that is declared
must be used, every field be given once, every name be known.  What is accepted means in
C++ what the graph says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from mnnqnn_tasks.qnn import spec
from mnnqnn_tasks.qnn.ir import Blob, Graph, Node, Param, Tensor
from mnnqnn_tasks.toolchain.cppnet import arrays, assemble, values
from mnnqnn_tasks.toolchain.cppnet.axes import with_output_axes
from mnnqnn_tasks.toolchain.cppnet.fields import STRUCTS
from mnnqnn_tasks.toolchain.cppnet.scan import GAP, IDENT, Scanner, Template, unquoted
from mnnqnn_tasks.toolchain.cppnet.values import Item, Symbols

_HEAD = Template(
    """#include "QnnModel.hpp"
#include "QnnOpDef.h"
#define DO_GRAPH_NODE_VALIDATIONS 1
using namespace qnn_wrapper_api;
extern "C" {
QNN_API ModelError_t QnnModel_composeGraphs(
    Qnn_BackendHandle_t backendHandle, QNN_INTERFACE_VER_TYPE interface,
    Qnn_ContextHandle_t contextHandle, const GraphConfigInfo_t** graphsConfigInfo,
    const uint32_t numGraphsConfigInfo, GraphInfoPtr_t** graphsInfo, uint32_t* numGraphsInfo,
    bool debug, QnnLog_Callback_t logCallback, QnnLog_Level_t maxLogLevel) {
ModelError_t err = MODEL_NO_ERROR;
QnnModel {model};
const QnnGraph_Config_t** graphConfigs = nullptr;
VALIDATE(getQnnGraphConfigFromInfo(
    {name_text}, graphsConfigInfo, numGraphsConfigInfo, graphConfigs), err);
VALIDATE({model}.initialize(backendHandle, interface, contextHandle, {name_text}, debug,
    DO_GRAPH_NODE_VALIDATIONS, graphConfigs), err);"""
)
_FOOT = Template(
    """QnnModel* models[] = {&{model}};
uint32_t numModels = 1;
VALIDATE(getGraphInfoFromModels(*models, numModels, graphsInfo), err);
*numGraphsInfo = numModels;
return err;
}
QNN_API ModelError_t QnnModel_freeGraphsInfo(GraphInfoPtr_t** graphs, uint32_t numGraphsInfo) {
return qnn_wrapper_api::freeGraphsInfo(graphs, numGraphsInfo);
}
}"""
)
_VALIDATE = Template("VALIDATE({model}.")
_ADD_TENSOR = Template("addTensor({name_text}, {tensor}), err);")
_ADD_NODE = Template(
    "addNode(QNN_OPCONFIG_VERSION_1, {name_text}, {package_text}, {type_text},",
)
_END_NODE = Template("), err);")

_STATEMENT = re.compile(rb"(VALIDATE|QnnModel)(?!\w)")
_TYPES = {
    **{name: name for name in arrays.RANGES},
    "int": "int32_t",
    "float": "float",
    "Qnn_ScaleOffset_t": "Qnn_ScaleOffset_t",
    **{name: name for name in STRUCTS},
}
_TYPE = re.compile(rb"(?:const%schar%s(\*)|(%s)(?!\w))" % (GAP, GAP, "|".join(_TYPES).encode()))
_ARRAY, _IS_ARRAY = re.compile(rb"\[%s\]%s=" % (GAP, GAP)), re.compile(rb"(?=\[)")
_PATH = re.compile(rb"(%s)\.([A-Za-z_][\w.]*+)" % IDENT)
_BLOCK, _BLOCK_END, _EQUALS, _END, _COMMA = (
    re.compile(re.escape(sign)) for sign in (b"{", b"}", b"=", b";", b",")
)
_IS_NODE = re.compile(rb"(?=addNode(?!\w))")

#: The type of the names of a node's inputs.
_TEXTS = "const char *"


@dataclass(frozen=True)
class Source:
    """What a source says.

    Attributes:
        graph: its graph; STATIC tensors have no blob yet.
        statics: the STATIC tensors, whose bytes are in ``<name>.raw``.
    """

    graph: Graph
    statics: tuple[Tensor, ...]

    def with_blobs(self, blobs: dict[str, Blob]) -> Graph:
        """The whole graph, given the blob of every STATIC tensor by its name."""
        tensors = [replace(t, blob=blobs.get(t.name)) for t in self.graph.tensors]
        return Graph(self.graph.name, tensors, self.graph.nodes)


def parse(data: bytes, where: str) -> Source:
    """Read a source.

    Args:
        data: the text of ``graph*.cpp``.
        where: its path, for errors.

    Raises:
        SourceFileError: naming the line, what was expected there and what was found.
    """
    return _Parser(data, where).source()


class _Parser:
    def __init__(self, data: bytes, where: str) -> None:
        self._scanner = Scanner(data, where)
        self._symbols: Symbols = {}
        self._model = b""
        #: Tensors that the graph has so far, by name, and where tensors and nodes came in.
        self._in_graph: dict[str, Tensor] = {}
        self._nodes: list[Node] = []
        self._places: dict[str, int] = {}

    def source(self) -> Source:
        scanner = self._scanner
        head = _HEAD.match(scanner)
        self._model = head["model"]
        while True:
            at = scanner.skip()
            word = scanner.accept(_STATEMENT)
            if word is None:
                self._declare_or_assign()
                continue
            scanner.pos = at
            if word[1] == b"QnnModel":
                break
            self._add()
        end = scanner.pos
        _FOOT.match(scanner, model=self._model)
        if scanner.skip() < len(scanner.data):
            raise scanner.unexpected("the end of the file")
        graph = Graph(unquoted(head["name_text"][1:-1]), self._tensors(), self._nodes)
        graph = with_output_axes(graph)
        self._check(graph, end)
        return Source(graph, tuple(t for t in graph.tensors if t.kind == "STATIC"))

    def _declare_or_assign(self) -> None:
        scanner = self._scanner
        if found := scanner.accept(_TYPE):
            self._declare(_TEXTS if found[1] else _TYPES[found[2].decode()])
        else:
            self._assign()

    def _declare(self, ctype: str) -> None:
        scanner = self._scanner
        at = scanner.skip()
        symbol = values.take_name(scanner)
        if symbol in self._symbols:
            scanner.pos = at
            raise scanner.unexpected("a name that is not declared above")
        item = Item(ctype, symbol, at, is_array=True)
        if ctype in arrays.ELEMENTS and (ctype not in STRUCTS or scanner.accept(_IS_ARRAY)):
            scanner.take(_ARRAY, "[] =")
            item.values = arrays.read_array(scanner, ctype)
        else:
            item.is_array = False
            scanner.take(_EQUALS, "= or [] =")
            initial = STRUCTS[ctype][0]
            scanner.take(re.compile(rb"%s(?!\w)" % initial.encode()), initial)
        scanner.take(_END, ";")
        self._symbols[symbol] = item
        if not item.is_array and scanner.accept(_BLOCK):
            while not scanner.accept(_BLOCK_END):
                self._assign(item, " or }")

    def _assign(self, only: Item | None = None, more: str = "") -> None:
        """``struct.field = value;``, inside braces to the struct before them alone."""
        scanner = self._scanner
        at = scanner.skip()
        found = scanner.take(
            _PATH, "a statement of a graph source" if not more else "a field" + more
        )
        item = self._symbols.get(found[1].decode())
        if item is None or item.is_array or item.used or (only is not None and item is not only):
            scanner.pos = at
            kind = "a struct declared above and not used yet" if only is None else only.symbol
            raise scanner.unexpected(kind)
        path = found[2].decode()
        reader = STRUCTS[item.ctype][1].get(path)
        if reader is None:
            raise scanner.wrong(f"expected a field of {item.ctype}, found {path[:80]}", at)
        if path in item.fields:
            raise scanner.wrong(f"expected one value for {path} of {item.symbol}, found two", at)
        scanner.take(_EQUALS, "=")
        item.fields[path] = (reader(scanner, self._symbols), at)
        scanner.take(_END, ";")

    def _add(self) -> None:
        scanner = self._scanner
        _VALIDATE.match(scanner, model=self._model)
        at = scanner.skip()
        if scanner.accept(_IS_NODE):
            self._add_node(at)
            return
        found = _ADD_TENSOR.match(scanner)
        name, tensor = (
            unquoted(found["name_text"][1:-1]),
            self._tensor(found["tensor"].decode(), at),
        )
        if tensor.name != name or tensor.kind not in ("STATIC", "APP_WRITE"):
            raise scanner.wrong(
                f"expected a STATIC or APP_WRITE tensor of the name {name!r}, found "
                f"{tensor.name!r}, {tensor.kind}",
                at,
            )
        self._enter(tensor, at)

    def _tensor(self, symbol: str, at: int) -> Tensor:
        """The tensor of the graph that ``symbol`` stands for."""
        scanner, item = self._scanner, self._symbols.get(symbol)
        if item is None or item.is_array or item.ctype != "Qnn_Tensor_t":
            raise scanner.wrong(f"expected a tensor declared above, found {symbol[:80]}", at)
        item.used = True
        tensor, array = assemble.tensor_of(scanner, item)
        if array is not None or item.symbol != f"tensor_{tensor.name}":
            raise scanner.wrong(
                f"expected tensor_{tensor.name} with data of its own, found {symbol[:80]}", at
            )
        return tensor

    def _enter(self, tensor: Tensor, at: int) -> None:
        if tensor.name in self._in_graph:
            raise self._scanner.wrong(
                f"expected a tensor that is not in the graph yet, found {tensor.name}", at
            )
        self._in_graph[tensor.name] = tensor
        self._places[f"tensor {tensor.name}"] = at

    def _add_node(self, at: int) -> None:
        scanner = self._scanner
        found = _ADD_NODE.match(scanner)
        name, package, kind = (
            unquoted(found[key][1:-1]) for key in ("name_text", "package_text", "type_text")
        )
        params = self._array("Qnn_Param_t", optional=True)
        scanner.take(_COMMA, ",")
        inputs = self._array(_TEXTS)
        scanner.take(_COMMA, ",")
        outputs = self._array("Qnn_Tensor_t")
        _END_NODE.match(scanner)
        for tensor in inputs:
            if tensor not in self._in_graph:
                raise scanner.wrong(
                    f"expected inputs of {name} that are in the graph, found {tensor[:80]}", at
                )
        made = [self._tensor(symbol, at) for symbol in outputs]
        for output in made:
            if output.kind not in ("NATIVE", "APP_READ"):
                raise scanner.wrong(f"output {output.name} of {name} is {output.kind}", at)
            self._enter(output, at)
        names = tuple(t.name for t in made)
        items = tuple(self._param(symbol, at) for symbol in params)
        self._nodes.append(Node(name, kind, inputs, names, items, package))
        self._places[f"node {name}"] = at

    def _param(self, symbol: str, at: int) -> Param:
        scanner, item = self._scanner, self._symbols.get(symbol)
        if item is None or item.is_array or item.ctype != "Qnn_Param_t":
            raise scanner.wrong(f"expected a parameter declared above, found {symbol[:80]}", at)
        item.used = True
        return assemble.param_of(scanner, item)

    def _array(self, ctype: str, optional: bool = False) -> tuple[str, ...]:
        """``name, count``: the elements of an array, which must be so many."""
        scanner = self._scanner
        found: tuple[str, ...] = ()
        if not (optional and values.accept_null(scanner)):
            found = values.take_item(scanner, self._symbols, ctype, True).values
        scanner.take(_COMMA, ",")
        at = scanner.skip()
        if values.take_integer(scanner, "uint32_t") != len(found):
            scanner.pos = at
            raise scanner.unexpected(f"{len(found)}, the number of elements")
        return found

    def _tensors(self) -> list[Tensor]:
        """The graph's tensors in the order of their declarations.

        A NATIVE tensor or a parameter's tensor that nothing uses means nothing in C++, and
        MNN may declare one; anything else must be used.
        """
        tensors = []
        for item in self._symbols.values():
            if not item.used:
                tensor, array = None, None
                if item.ctype == "Qnn_Tensor_t" and not item.is_array:
                    tensor, array = assemble.tensor_of(self._scanner, item)
                if tensor is None or (tensor.kind != "NATIVE" and array is None):
                    raise self._scanner.wrong(
                        f"expected {item.symbol} to be used, nothing uses it", item.pos
                    )
            elif item.ctype == "Qnn_Tensor_t" and not item.is_array:
                name = item.fields["v1.name"][0]
                if item.symbol == f"tensor_{name}" and name in self._in_graph:
                    tensors.append(self._in_graph[name])
        return tensors

    def _check(self, graph: Graph, end: int) -> None:
        """The rules of the IR, with the line of what breaks one."""
        blob = "0" * 64
        whole = [
            replace(t, blob=Blob(blob, t.size)) if t.kind == "STATIC" else t for t in graph.tensors
        ]
        for place, problem in spec.problems(Graph(graph.name, whole, graph.nodes)):
            raise self._scanner.wrong(f"{place}: {problem}", self._places.get(place, end))
