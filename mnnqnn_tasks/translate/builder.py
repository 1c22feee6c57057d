"""Builds one QNN graph while ops are translated in order.

A value of the subgraph (a tensor id) is held by one or more QNN tensors (`Stored`):
the same elements in other forms (fp16, 16-bit fixed, int32, bool) or other dims.
Nothing is converted or reshaped before an op asks for it, so MNN's chains of Reshape,
Squeeze and ConvertTensor around a Linear cost no node: they only say what the shape
is, and the next reader asks for the dims that it wants.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnnqnn_tasks.errors import TranslateError
from mnnqnn_tasks.partition.subgraph import ByteRef, Subgraph, SubOp, SubTensor
from mnnqnn_tasks.qnn.ir import Blob, Graph, Node, Param, Quant, ScaleOffset, Tensor
from mnnqnn_tasks.translate import names
from mnnqnn_tasks.translate.values import (
    CONVERSIONS,
    DTYPE_OF,
    Form,
    Stored,
    activation_encoding,
    fit_encoding,
    quantize,
    to_float16,
)

#: Reads the bytes behind a digest; the caller has checked them.
ByteReader = Callable[[ByteRef], memoryview]
Dims = tuple[int, ...]

#: QNN data type and element type of static tensors by form.
_STATIC_DTYPE = {"float": "<f2", "int": "<i4", "bool": "u1", "fixed": "<u2"}


#: What a converted value is called after its op.
_SUFFIXES = {
    "Cast": "_cast",
    "Quantize": "_quant",
    "Dequantize": "_dequant",
    "ElementWiseNotEqual": "_bool",
}


@dataclass
class Translated:
    """A QNN graph and the bytes of its blobs by SHA-256."""

    graph: Graph
    blobs: dict[str, memoryview]


class Builder:
    """State of one translation.

    Attributes:
        subgraph: what is translated.
        graph: the QNN graph so far.
        blobs: bytes of the static tensors so far, by SHA-256.
    """

    def __init__(self, subgraph: Subgraph, read_bytes: ByteReader) -> None:
        self.subgraph = subgraph
        self.graph = Graph(subgraph.graph)
        self.blobs: dict[str, memoryview] = {}
        self.read_bytes = read_bytes
        self._values: dict[int, dict[Form, Stored]] = {}
        self._products: dict[int, tuple[Stored, Stored]] = {}
        self._views: dict[tuple[str, Dims], Stored] = {}
        self._statics: dict[tuple[object, ...], str] = {}
        self._tensor_names = names.NamePool()
        self._node_names = names.NamePool()
        self._scope = ""
        for index in (*subgraph.inputs, *subgraph.outputs):
            self._tensor_names.reserve(names.boundary_name(self._boundary(index)))
        for index in subgraph.inputs:
            self._input(index)

    # -- what the subgraph says -------------------------------------------------

    def tensor(self, index: int) -> SubTensor:
        """The subgraph's tensor ``index``."""
        return self.subgraph.tensors[index]

    def dims(self, index: int) -> Dims:
        """MNN's shape of a tensor; a scalar is ``(1,)``, as QNN has no rank 0."""
        return tuple(self.tensor(index).dims) or (1,)

    def kind(self, index: int) -> Form:
        """``float`` or ``int``: what the tensor's elements are."""
        return "float" if self.tensor(index).dtype == "float32" else "int"

    def encoding(self, index: int) -> ScaleOffset | None:
        """The tensor's static 16-bit encoding, or ``None`` for a float activation."""
        info = self.tensor(index).quant
        if info is None or self.kind(index) != "float":
            return None
        return activation_encoding(info)

    def const(self, index: int) -> NDArray[np.float32] | NDArray[np.int32] | None:
        """The tensor's constant value in MNN's shape, or ``None``."""
        tensor = self.tensor(index)
        if tensor.const is None:
            return None
        dtype = "<f4" if self.kind(index) == "float" else "<i4"
        if isinstance(tensor.const, ByteRef):
            flat = np.frombuffer(self.read_bytes(tensor.const), dtype)
        else:
            flat = np.asarray(tensor.const, dtype).reshape(-1)
        if flat.size != math.prod(tensor.dims):
            raise TranslateError(
                f"constant tensor {index} holds {flat.size} values",
                where=self.subgraph.graph,
                why=f"its shape is {list(tensor.dims)}",
                todo="run the partition again",
            )
        return flat.reshape(tensor.dims)

    def is_fixed(self, *indices: int) -> bool:
        """Whether every non-constant float tensor among ``indices`` is 16-bit fixed."""
        dynamic = [i for i in indices if self.kind(i) == "float" and self.tensor(i).const is None]
        return bool(dynamic) and all(
            self.encoding(i) is not None or self.holds(i, "fixed") for i in dynamic
        )

    # -- values -------------------------------------------------------------------

    def scope(self, op: SubOp) -> None:
        """Names of what follows derive from ``op``'s."""
        self._scope = names.sanitize(op.name or op.type)

    def holds(self, index: int, form: Form) -> bool:
        """Whether the value already exists in ``form``."""
        return form in self._values.get(index, {})

    def stored(self, index: int) -> Stored | None:
        """The tensor that the value was first held by; ``None`` for a constant."""
        self._multiply(index)
        forms = self._values.get(index)
        return next(iter(forms.values())) if forms else None

    def define(self, index: int, stored: Stored) -> None:
        """Value ``index`` is held by ``stored``.

        Raises:
            TranslateError: when it has another type or number of elements.
        """
        kind = "int" if stored.form in ("int", "bool") else "float"
        self._expect(index, kind, stored.dims)
        self._values[index] = {stored.form: stored}

    def _expect(self, index: int, kind: str, dims: Dims) -> None:
        wanted = self.dims(index)
        if kind != self.kind(index) or math.prod(dims) != math.prod(wanted):
            raise TranslateError(
                f"a result of shape {list(dims)}, {kind}, where the model has {list(wanted)}, "
                f"{self.kind(index)}",
                todo="report this with the model; its shapes contradict each other",
            )

    def define_product(self, index: int, left: Stored, right: Stored) -> None:
        """Value ``index`` is ``left * right``, to be multiplied when it is read.

        A reader that multiplies it further may take the `product` apart.
        """
        self._expect(index, "float", left.dims)
        self._products[index] = (left, right)

    def product(self, index: int) -> tuple[Stored, Stored] | None:
        """The factors of a value that `define_product` defined."""
        return self._products.get(index)

    def alias(self, index: int, source: int) -> None:
        """Value ``index`` has the elements of ``source`` in the same order."""
        self._expect(index, self.kind(source), self.dims(source))
        if source in self._products:
            self._products[index] = self._products[source]
        elif source in self._values:
            self._values[index] = self._values[source]
        else:
            self.define(index, self.read(source, self.kind(source)))

    def read(self, index: int, form: Form, dims: Dims | None = None) -> Stored:
        """Value ``index`` in ``form`` with ``dims`` (as it is held where ``None``)."""
        self._multiply(index)
        forms = self._values.get(index)
        if forms is None:
            return self._read_const(index, form, dims)
        if form not in forms:
            forms[form] = self._convert(index, next(iter(forms.values())), form)
        return self.view(forms[form], dims)

    def _multiply(self, index: int) -> None:
        if index in self._products and index not in self._values:
            left, right = self._products[index]
            # Without the factor one, libQnnHtp fuses x * sigmoid(x) into an op that
            # loses 13 dB for some numbers of rows (1, 100; 2.51).
            one = self.static(np.ones((1,) * len(right.dims), np.float16), "float", "_one")
            kind = "ElementWiseMultiply"
            scaled = self.node(kind, [right, one], right.dims, "float", suffix="_gate")
            self.define(index, self.node(kind, [left, scaled], left.dims, "float", suffix="_mul"))

    def view(self, stored: Stored, dims: Dims | None) -> Stored:
        """``stored`` with other ``dims``: a Reshape node, made once."""
        if dims is None or dims == stored.dims:
            return stored
        if math.prod(dims) != math.prod(stored.dims):
            raise TranslateError(
                f"tensor {stored.name} of shape {list(stored.dims)} cannot become {list(dims)}",
                where=self.subgraph.graph,
                todo="report this with the model; the partition's shapes contradict each other",
            )
        key = (stored.name, dims)
        if key not in self._views:
            self._views[key] = self.node(
                "Reshape", [stored], dims, stored.form, stored.quant, suffix="_reshape"
            )
        return self._views[key]

    def _convert(self, index: int, source: Stored, form: Form) -> Stored:
        kind = CONVERSIONS.get((source.form, form))
        if kind is None and source.form == "float":
            raise TranslateError(f"a float value is read as {form}")
        if kind is None:
            between = self._convert(index, source, "float")
            return self._convert(index, between, form)
        quant = None
        if form == "fixed":
            quant = self.encoding(index)
            if quant is None:
                raise TranslateError(
                    f"tensor {index} has no 16-bit encoding", where=self.subgraph.graph
                )
        inputs = [source]
        if kind == "ElementWiseNotEqual":
            zero = np.zeros((1,) * len(source.dims), np.int32)
            inputs.append(self.static(zero, source.form, "_zero"))
        return self.node(kind, inputs, source.dims, form, quant, suffix=_SUFFIXES[kind])

    def _read_const(self, index: int, form: Form, dims: Dims | None) -> Stored:
        values = self.const(index)
        if values is None:
            raise TranslateError(
                f"tensor {index} is read before it is written",
                where=self.subgraph.graph,
                todo="run the partition again",
            )
        shape = dims or self.dims(index)
        if form == "fixed":
            return self.static_fixed(values.astype(np.float32).reshape(shape), "_const")
        if form == "float":
            return self.static(to_float16(values.astype(np.float32)).reshape(shape), form)
        return self.static(values.reshape(shape), form)

    # -- tensors and nodes ----------------------------------------------------------

    def node(
        self,
        kind: str,
        inputs: Sequence[Stored],
        dims: Dims,
        form: Form,
        quant: Quant | None = None,
        params: Iterable[Param] = (),
        *,
        suffix: str = "",
    ) -> Stored:
        """Add a node of QNN type ``kind`` with one NATIVE output; returns that output."""
        name = self._tensor_names.take(self._scope + suffix)
        out = Stored(name, form, dims, quant)
        self.graph.tensors.append(Tensor(name, "NATIVE", out.dtype, dims, quant))
        self._add_node(kind, inputs, name, params, suffix)
        return out

    def _add_node(
        self,
        kind: str,
        inputs: Sequence[Stored],
        output: str,
        params: Iterable[Param],
        suffix: str,
    ) -> None:
        self.graph.nodes.append(
            Node(
                self._node_names.take(self._scope + suffix),
                kind,
                tuple(i.name for i in inputs),
                (output,),
                tuple(params),
            )
        )

    def static(self, array: NDArray[Any], form: Form, suffix: str = "_const") -> Stored:
        """A static tensor of ``form`` holding ``array``; equal ones are made once."""
        data = np.ascontiguousarray(array, _STATIC_DTYPE[form])
        name = self.static_raw(data, DTYPE_OF[form], data.shape, None, suffix)
        return Stored(name, form, data.shape)

    def static_fixed(self, values: NDArray[np.float32], suffix: str) -> Stored:
        """Float ``values`` as UFIXED_POINT_16 with the tightest encoding."""
        encoding = fit_encoding(values)
        data = np.ascontiguousarray(quantize(values, encoding), "<u2")
        name = self.static_raw(data, "UFIXED_POINT_16", data.shape, encoding, suffix)
        return Stored(name, "fixed", data.shape, encoding)

    def static_raw(
        self,
        data: NDArray[Any],
        dtype: str,
        dims: Dims,
        quant: Quant | None,
        suffix: str,
        sha256: str | None = None,
    ) -> str:
        """A static tensor with these bytes and this encoding; returns its name.

        Args:
            data: the values, C-contiguous and little-endian.
            sha256: their digest where the caller knows it.
        """
        view: memoryview = data.reshape(-1).view(np.uint8).data
        digest = sha256 or hashlib.sha256(view).hexdigest()
        key = (digest, dtype, dims, quant)
        if key not in self._statics:
            name = self._tensor_names.take(self._scope + suffix)
            self._statics[key] = name
            self.blobs[digest] = view
            blob = Blob(digest, view.nbytes)
            self.graph.tensors.append(Tensor(name, "STATIC", dtype, dims, quant, blob))
        return self._statics[key]

    # -- the border -----------------------------------------------------------------

    def _boundary(self, index: int) -> int:
        boundary = self.tensor(index).boundary
        if boundary is None:
            raise TranslateError(
                f"tensor {index} is an input or output without an index in llm.mnn",
                where=self.subgraph.graph,
                todo="run the partition again",
            )
        return boundary

    def _border_form(self, index: int) -> Form:
        return "wide" if self.kind(index) == "float" else "int"

    def _input(self, index: int) -> None:
        form = self._border_form(index)
        stored = Stored(names.boundary_name(self._boundary(index)), form, self.dims(index))
        self.graph.tensors.append(Tensor(stored.name, "APP_WRITE", stored.dtype, stored.dims))
        self._values[index] = {form: stored}

    def finish(self) -> Translated:
        """Write the outputs and return the graph.

        Raises:
            TranslateError: when an output was never computed.
        """
        for index in self.subgraph.outputs:
            self._output(index)
        return Translated(self.graph, self.blobs)

    def _output(self, index: int) -> None:
        name = names.boundary_name(self._boundary(index))
        self._scope = name + "_out"
        form = self._border_form(index)
        source = self._output_source(index, form)
        dims = self.dims(index)
        self.graph.tensors.append(Tensor(name, "APP_READ", DTYPE_OF[form], dims))
        kind = "Reshape" if source.form == form else CONVERSIONS[source.form, form]
        self._add_node(kind, [source], name, (), "")

    def _output_source(self, index: int, form: Form) -> Stored:
        """What the last node of an output reads: the value in a form one step away."""
        stored = self.stored(index)
        if stored is None or stored.form == "wide":
            return self.read(index, "float" if form == "wide" else form, self.dims(index))
        return self.view(stored, self.dims(index))
