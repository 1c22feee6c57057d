"""Composing an IR graph through QNN's API: graph, tensors, nodes, finalize."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import QnnError
from mnnqnn_tasks.qnn import abi
from mnnqnn_tasks.qnn.ir import Blob, Graph, Node, TensorParam
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.qnn.session import Htp, config_list, custom
from mnnqnn_tasks.qnn.tensors import Keep, make_param_tensor, make_scalar, make_tensor
from mnnqnn_tasks.qnn.times import measured


@dataclass
class Composed:
    """A graph inside a context: its handle and its tensors as the library numbered them."""

    name: str
    handle: ctypes.c_void_p
    tensors: dict[str, Any]
    keep: Keep = field(default_factory=list)


#: Digests by file.  The graphs of one binary share most blobs, and the process lives for
#: one binary.
_DIGESTS: dict[Path, str] = {}


def _sha256(path: Path, memory: mmap.mmap) -> str:
    if path not in _DIGESTS:
        _DIGESTS[path] = hashlib.sha256(memory).hexdigest()
    return _DIGESTS[path]


@contextlib.contextmanager
def mapped(blobs: Path, blob: Blob) -> Iterator[int]:
    """Address of a blob's bytes, mapped from the store while the block runs.

    Raises:
        QnnError: the blob is missing from the store, or its bytes are not those of its
            name.
    """
    path = blobs / blob.sha256
    try:
        with path.open("rb") as stream:
            # A private mapping: ctypes wants writable memory, the file must stay as it is.
            memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise QnnError(
            "a static tensor's bytes are missing",
            where=str(path),
            why=str(error),
            todo="remove the graph's files and run again; translate writes the blobs",
        ) from error
    try:
        if len(memory) != blob.size:
            raise QnnError(
                "a static tensor's bytes have another size than its graph says",
                where=str(path),
                why=f"{len(memory)} bytes, not {blob.size}",
            )
        if _sha256(path, memory) != blob.sha256:
            raise QnnError(
                "a static tensor's bytes are not those that were translated",
                where=str(path),
                why="their SHA-256 is not the file's name: the disk or somebody changed them",
                todo="delete the file and run again; translate writes it anew",
            )
        view = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(view)
        del view
        yield address
    finally:
        memory.close()


def _graph_settings(options: TargetOptions) -> list[Any]:
    """HTP's custom graph configs for a target's options (QnnHtpGraph.h)."""
    option, precision = abi.enum("HtpGraphOption"), abi.enum("Precision")

    def setting(name: str) -> Any:
        made = abi.ctype("QnnHtpGraph_CustomConfig_t")()
        made.option = option[name]
        return made

    level = setting("OPTIMIZATION")
    level.optimizationOption.type = abi.enum("HtpGraphOptimization")["FINALIZE_OPTIMIZATION_FLAG"]
    level.optimizationOption.floatValue = options.optimization_level
    relaxed = setting("PRECISION")
    relaxed.precision = precision["FLOAT16" if options.fp16_relaxed_precision else "FLOAT32"]
    vtcm = setting("VTCM_SIZE_IN_MB")
    vtcm.vtcmSizeInMB = options.vtcm_mb
    threads = setting("NUM_HVX_THREADS")
    threads.numHvxThreads = options.hvx_threads
    return [level, relaxed, vtcm, threads]


def create_graph(
    htp: Htp, context: ctypes.c_void_p, name: str, options: TargetOptions
) -> ctypes.c_void_p:
    """Create an empty graph with the target's options."""
    configs, keep = config_list(
        [custom("QnnGraph_Config_t", made) for made in _graph_settings(options)],
        "QnnGraph_Config_t",
    )
    handle = ctypes.c_void_p()
    htp.call(
        "graphCreate",
        context,
        name.encode(),
        configs,
        ctypes.byref(handle),
        what="cannot create a QNN graph",
        where=name,
    )
    del keep
    return handle


def _add_tensors(htp: Htp, composed: Composed, graph: Graph, blobs: Path) -> None:
    for tensor in graph.tensors:
        with contextlib.ExitStack() as stack:
            address = stack.enter_context(mapped(blobs, tensor.blob)) if tensor.blob else 0
            size = tensor.blob.size if tensor.blob else 0
            made = make_tensor(tensor, composed.keep, address, size)
            htp.call(
                "tensorCreateGraphTensor",
                composed.handle,
                ctypes.byref(made),
                what=f"QNN refuses tensor {tensor.name}",
                where=graph.name,
            )
            # The library has copied static data; keep no pointer into the closed mapping.
            made.v1.clientBuf.data = None
            made.v1.clientBuf.dataSize = 0
            composed.tensors[tensor.name] = made


def op_config(node: Node, tensors: dict[str, Any], params: list[Any], keep: Keep) -> Any:
    """``Qnn_OpConfig_t`` of a node, its tensors taken from ``tensors`` by name."""
    kind = abi.ctype("Qnn_Tensor_t")
    inputs = (kind * len(node.inputs))(*(tensors[name] for name in node.inputs))
    outputs = (kind * len(node.outputs))(*(tensors[name] for name in node.outputs))
    settings = (abi.ctype("Qnn_Param_t") * len(params))(*params)
    keep += [inputs, outputs, settings]
    made = abi.ctype("Qnn_OpConfig_t")()
    made.version = 1
    made.v1.name = node.name.encode()
    made.v1.packageName = node.package.encode()
    made.v1.typeName = node.type.encode()
    made.v1.numOfParams, made.v1.params = len(params), settings
    made.v1.numOfInputs, made.v1.inputTensors = len(node.inputs), inputs
    made.v1.numOfOutputs, made.v1.outputTensors = len(node.outputs), outputs
    return made


def node_params(node: Node, keep: Keep) -> list[Any]:
    """``Qnn_Param_t`` of every parameter; tensor parameters are not yet created."""
    made = []
    for param in node.params:
        if isinstance(param, TensorParam):
            item = abi.ctype("Qnn_Param_t")()
            item.paramType = 1
            item.name = param.name.encode()
            item.tensorParam = make_param_tensor(node.name, param, keep)
            made.append(item)
        else:
            made.append(make_scalar(param))
    return made


def _add_nodes(htp: Htp, composed: Composed, graph: Graph) -> None:
    for node in graph.nodes:
        keep: Keep = []
        params = node_params(node, keep)
        for item in params:
            if item.paramType == 1:
                htp.call(
                    "tensorCreateGraphTensor",
                    composed.handle,
                    ctypes.byref(item.tensorParam),
                    what=f"QNN refuses parameter {item.name.decode()} of {node.name}",
                    where=graph.name,
                )
        config = op_config(node, composed.tensors, params, keep)
        htp.call(
            "graphAddNode",
            composed.handle,
            config,
            what=f"QNN refuses op {node.name} ({node.type})",
            where=graph.name,
        )


def compose(
    htp: Htp, context: ctypes.c_void_p, graph: Graph, options: TargetOptions, blobs: Path
) -> Composed:
    """Build ``graph`` in ``context`` and finalize it.

    Raises:
        QnnError: naming the tensor, op or step that the library refused.
    """
    htp.log.stage(f"compose {graph.name}")
    composed = Composed(graph.name, create_graph(htp, context, graph.name, options), {})
    _add_tensors(htp, composed, graph, blobs)
    _add_nodes(htp, composed, graph)
    htp.log.stage(f"finalize {graph.name}")
    with measured("finalize", graph.name):
        htp.call(
            "graphFinalize",
            composed.handle,
            None,
            None,
            what="QNN cannot prepare the graph",
            where=graph.name,
        )
    return composed
