"""`Subgraph` as JSON: the bytes of ``subgraphs/<graph>.json`` and their digest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mnnqnn_tasks.errors import PartitionError
from mnnqnn_tasks.files import canonical_json, sha256_bytes
from mnnqnn_tasks.partition.subgraph import (
    ByteRef,
    QuantInfo,
    Subgraph,
    SubOp,
    SubTensor,
)

VERSION = 1


def _number_out(value: float | int) -> float | int | str:
    # JSON has no infinities; float("-inf") brings them back.
    return value if isinstance(value, int) or math.isfinite(value) else str(value)


def _number_in(value: Any) -> float | int:
    return float(value) if isinstance(value, str) else value


def _ref_out(ref: ByteRef) -> dict[str, Any]:
    return {"sha256": ref.sha256, "size": ref.size}


def _tensor_out(t: SubTensor) -> dict[str, Any]:
    out: dict[str, Any] = {"id": t.id, "dims": list(t.dims), "dtype": t.dtype, "format": t.format}
    if t.boundary is not None:
        out["boundary"] = t.boundary
    if isinstance(t.const, ByteRef):
        out["const"] = _ref_out(t.const)
    elif t.const is not None:
        out["const"] = [_number_out(v) for v in t.const]
    if t.quant is not None:
        q = t.quant
        out["quant"] = {
            "scale": _number_out(q.scale),
            "zero": _number_out(q.zero),
            "min": _number_out(q.min),
            "max": _number_out(q.max),
            "dtype": q.dtype,
        }
    return out


def _op_out(op: SubOp) -> dict[str, Any]:
    return {
        "type": op.type,
        "name": op.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"),
        "inputs": list(op.inputs),
        "outputs": list(op.outputs),
        "params": op.params,
        "weights": {role: _ref_out(ref) for role, ref in op.weights.items()},
    }


def to_json(subgraph: Subgraph) -> dict[str, Any]:
    """Plain JSON values; `from_json` is the inverse."""
    return {
        "version": VERSION,
        "graph": subgraph.graph,
        "tensors": [_tensor_out(t) for t in subgraph.tensors],
        "ops": [_op_out(op) for op in subgraph.ops],
        "inputs": list(subgraph.inputs),
        "outputs": list(subgraph.outputs),
    }


def to_bytes(subgraph: Subgraph) -> bytes:
    """The content of ``subgraphs/<graph>.json``: canonical, one tensor or op per line."""
    value = to_json(subgraph)
    lines = ["{"]
    for name in ("graph", "inputs", "outputs", "version"):
        lines.append(f'"{name}":{canonical_json(value[name])},')
    for name, end in (("tensors", ","), ("ops", "}")):
        items = ",\n".join(canonical_json(item) for item in value[name])
        lines.append(f'"{name}":[\n{items}\n]{end}')
    return ("\n".join(lines) + "\n").encode()


def digest(subgraph: Subgraph) -> str:
    """SHA-256 of `to_bytes`: the identity of the subgraph."""
    return sha256_bytes(to_bytes(subgraph))


def _const_in(value: Any) -> tuple[float | int, ...] | ByteRef | None:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return ByteRef(value["sha256"], value["size"])
    return tuple(_number_in(v) for v in value)


def _quant_in(value: Any) -> QuantInfo | None:
    if value is None:
        return None
    scale, zero, low, high = (float(value[k]) for k in ("scale", "zero", "min", "max"))
    return QuantInfo(scale, zero, low, high, value["dtype"])


def from_json(value: Any) -> Subgraph:
    """The subgraph that `to_json` described.

    Raises:
        PartitionError: when ``value`` is something else.
    """
    try:
        if value["version"] != VERSION:
            raise ValueError(f"its version is {value['version']}, not {VERSION}")
        return Subgraph(
            value["graph"],
            tuple(
                SubTensor(
                    t["id"],
                    tuple(t["dims"]),
                    t["dtype"],
                    t["format"],
                    t.get("boundary"),
                    _const_in(t.get("const")),
                    _quant_in(t.get("quant")),
                )
                for t in value["tensors"]
            ),
            tuple(
                SubOp(
                    op["type"],
                    op["name"],
                    tuple(op["inputs"]),
                    tuple(op["outputs"]),
                    op["params"],
                    {role: ByteRef(w["sha256"], w["size"]) for role, w in op["weights"].items()},
                )
                for op in value["ops"]
            ),
            tuple(value["inputs"]),
            tuple(value["outputs"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PartitionError(
            "not a subgraph of this tool",
            why=f"{type(error).__name__}: {error}",
            todo="delete the file and run again",
        ) from error
