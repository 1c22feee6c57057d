"""IO samples: named arrays in an MNN file, as ``testdir/<shape>/input.mnn`` holds them.

MNN writes such a file with ``Variable::save``: a net of Const ops, one per array, in
order, each named in ``tensorName``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn import reader, schema, writer
from mnnqnn_tasks.mnn.table import Table

#: numpy name -> (Blob field, DataType).
_STORAGE = {
    "float32": ("float32s", "DT_FLOAT"),
    "int32": ("int32s", "DT_INT32"),
    "int64": ("int64s", "DT_INT64"),
    "uint8": ("uint8s", "DT_UINT8"),
    "int8": ("int8s", "DT_INT8"),
}
_KINDS = {data_type: (field, kind) for kind, (field, data_type) in _STORAGE.items()}


@dataclass(frozen=True)
class Sample:
    """One array of an IO sample.

    Attributes:
        values: float32, int32, int64, uint8 or int8, of any shape.
        format: MNN's layout name, ``NCHW`` or ``NHWC``.
    """

    values: npt.NDArray[Any]
    format: str = "NCHW"


def to_table(samples: Mapping[str, Sample]) -> Table:
    """The file that holds ``samples``, in their order.

    Raises:
        TypeError: when MNN has no storage for an array's type.
    """
    ops = []
    for index, (name, sample) in enumerate(samples.items()):
        kind = sample.values.dtype.name
        if kind not in _STORAGE:
            raise TypeError(f"an MNN IO sample cannot hold {kind}")
        field, data_type = _STORAGE[kind]
        blob: dict[str, Any] = {"dims": np.array(sample.values.shape, np.int32)}
        if sample.format != "NCHW":  # MNN leaves out what equals the default
            blob["dataFormat"] = sample.format
        if data_type != "DT_FLOAT":
            blob["dataType"] = data_type
        blob[field] = np.ascontiguousarray(sample.values).reshape(-1)
        op = {
            "main": Table("Blob", blob),
            "name": name,
            "outputIndexes": np.array([index], np.int32),
            "type": "Const",
        }
        ops.append(Table("Op", op))
    version = Table("ExtraInfo", {"version": schema.MNN_VERSION})
    return Table("Net", {"extraInfo": version, "oplists": ops, "tensorName": list(samples)})


def from_table(net: Table, name: str = "") -> dict[str, Sample]:
    """The arrays of an IO sample, in order.

    Args:
        name: what to call the file in messages.

    Raises:
        ModelFileError: when ``net`` is something else.
    """
    samples: dict[str, Sample] = {}
    for op in net.oplists or ():
        blob = op.main
        if op.type != "Const" or not isinstance(blob, Table) or blob.dataType not in _KINDS:
            raise _not_a_sample(name, f"op {op.name} is a {op.type}, not a Const of numbers")
        field, kind = _KINDS[blob.dataType]
        values = blob.fields.get(field)
        dims = blob.dims if blob.dims is not None else np.empty(0, np.int32)
        if values is None or (dims < 0).any() or int(np.prod(dims, dtype=np.int64)) != len(values):
            count = 0 if values is None else len(values)
            raise _not_a_sample(name, f"{op.name} has {count} values for shape {dims.tolist()}")
        array = values.astype(kind, copy=False).reshape(tuple(int(d) for d in dims))
        samples[op.name] = Sample(array, str(blob.dataFormat))
    if not samples:
        raise _not_a_sample(name, "it has no ops")
    return samples


def _not_a_sample(name: str, why: str) -> ModelFileError:
    return ModelFileError(
        "not an IO sample", where=name or None, why=why, todo="delete it and run again"
    )


def read(path: str | os.PathLike[str]) -> dict[str, Sample]:
    """The arrays of the IO sample at ``path``, in order.

    Raises:
        ModelFileError: when it cannot be read or is something else.
    """
    return from_table(reader.read(path), os.fspath(path))


def write(path: str | os.PathLike[str], samples: Mapping[str, Sample]) -> None:
    """Write ``samples`` to ``path``, whole or not at all.

    Without fsync: whoever trusts a sample compares its size first, and it is soon made.

    Raises:
        DiskError: when the file system refuses.
    """
    writer.write(path, to_table(samples), durable=False)
