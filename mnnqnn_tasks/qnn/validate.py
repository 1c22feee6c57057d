"""Asking QNN itself whether it can run an op: ``backendValidateOpConfig``.

The call takes a backend and an op, no device, yet its answer depends on the device that
the process has created: on libQnnHtp 2.51 a MatMul of two 16-bit operands is refused for
v68 and v69 ("incorrect Value 69, expected >= 73") and accepted for v73 and newer.  So
every question is asked with the target's device present and one target per process.  The
backend's platform option cannot name a chip.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Collection, Sequence
from pathlib import Path

from mnnqnn_tasks.qnn.compose import node_params, op_config
from mnnqnn_tasks.qnn.ir import Graph, Node
from mnnqnn_tasks.qnn.log import Log
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.qnn.session import Htp
from mnnqnn_tasks.qnn.tensors import Keep, make_tensor
from mnnqnn_tasks.qnn.verdict import OpVerdict

#: Lines that follow every refusal and say nothing about it.
_EMPTY_WORDS = (
    "QnnBackend_validateOpConfig failed",
    "Failed to validate op ",
    "Please refer to",
    "Supported I/O datatype sets",
)

#: (graph index, node index) of a node.
Place = tuple[int, int]


def validate(
    graphs: Sequence[Graph],
    options: TargetOptions,
    lib_dir: Path,
    skip: Collection[Place] = (),
) -> list[list[OpVerdict]]:
    """One verdict per node of each graph; nodes in ``skip`` are not shown to the library.

    Static tensors are shown with zeros of the right size instead of their data, so that
    the blob store is not needed: some checks of the library read the data and crash
    without any.

    Raises:
        QnnError: the device of ``options`` is refused.
    """
    htp = Htp(lib_dir, Log())
    backend = htp.backend()
    htp.device(options)
    largest = max((blob.size for graph in graphs for blob in graph.blobs()), default=1)
    zeros = mmap.mmap(-1, largest)  # pages come into being when they are read
    address = ctypes.addressof(ctypes.c_char.from_buffer(zeros))
    return [
        _validate(htp, backend, graph, index, address, skip) for index, graph in enumerate(graphs)
    ]


def _validate(
    htp: Htp,
    backend: ctypes.c_void_p,
    graph: Graph,
    graph_index: int,
    zeros: int,
    skip: Collection[Place],
) -> list[OpVerdict]:
    keep: Keep = []
    tensors = {
        t.name: make_tensor(t, keep, zeros, t.blob.size) if t.blob else make_tensor(t, keep)
        for t in graph.tensors
    }
    verdicts = []
    for index, node in enumerate(graph.nodes):
        if (graph_index, index) in skip:
            verdicts.append(OpVerdict(node.name, node.type, False, "not asked"))
            continue
        # The parent reads the two numbers, see run.validate.
        htp.log.stage(f"validate {graph_index} {index}: {graph.name} {node.name} ({node.type})")
        htp.log.clear()
        config = op_config(node, tensors, node_params(node, keep), keep)
        code = htp.function("backendValidateOpConfig")(backend, config)
        verdicts.append(_verdict(htp, node, code))
    return verdicts


def _verdict(htp: Htp, node: Node, code: int) -> OpVerdict:
    """The first line of each message of the library, without repeats and empty words."""
    if code == 0:
        return OpVerdict(node.name, node.type, True)
    heads = dict.fromkeys(
        head.removeprefix("<E>").strip()
        for head in htp.log.heads
        if not any(words in head for words in _EMPTY_WORDS)
    )
    reason = "; ".join([f"{code & 0xFFFF} {htp.message(code)}", *heads])
    return OpVerdict(node.name, node.type, False, reason)
