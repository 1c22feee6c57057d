"""Small nets for the tests of the partition, written as a list of ops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mnnqnn_tasks.mnn import writer
from mnnqnn_tasks.mnn.index import ModelIndex
from mnnqnn_tasks.mnn.table import Table

SHARED = Path(__file__).resolve().parents[1].parent / "shared"
MODELS = SHARED / "models"
GOLDEN = SHARED / "golden"

NO_WEIGHTS = ModelIndex("llm.mnn", None, {}, {})


def i32(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int32)


class Net:
    """Collects ops; tensors are named, and numbered as they are first named."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.ops: list[Table] = []
        self.described: list[Table] = []

    def index(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def op(
        self,
        type: str,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        main: Table | None = None,
        name: str | None = None,
    ) -> Net:
        fields: dict[str, Any] = {"type": type, "defaultDimentionFormat": "NCHW"}
        fields["name"] = outputs[0] if name is None else name
        if inputs:
            fields["inputIndexes"] = i32(*(-1 if t == "" else self.index(t) for t in inputs))
        fields["outputIndexes"] = i32(*(self.index(t) for t in outputs))
        if main is not None:
            fields["main"] = main
        self.ops.append(Table("Op", fields))
        return self

    def input(self, name: str, *dims: int, dtype: str = "DT_FLOAT", format: str = "NCHW") -> Net:
        main = Table("Input", {"dims": i32(*dims), "dtype": dtype, "dformat": format})
        return self.op("Input", (), (name,), main)

    def const(self, name: str, value: Any, format: str = "NCHW") -> Net:
        return self.op("Const", (), (name,), blob(np.asarray(value), format))

    def conv(self, source: str, out: str, count: int = 4) -> Net:
        """A 1x1 convolution of ``count`` channels to ``count``, its weights inline."""
        common = {"kernelX": 1, "kernelY": 1, "outputCount": count, "inputCount": count}
        weight = (np.arange(count * count, dtype=np.float32) - 5) / 8
        main = Table(
            "Convolution2D",
            {
                "common": Table("Convolution2DCommon", common),
                "weight": weight,
                "bias": np.arange(count, dtype=np.float32),
            },
        )
        self.op("ConvertTensor", (source,), (out + ".in",), convert("NC4HW4"))
        self.op("Convolution", (out + ".in",), (out + ".out",), main)
        return self.op("ConvertTensor", (out + ".out",), (out,), convert("NCHW"))

    def quant(self, name: str, scale: float) -> Net:
        info = Table("TensorQuantInfo", {"scale": scale, "type": "DT_INT16"})
        index = self.index(name)
        self.described.append(Table("TensorDescribe", {"index": index, "quantInfo": info}))
        return self

    def table(self, *outputs: str) -> Table:
        fields: dict[str, Any] = {"oplists": self.ops, "outputName": list(outputs)}
        fields["tensorName"] = self.names
        if self.described:
            fields["extraTensorDescribe"] = self.described
        return Table("Net", fields)


def convert(dest: str) -> Table:
    source = "NCHW" if dest == "NC4HW4" else "NC4HW4"
    return Table("TensorConvertInfo", {"source": source, "dest": dest})


def blob(value: np.ndarray[Any, Any], format: str = "NCHW") -> Table:
    if value.dtype.kind == "f":
        name, field, value = "DT_FLOAT", "float32s", value.astype(np.float32)
    else:
        name, field, value = "DT_INT32", "int32s", value.astype(np.int32)
    fields = {"dims": i32(*value.shape), "dataFormat": format, "dataType": name}
    return Table("Blob", {**fields, field: value.reshape(-1)})


def unary(kind: str) -> Table:
    return Table("UnaryOp", {"opType": kind, "T": "DT_FLOAT"})


def binary(kind: str) -> Table:
    return Table("BinaryOp", {"opType": kind, "T": "DT_FLOAT"})


ATTENTION = Table("AttentionParam", {"kv_cache": True})


def write_sample(path: Path, values: dict[str, np.ndarray[Any, Any]]) -> Path:
    """An ``input.mnn`` as MNN's tools write it."""
    ops = [
        Table("Op", {"type": "Const", "name": n, "outputIndexes": i32(i), "main": blob(v)})
        for i, (n, v) in enumerate(values.items())
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    writer.write(path, Table("Net", {"oplists": ops, "tensorName": list(values)}))
    return path


def llm_sample(path: Path, hidden: int, length: int) -> Path:
    """The inputs of an exported LLM for ``length`` tokens."""
    values = {
        "input_ids": np.zeros((length, 1, hidden), np.float32),
        "attention_mask": np.zeros((1, 1, length, length), np.float32),
        "position_ids": np.arange(length, dtype=np.int32)[None],
        "logits_index": i32(-1 if length == 1 else 0),
    }
    return write_sample(path, values)
