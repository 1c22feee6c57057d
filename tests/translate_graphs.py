"""Small subgraphs made by hand, translated and run on QNN's emulator."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnnqnn_tasks.partition.subgraph import (
    ByteRef,
    DType,
    Format,
    QuantInfo,
    Subgraph,
    SubOp,
    SubTensor,
)
from mnnqnn_tasks.qnn import run
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.translate.builder import Translated
from mnnqnn_tasks.translate.emit import emit
from mnnqnn_tasks.translate.translate import translate

Array = NDArray[Any]
TARGET = TargetOptions(57, "v75")


def db(expected: Array, found: Array) -> float:
    """Signal to noise of ``found`` against ``expected`` in dB."""
    want = np.asarray(expected, np.float64).ravel()
    noise = float(((want - np.asarray(found, np.float64).ravel()) ** 2).sum())
    return math.inf if noise == 0 else 10 * math.log10(float((want**2).sum()) / noise)


class Net:
    """Builds a subgraph: `input`, `const`, `op`, `output`, then `run`."""

    def __init__(self, name: str = "graph0") -> None:
        self.name = name
        self.tensors: list[SubTensor] = []
        self.ops: list[SubOp] = []
        self.feeds: dict[int, Array] = {}
        self.outputs: list[int] = []
        self.bytes: dict[str, bytes] = {}

    def tensor(
        self,
        dims: Sequence[int],
        dtype: DType = "float32",
        *,
        format: Format = "NCHW",
        const: Any = None,
        quant: QuantInfo | None = None,
        boundary: int | None = None,
    ) -> int:
        index = len(self.tensors)
        self.tensors.append(SubTensor(index, tuple(dims), dtype, format, boundary, const, quant))
        return index

    def input(self, values: Array, *, format: Format = "NCHW", **more: Any) -> int:
        dtype: DType = "float32" if values.dtype == np.float32 else "int32"
        index = self.tensor(values.shape, dtype, format=format, boundary=len(self.tensors), **more)
        self.feeds[index] = values
        return index

    def const(self, values: Array) -> int:
        dtype: DType = "float32" if values.dtype == np.float32 else "int32"
        return self.tensor(values.shape, dtype, const=tuple(values.ravel().tolist()))

    def blob(self, values: Array | bytes) -> ByteRef:
        data = values if isinstance(values, bytes) else values.tobytes()
        sha256 = hashlib.sha256(data).hexdigest()
        self.bytes[sha256] = data
        return ByteRef(sha256, len(data))

    def op(
        self,
        type: str,
        inputs: Sequence[int],
        dims: Sequence[int] | Sequence[Sequence[int]],
        dtype: DType = "float32",
        *,
        params: Mapping[str, Any] | None = None,
        weights: Mapping[str, ByteRef] | None = None,
        name: str = "",
        format: Format = "NCHW",
        quant: QuantInfo | None = None,
    ) -> int:
        """Add an op; returns its (first) output."""
        many = bool(dims) and not isinstance(dims[0], int)
        shapes: Any = dims if many else [dims]
        outs = [self.tensor(s, dtype, format=format, quant=quant) for s in shapes]
        self.ops.append(
            SubOp(
                type,
                name or f"/{type}.{len(self.ops)}",
                tuple(inputs),
                tuple(outs),
                dict(params or {}),
                dict(weights or {}),
            )
        )
        return outs[0]

    def output(self, index: int) -> int:
        old = self.tensors[index]
        self.tensors[index] = SubTensor(
            old.id, old.dims, old.dtype, old.format, 1000 + index, old.const, old.quant
        )
        self.outputs.append(index)
        return index

    def subgraph(self) -> Subgraph:
        return Subgraph(
            self.name,
            tuple(self.tensors),
            tuple(self.ops),
            tuple(self.feeds),
            tuple(self.outputs),
        )

    def translated(self) -> Translated:
        return translate(self.subgraph(), lambda ref: memoryview(self.bytes[ref.sha256]))

    def run(self) -> dict[int, Array]:
        """Translate, emit, execute: the outputs by tensor id, in MNN's shape."""
        made = self.translated()
        with tempfile.TemporaryDirectory() as folder:
            out, blobs = Path(folder) / "out", Path(folder) / "blobs"
            emit(made.graph, made.blobs, out, blobs)
            net = out / f"{self.name}_net.json"
            feeds = {f"t{i}": v.tobytes() for i, v in self.feeds.items()}
            found = run.execute(net, blobs, TARGET, [feeds])[0]
        results = {}
        for index in self.outputs:
            tensor = self.tensors[index]
            dtype = np.float32 if tensor.dtype == "float32" else np.int32
            data = np.frombuffer(found[f"t{1000 + index}"], dtype)
            results[index] = data.reshape(tensor.dims)
        return results


def half(values: Array) -> Array:
    """``values`` as the NPU reads them: rounded to float16."""
    return values.astype(np.float16).astype(np.float64)


def check(net: Net, expected: Mapping[int, Array], least: float = 50.0) -> None:
    """Run ``net``; floats must come within ``least`` dB, integers exactly."""
    for index in expected:
        net.output(index)
    found = net.run()
    for index, want in expected.items():
        maker = next(op for op in net.ops if index in op.outputs)
        got = found[index]
        assert got.shape == np.shape(want), maker
        if got.dtype == np.int32:
            assert np.array_equal(got, want), (maker, got, want)
        else:
            assert db(want, got) >= least, (maker, db(want, got))
