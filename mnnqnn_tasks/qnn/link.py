"""Linking: graphs that share weights become one context binary, which is read back."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mnnqnn_tasks.errors import QnnError
from mnnqnn_tasks.files import atomic_writer
from mnnqnn_tasks.qnn.binary import BinaryInfo, GraphInfo, TensorInfo
from mnnqnn_tasks.qnn.compose import compose
from mnnqnn_tasks.qnn.inspect import System
from mnnqnn_tasks.qnn.ir import Graph, Tensor
from mnnqnn_tasks.qnn.log import Log
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.qnn.session import Htp
from mnnqnn_tasks.qnn.times import measured


def link(
    graphs: Sequence[Graph], blobs: Path, options: TargetOptions, out_bin: Path, lib_dir: Path
) -> BinaryInfo:
    """Compose ``graphs`` in this order in one context, finalize, write ``out_bin``.

    The binary replaces ``out_bin`` only after libQnnSystem has read it back and found what
    was asked for.

    Raises:
        QnnError: the library refuses something, or the binary differs from the request.
        DiskError: the binary cannot be written.
    """
    log = Log()
    htp = Htp(lib_dir, log)
    context = htp.context(htp.backend(), htp.device(options), options)
    for graph in graphs:
        compose(htp, context, graph, options, blobs)
    log.stage(f"serialize {out_bin.name}")
    with measured("serialize", out_bin.name):
        data = _serialize(htp, context, out_bin)
    log.stage(f"write {out_bin.name}")
    with atomic_writer(out_bin) as stream:
        stream.write(data)
        stream.flush()
        log.stage(f"read back {out_bin.name}")
        info = System(lib_dir).inspect_fd(stream.fileno(), str(out_bin))
        info = replace(info, dsp_arch=htp.dsp_arch)  # the binary does not tell
        if found := list(differences(graphs, options, info)):
            raise QnnError(
                "the context binary differs from what was asked",
                where=str(out_bin),
                why="; ".join(found),
                tail=log.tail(),
            )
    return info


def _serialize(htp: Htp, context: ctypes.c_void_p, out_bin: Path) -> memoryview:
    size, written = ctypes.c_uint64(), ctypes.c_uint64()
    what = "QNN cannot serialize the context"
    htp.call("contextGetBinarySize", context, ctypes.byref(size), what=what, where=str(out_bin))
    buffer = (ctypes.c_ubyte * size.value)()
    htp.call(
        "contextGetBinary",
        context,
        ctypes.addressof(buffer),
        size.value,
        ctypes.byref(written),
        what=what,
        where=str(out_bin),
    )
    return memoryview(buffer).cast("B")[: written.value]


def differences(graphs: Sequence[Graph], options: TargetOptions, info: BinaryInfo) -> Iterator[str]:
    """Everything in which a binary differs from the graphs and options asked for."""
    asked, found = [g.name for g in graphs], [g.name for g in info.graphs]
    if asked != found:
        yield f"graphs are {found}, asked {asked}"
        return
    if info.soc_id is not None and info.soc_id != options.soc_id:
        yield f"soc_id is {info.soc_id}, asked {options.soc_id}"
    if info.dsp_arch is not None and info.dsp_arch != options.dsp_arch:
        yield f"dsp_arch is {info.dsp_arch}, asked {options.dsp_arch}"
    for graph, built in zip(graphs, info.graphs, strict=True):
        yield from _tensor_differences(f"{graph.name} input", graph.inputs(), built.inputs)
        yield from _tensor_differences(f"{graph.name} output", graph.outputs(), built.outputs)
        yield from option_differences(options, built)


def _tensor_differences(
    place: str, asked: Sequence[Tensor], found: Sequence[TensorInfo]
) -> Iterator[str]:
    """Name, type and dims in order; the runtime finds tensors by name but trusts the rest."""
    wanted = [(t.name, t.dtype, t.dims) for t in asked]
    got = [(t.name, t.dtype, t.dims) for t in found]
    if len(wanted) != len(got):
        yield f"{place}s are {[n for n, _, _ in got]}, asked {[n for n, _, _ in wanted]}"
        return
    for one, other in zip(wanted, got, strict=True):
        if one != other:
            yield f"{place} is {other}, asked {one}"


def option_differences(options: TargetOptions, built: GraphInfo) -> Iterator[str]:
    """The options that a graph was built with other values of, as far as it tells."""
    vtcm = options.vtcm_mb << 20
    pairs = (
        ("optimization_level", options.optimization_level, built.optimization_level),
        ("hvx_threads", options.hvx_threads, built.hvx_threads),
        ("vtcm_bytes", vtcm or None, built.vtcm_bytes),
    )
    for name, asked, found in pairs:
        if asked is not None and found is not None and asked != found:
            yield f"{name} of {built.name} is {found}, asked {asked}"
