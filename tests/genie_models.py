"""Small context binaries for Genie's loader: language model graphs with chosen names and tensors.

    built = build(folder, {"a.bin": [graph("token_ar1_cl64_1_of_1", language(1, 64))]})

links every binary in one process of its own; with ``lib_dir`` an older library's, whose
binaries all newer libraries read as well.  A graph costs about 30 ms.  The model that
`language` describes counts: after token t it says t + 1.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from qnn_graphs import put

from mnnqnn_tasks.qnn.binary import BinaryInfo
from mnnqnn_tasks.qnn.ir import Graph, Node, ScalarParam, Tensor, TensorParam
from mnnqnn_tasks.qnn.options import TargetOptions

VOCABULARY, HEADS, HEAD_DIM, HIDDEN = 32, 1, 4, 8
OPTIONS = TargetOptions(57, "v75", optimization_level=1, weight_sharing=False)


class Port(NamedTuple):
    """A graph input or output."""

    name: str
    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Ports:
    """Inputs and outputs of a graph."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def without(self, *names: str) -> Ports:
        """All but these."""
        return Ports(
            tuple(p for p in self.inputs if p.name not in names),
            tuple(p for p in self.outputs if p.name not in names),
        )

    def renamed(self, **names: str) -> Ports:
        """With other names, ``old=new``."""
        return Ports(
            tuple(p._replace(name=names.get(p.name, p.name)) for p in self.inputs),
            tuple(p._replace(name=names.get(p.name, p.name)) for p in self.outputs),
        )

    def having(self, *, inputs: Sequence[Port] = (), outputs: Sequence[Port] = ()) -> Ports:
        """With these instead of those of the same names, or behind all others."""
        return Ports(_having(self.inputs, inputs), _having(self.outputs, outputs))


def _having(ports: tuple[Port, ...], more: Sequence[Port]) -> tuple[Port, ...]:
    new = {port.name: port for port in more}
    return (*(new.pop(port.name, port) for port in ports), *new.values())


def language(
    ar: int,
    cl: int,
    *,
    first: bool = True,
    last: bool = True,
    layers: Sequence[int] = (0,),
    dtype: str = "FLOAT_16",
) -> Ports:
    """What Genie needs of a decoder, or of one split of it.

    Args:
        ar, cl: tokens per call, and of context.
        first: takes ``input_ids``, else the residual ``hidden``.
        last: gives ``logits``, else ``hidden_out``.
        layers: numbers of the layers with a KV cache.
    """
    inputs = [
        Port("input_ids", "INT_32", (1, ar)) if first else Port("hidden", dtype, (1, ar, HIDDEN)),
        Port("attention_mask", dtype, (1, 1, ar, cl)),
        Port("position_ids_cos", dtype, (1, 1, ar, HEAD_DIM // 2)),
        Port("position_ids_sin", dtype, (1, 1, ar, HEAD_DIM // 2)),
    ]
    outputs = [Port("logits", dtype, (1, ar, VOCABULARY))]
    if not last:
        outputs = [Port("hidden_out", dtype, (1, ar, HIDDEN))]
    for layer in layers:
        past = max(cl - ar, 1)
        inputs += [
            Port(f"past_key_{layer}_in", dtype, (HEADS, 1, HEAD_DIM, past)),
            Port(f"past_value_{layer}_in", dtype, (HEADS, 1, past, HEAD_DIM)),
        ]
        outputs += [
            Port(f"past_key_{layer}_out", dtype, (HEADS, 1, HEAD_DIM, ar)),
            Port(f"past_value_{layer}_out", dtype, (HEADS, 1, ar, HEAD_DIM)),
        ]
    return Ports(tuple(inputs), tuple(outputs))


def split(number: int, total: int, ar: int, cl: int) -> Ports:
    """Split ``number`` of ``total``, one layer each; ``h<n>`` joins split n to the next."""
    ports = language(ar, cl, first=number == 1, last=number == total, layers=(number - 1,))
    return ports.renamed(hidden=f"h{number - 1}", hidden_out=f"h{number}")


def graph(name: str, ports: Ports) -> Graph:
    """A graph with these inputs and outputs.

    ``logits`` with as many rows as ``input_ids`` are one-hot of the next token; every other
    output repeats one element of an input.  Weights are put where `build` finds them.
    """
    made = Graph(name, [Tensor(p.name, "APP_WRITE", p.dtype, p.dims) for p in ports.inputs])
    ids = next((p for p in ports.inputs if p.name == "input_ids"), None)
    for port in ports.outputs:
        made.tensors.append(Tensor(port.name, "APP_READ", port.dtype, port.dims))
        if port.name == "logits" and ids and port.dims == (*ids.dims, VOCABULARY):
            made.tensors.append(Tensor("next", "STATIC", port.dtype, (VOCABULARY, VOCABULARY)))
            made.nodes.append(
                Node(
                    "count",
                    "Gather",
                    ("next", "input_ids"),
                    (port.name,),
                    (ScalarParam("axis", "INT_32", 0),),
                )
            )
        else:
            _repeat(made, port)
    return made


def _repeat(made: Graph, port: Port) -> None:
    """Fill an output with the first element of the first input of its type."""
    source = next(t for t in made.inputs() if t.dtype == port.dtype)
    rank = len(source.dims)
    one, shaped = f"{port.name}.one", f"{port.name}.shaped"
    made.tensors += [
        Tensor(one, "NATIVE", port.dtype, (1,) * rank),
        Tensor(shaped, "NATIVE", port.dtype, (1,) * len(port.dims)),
    ]
    first = TensorParam("ranges", "INT_32", (rank, 3), (0, 1, 1) * rank)
    times = TensorParam("multiples", "UINT_32", (len(port.dims),), port.dims)
    made.nodes += [
        Node(f"{port.name}.take", "StridedSlice", (source.name,), (one,), (first,)),
        Node(f"{port.name}.shape", "Reshape", (one,), (shaped,)),
        Node(f"{port.name}.fill", "Tile", (shaped,), (port.name,), (times,)),
    ]


def build(
    folder: Path,
    binaries: Mapping[str, Sequence[Graph]],
    lib_dir: Path | None = None,
    options: TargetOptions = OPTIONS,
) -> dict[str, BinaryInfo]:
    """Link every binary into ``folder``; what was read back, by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    job = pickle.dumps((folder, dict(binaries), lib_dir, options))
    child = [sys.executable, __file__]
    done = subprocess.run(child, input=job, capture_output=True)
    lines = done.stderr.decode(errors="replace")[-2000:]
    assert done.returncode == 0, f"exit code {done.returncode}\n{lines}"
    built: dict[str, BinaryInfo] = pickle.loads(done.stdout[done.stdout.rindex(_MARK) + 1 :])
    return built


_MARK = b"\xff"  # before the answer; the library prints on standard output as well


def _main() -> None:
    from mnnqnn_tasks.qnn import library
    from mnnqnn_tasks.qnn.link import link

    folder, binaries, lib_dir, options = pickle.load(sys.stdin.buffer)
    libraries, blobs, built = library.find(lib_dir), folder / "blobs", {}
    weights = np.roll(np.eye(VOCABULARY), 1, axis=1)
    for name, graphs in binaries.items():
        filled = []
        for one in graphs:
            tensors = [
                replace(t, blob=put(blobs, weights.astype(_NUMPY[t.dtype])))
                if t.kind == "STATIC"
                else t
                for t in one.tensors
            ]
            filled.append(Graph(one.name, tensors, one.nodes))
        built[name] = link(filled, blobs, options, folder / name, libraries)
    sys.stdout.buffer.write(_MARK + pickle.dumps(built, protocol=0))
    sys.stdout.flush()


_NUMPY = {"FLOAT_16": np.float16, "FLOAT_32": np.float32}

if __name__ == "__main__":
    _main()
