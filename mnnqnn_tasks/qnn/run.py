"""Using the QNN libraries from outside: every call is a process of its own.

A crash in the library ends that process only and becomes `NativeCrash`.  The process
dies with this one, and is killed when a call is interrupted.  Calls from several threads
run side by side.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from mnnqnn_tasks.errors import NativeCrash, QnnError
from mnnqnn_tasks.files import write_json
from mnnqnn_tasks.qnn import binary, client
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.qnn.verdict import OpVerdict

#: Seconds after which a call is given up; large graphs take minutes on a slow machine.
TIMEOUT = 3600.0

#: What `validate` in the worker says before each question: graph and node index.
_ASKING = re.compile(r"validate (\d+) (\d+): ")


def link(
    nets: Sequence[Path],
    blobs: Path,
    options: TargetOptions,
    out_bin: Path,
    report: Path | None = None,
    lib_dir: Path | None = None,
    timeout: float = TIMEOUT,
) -> binary.BinaryInfo:
    """Make one context binary of the graphs in ``nets``, in this order.

    Args:
        nets: ``*_net.json`` files.
        blobs: folder of the blob store, one file per SHA-256.
        options: the target.
        out_bin: the binary; replaced atomically, and only when it is what was asked.
        report: where to write what was read back, as JSON.
        lib_dir: folder of the QNN libraries; the wheel's by default.
        timeout: seconds.

    Raises:
        NetFileError, QnnError, NativeCrash, ToolMissing, DiskError.
    """
    if not nets:  # the library dies of serializing an empty context
        raise QnnError("a context binary needs at least one graph", where=str(out_bin))
    result = _call(
        "link",
        f"link {out_bin.name}",
        lib_dir,
        timeout,
        nets=[str(net) for net in nets],
        blobs=str(blobs),
        options=options.to_json(),
        out_bin=str(out_bin),
    )
    info = binary.from_json(result)
    if report is not None:
        write_json(report, info.to_json(), durable=False)
    return info


def validate(
    nets: Sequence[Path],
    options: TargetOptions,
    lib_dir: Path | None = None,
    timeout: float = TIMEOUT,
) -> list[list[OpVerdict]]:
    """QNN's verdict on each node of each graph in ``nets``; see `OpVerdict`.

    A node that brings the library down is one that it cannot run: it gets a verdict that
    says so, and the others are asked again without it.

    Raises:
        NetFileError, QnnError, ToolMissing.
        NativeCrash: the library dies before it is asked about a node.
    """
    crashes: dict[tuple[int, int], str] = {}
    while True:
        outcome = client.spawn(
            "validate",
            lib_dir,
            timeout,
            nets=[str(net) for net in nets],
            options=options.to_json(),
            skip=list(crashes),
        )
        at = _ASKING.match(outcome.stage or "")
        if not outcome.crashed or at is None:
            break
        crashes[int(at[1]), int(at[2])] = f"the QNN library died of {outcome.signal} on this op"
    result = outcome.result("validate ops")
    return [
        [
            replace(OpVerdict(**verdict), reason=crashes.get((g, n), verdict["reason"]))
            for n, verdict in enumerate(graph)
        ]
        for g, graph in enumerate(result)
    ]


def inspect(path: Path, lib_dir: Path | None = None, timeout: float = TIMEOUT) -> binary.BinaryInfo:
    """What the context binary ``path`` holds.

    Raises:
        QnnError: not a context binary, or a damaged one, even if the library dies of it.
        ToolMissing.
    """
    try:
        result = _call("inspect", f"inspect {path.name}", lib_dir, timeout, binary=str(path))
    except NativeCrash as error:
        raise QnnError(
            "not a readable QNN context binary",
            where=str(path),
            why=f"the library that reads it was ended ({error.why})",
            todo="link it again",
        ) from error
    return binary.from_json(result)


def load(
    path: Path,
    soc_id: int,
    graphs: Sequence[str],
    lib_dir: Path | None = None,
    timeout: float = TIMEOUT,
) -> list[str]:
    """Load the context binary ``path`` on the host emulator, as a runtime does on the device.

    Args:
        soc_id: the chip that the binary is made for.
        graphs: names to ask for.

    Returns:
        Names in ``graphs`` under which the loaded context has no graph.

    Raises:
        QnnError: the library does not load it.
        NativeCrash: or dies of it.
        ToolMissing.
    """
    result: list[str] = _call(
        "load",
        f"load {path.name}",
        lib_dir,
        timeout,
        binary=str(path),
        soc_id=soc_id,
        graphs=list(graphs),
    )
    return result


def execute(
    net: Path,
    blobs: Path,
    options: TargetOptions,
    inputs: Sequence[Mapping[str, bytes]],
    lib_dir: Path | None = None,
    timeout: float = TIMEOUT,
) -> list[dict[str, bytes]]:
    """Run one graph on the host emulator, once per entry of ``inputs``.

    Args:
        net: the graph's ``*_net.json``.
        blobs: folder of the blob store.
        options: the target it is prepared for.
        inputs: bytes of every graph input by name, little-endian, row-major.

    Returns:
        Bytes of every graph output by name, one dict per entry of ``inputs``.

    Raises:
        NetFileError, QnnError, NativeCrash, ToolMissing.
    """
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as target:
        places, at = [], 0
        for entry in inputs:
            place = {}
            for name, data in entry.items():
                source.write(data)
                place[name] = (at, len(data))
                at += len(data)
            places.append(place)
        source.flush()
        result = _call(
            "execute",
            f"execute {net.name}",
            lib_dir,
            timeout,
            pass_files={"inputs_fd": source, "outputs_fd": target},
            net=str(net),
            blobs=str(blobs),
            options=options.to_json(),
            inputs=places,
        )
        return [
            {
                name: os.pread(target.fileno(), size, offset)
                for name, (offset, size) in entry.items()
            }
            for entry in result
        ]


def build_id(lib_dir: Path | None = None, timeout: float = TIMEOUT) -> str:
    """The library's own ``backendGetBuildId``; `library.identity` is the cheap one."""
    result: str = _call("build_id", "build id", lib_dir, timeout)
    return result


def _call(
    action: str,
    label: str,
    lib_dir: Path | None,
    timeout: float,
    pass_files: Mapping[str, IO[bytes]] | None = None,
    **fields: Any,
) -> Any:
    """Run one request in a worker process and return its result; ``label`` names it."""
    return client.spawn(action, lib_dir, timeout, pass_files, **fields).result(label)
