"""The process that uses Qualcomm's libraries: reads a request, writes a response.

Forked by `mnnqnn_tasks.qnn.server`, one per request.  Request and response (JSON), bulk
buffers and everything printed are in files without a name, so that nothing is left on disk
whatever happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from mnnqnn_tasks.errors import MnnqnnError
from mnnqnn_tasks.qnn.netjson import load
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.qnn.times import measured

Request = dict[str, Any]

_PR_SET_PDEATHSIG = 1

#: What reading metadata may take beside the mapped file; the library makes room for as many
#: tensors as a damaged count says.
_METADATA_BYTES = 512 << 20


def _link(request: Request) -> object:
    from mnnqnn_tasks.qnn.link import link

    out_bin = Path(request["out_bin"])
    with measured("link", out_bin.name):
        graphs = [load(Path(net)) for net in request["nets"]]
        info = link(
            graphs,
            Path(request["blobs"]),
            TargetOptions(**request["options"]),
            out_bin,
            Path(request["lib_dir"]),
        )
    return info.to_json()


def _validate(request: Request) -> object:
    from mnnqnn_tasks.qnn.validate import validate

    graphs = [load(Path(net)) for net in request["nets"]]
    options = TargetOptions(**request["options"])
    skip = {(graph, node) for graph, node in request["skip"]}
    verdicts = validate(graphs, options, Path(request["lib_dir"]), skip)
    return [[asdict(verdict) for verdict in graph] for graph in verdicts]


def _inspect(request: Request) -> object:
    from mnnqnn_tasks.qnn.inspect import System

    system, path = System(Path(request["lib_dir"])), Path(request["binary"])
    with contextlib.suppress(OSError):  # of a missing file, which `inspect` tells
        _limit_memory(os.path.getsize(path) + _METADATA_BYTES)
    return system.inspect(path).to_json()


def _limit_memory(more: int) -> None:
    """Let this process have so many bytes of address space beside what it has."""
    with open("/proc/self/statm", encoding="ascii") as stream:
        pages = int(stream.read().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (wanted if soft < 0 else min(wanted, soft), hard))


def _load(request: Request) -> object:
    from mnnqnn_tasks.qnn.loading import load_binary

    return load_binary(
        Path(request["binary"]), request["soc_id"], request["graphs"], Path(request["lib_dir"])
    )


def _execute(request: Request) -> object:
    """Buffers are at (offset, size) of the files ``inputs_fd`` and ``outputs_fd``."""
    from mnnqnn_tasks.qnn.execute import Executor

    executor = Executor(
        load(Path(request["net"])),
        Path(request["blobs"]),
        TargetOptions(**request["options"]),
        Path(request["lib_dir"]),
    )
    at, results = 0, []
    with open(request["outputs_fd"], "wb", closefd=False) as stream:
        for places in request["inputs"]:
            buffers = {
                name: os.pread(request["inputs_fd"], size, offset)
                for name, (offset, size) in places.items()
            }
            placed = {}
            for name, data in executor.run(buffers).items():
                stream.write(data)
                placed[name] = (at, len(data))
                at += len(data)
            results.append(placed)
    return results


def _identity(request: Request) -> object:
    from mnnqnn_tasks.qnn.log import Log
    from mnnqnn_tasks.qnn.session import Htp

    return Htp(Path(request["lib_dir"]), Log()).build_id()


ACTIONS: dict[str, Callable[[Request], object]] = {
    "link": _link,
    "validate": _validate,
    "inspect": _inspect,
    "load": _load,
    "execute": _execute,
    "build_id": _identity,
}


def _become_worker(files: Mapping[str, int], parent: int) -> Request:
    """Turn the forked process into the one that the request asks for, and read that."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    # A crash costs one task, and leaves no core in the user's folder.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.dup2(files["stderr_fd"], 1)  # the library prints on both
    os.dup2(files["stderr_fd"], 2)
    with open(files["request_fd"], encoding="utf-8") as stream:
        stream.seek(0)
        request: Request = json.load(stream)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["cwd"])
    return {**request, **files}


def serve(files: Mapping[str, int], parent: int) -> NoReturn:
    """Serve one request and end the process without running library destructors.

    Args:
        files: descriptors by name: ``request_fd`` (JSON), ``response_fd``, ``stderr_fd`` and
            those that the request uses.
        parent: the process to die with.
    """
    code = 1
    try:
        request = _become_worker(files, parent)
        try:
            response: dict[str, Any] = {"result": ACTIONS[request["action"]](request)}
        except MnnqnnError as error:
            fields = [error.what, error.where, error.why, error.todo, error.tail]
            response = {"error": [type(error).__name__, *fields]}
        with open(files["response_fd"], "w", encoding="utf-8") as stream:
            json.dump(response, stream)
        code = 0
    except BaseException:
        # A bug of ours: the parent reports the exit code and these lines.
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
