"""Reading a context binary's metadata through ``libQnnSystem.so``.

Runs in a worker process: a foreign file may bring the library down.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import QnnError, ToolMissing
from mnnqnn_tasks.qnn import abi, library
from mnnqnn_tasks.qnn.binary import BinaryInfo, GraphInfo, TensorInfo
from mnnqnn_tasks.qnn.session import dlopen

_BINARY_VERSIONS = {
    1: "contextBinaryInfoV1",
    2: "contextBinaryInfoV2",
    3: "contextBinaryInfoV3",
}
_GRAPH_VERSIONS = {1: "graphInfoV1", 2: "graphInfoV2", 3: "graphInfoV3"}
_DAMAGED = "the metadata of the context binary is damaged"
_MAX_RANK = 32  # HTP takes 5
_TODO = "link it again; a binary is only read from where link wrote it"


class System:
    """``libQnnSystem.so`` in this process."""

    def __init__(self, lib_dir: Path) -> None:
        self._library = dlopen(lib_dir / library.SYSTEM)
        interface = abi.ctype("QnnSystemInterface_t")
        providers = ctypes.POINTER(ctypes.POINTER(interface))()
        count = ctypes.c_uint32()
        self._functions: Any = None
        code = self._library.QnnSystemInterface_getProviders(
            ctypes.byref(providers), ctypes.byref(count)
        )
        for index in range(count.value if code == 0 else 0):
            found = providers[index].contents
            if found.systemApiVersion.major == abi.constant("system_api_major"):
                self._functions = found.v1_4
        if self._functions is None:
            raise ToolMissing(
                f"{library.SYSTEM} has no interface of system API 1",
                todo="install a newer onnxruntime-qnn",
            )

    def _call(self, name: str, *arguments: Any) -> int:
        code: int = abi.prototype(name)(getattr(self._functions, name))(*arguments)
        return code

    def inspect(self, path: Path) -> BinaryInfo:
        """Metadata of the context binary ``path``.

        Raises:
            QnnError: unreadable, not a context binary, or a truncated one.
        """
        try:
            with path.open("rb") as stream:
                return self.inspect_fd(stream.fileno(), str(path))
        except OSError as error:
            raise QnnError(
                "cannot read the context binary", where=str(path), why=str(error), todo=_TODO
            ) from error

    def inspect_fd(self, fd: int, where: str) -> BinaryInfo:
        """Metadata of the context binary in an open file; ``where`` names it in errors."""
        try:
            # ctypes wants writable memory; the private copy costs nothing until written.
            memory = mmap.mmap(fd, 0, access=mmap.ACCESS_COPY)
        except ValueError as error:
            raise QnnError(
                "not a QNN context binary", where=where, why=str(error), todo=_TODO
            ) from error
        view = ctypes.c_char.from_buffer(memory)
        try:
            return self._inspect(ctypes.addressof(view), len(memory), where)
        finally:
            del view
            memory.close()

    def _inspect(self, address: int, size: int, where: str) -> BinaryInfo:
        handle, info, info_size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        code = self._call("systemContextCreate", ctypes.byref(handle))
        if code != 0:
            raise QnnError(f"systemContextCreate returned {code & 0xFFFF}", where=where)
        try:
            code = self._call(
                "systemContextGetBinaryInfo",
                handle,
                address,
                size,
                ctypes.byref(info),
                ctypes.byref(info_size),
            )
            if code != 0 or not info.value:
                raise QnnError(
                    "not a QNN context binary",
                    where=where,
                    why=f"systemContextGetBinaryInfo returned {code & 0xFFFF}",
                    todo=_TODO,
                )
            return _binary(info.value, where, size)
        finally:
            self._call("systemContextFree", handle)


def _binary(address: int, where: str, file_size: int) -> BinaryInfo:
    """Copy what ``QnnSystemContext_BinaryInfo_t`` at ``address`` says."""
    info = abi.ctype("QnnSystemContext_BinaryInfo_t").from_address(address)
    if info.version not in _BINARY_VERSIONS:
        raise QnnError(f"unknown binary info version {info.version}", where=where, todo=_TODO)
    body = getattr(info, _BINARY_VERSIONS[info.version])
    if body.contextBlobSize > file_size:
        raise QnnError(
            "the context binary is truncated",
            where=where,
            why=f"it holds a blob of {body.contextBlobSize} bytes in a file of {file_size}",
            todo=_TODO,
        )
    kind = abi.ctype("QnnSystemContext_GraphInfo_t")
    graphs = (kind * body.numGraphs).from_address(_address(body.graphs)) if body.numGraphs else ()
    core = body.coreApiVersion
    return BinaryInfo(
        build_id=_text(body.buildId),
        core_api=f"{core.major}.{core.minor}.{core.patch}",
        soc_id=body.socModel if info.version >= 3 else None,
        dsp_arch=None,
        size=file_size,
        graphs=tuple(_graph(graph, where) for graph in graphs),
    )


def _graph(info: Any, where: str) -> GraphInfo:
    if info.version not in _GRAPH_VERSIONS:
        raise QnnError(f"unknown graph info version {info.version}", where=where, todo=_TODO)
    body = getattr(info, _GRAPH_VERSIONS[info.version])
    options: dict[str, int] = {}
    blob_type = abi.ctype("QnnHtpSystemContext_GraphBlobInfo_t")
    if info.version >= 3 and body.graphBlobInfo:
        blob = blob_type.from_address(body.graphBlobInfo)
        if blob.version == 1:
            options = {
                "vtcm_bytes": blob.v1.vtcmSize,
                "optimization_level": blob.v1.optimizationLevel,
                "hvx_threads": blob.v1.numHvxThreads,
                "spill_fill_bytes": blob.v1.spillFillBufferSize,
            }
    return GraphInfo(
        name=_text(body.graphName),
        inputs=_tensors(body.graphInputs, body.numGraphInputs, where),
        outputs=_tensors(body.graphOutputs, body.numGraphOutputs, where),
        **options,
    )


def _tensors(pointer: Any, count: int, where: str) -> tuple[TensorInfo, ...]:
    """Copy tensors; the library hands on the count of a damaged file as it is."""
    if count and not pointer:
        raise QnnError(_DAMAGED, where=where, why=f"{count} tensors are missing", todo=_TODO)
    return tuple(_tensor(pointer[index], where) for index in range(count))


def _tensor(tensor: Any, where: str) -> TensorInfo:
    body = {1: tensor.v1, 2: tensor.v2}.get(tensor.version)
    if body is None or body.rank > _MAX_RANK or (body.rank and not body.dimensions):
        what = f"rank {body.rank}" if body else f"version {tensor.version}"
        raise QnnError(_DAMAGED, where=where, why=f"a tensor of {what}", todo=_TODO)
    dims = (ctypes.c_uint32 * body.rank).from_address(body.dimensions) if body.rank else ()
    quant = body.quantizeParams
    encoding, scale, offset = None, None, None
    if quant.encodingDefinition == abi.enum("Definition")["DEFINED"]:
        encoding = abi.enum_names("QuantizationEncoding").get(quant.quantizationEncoding, "?")
        if encoding == "SCALE_OFFSET":
            scale, offset = quant.scaleOffsetEncoding.scale, quant.scaleOffsetEncoding.offset
    return TensorInfo(
        name=_text(body.name),
        dtype=abi.enum_names("DataType").get(body.dataType, f"0x{body.dataType:04x}"),
        dims=tuple(dims),
        encoding=encoding if encoding != "UNDEFINED" else None,
        scale=scale,
        offset=offset,
    )


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _address(pointer: Any) -> int:
    return ctypes.addressof(pointer.contents)
