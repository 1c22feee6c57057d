"""Asking QNN itself whether it can run an op: ``backendValidateOpConfig``."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from mnnqnn_tasks.qnn.compose import node_params, op_config
from mnnqnn_tasks.qnn.ir import Graph
from mnnqnn_tasks.qnn.log import Log
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.qnn.session import Htp
from mnnqnn_tasks.qnn.tensors import Keep, make_tensor
from mnnqnn_tasks.qnn.verdict import OpVerdict


def validate(
    graphs: Sequence[Graph], options: TargetOptions, lib_dir: Path
) -> list[list[OpVerdict]]:
    """One verdict per node of each graph."""
    htp = Htp(lib_dir, Log())
    backend = htp.backend()
    htp.device(options)
    return [_validate(htp, backend, graph) for graph in graphs]


def _validate(htp: Htp, backend: ctypes.c_void_p, graph: Graph) -> list[OpVerdict]:
    keep: Keep = []
    tensors = {tensor.name: make_tensor(tensor, keep) for tensor in graph.tensors}
    verdicts = []
    for node in graph.nodes:
        htp.log.stage(f"validate {graph.name} {node.name} ({node.type})")
        htp.log.take()
        config = op_config(node, tensors, node_params(node, keep), keep)
        code = htp.function("backendValidateOpConfig")(backend, config)
        reason = ""
        if code != 0:
            reason = f"{code & 0xFFFF} {htp.message(code)}: {htp.log.take()}"
        verdicts.append(OpVerdict(node.name, node.type, code == 0, reason))
    return verdicts
