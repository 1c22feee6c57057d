"""The process that loads Qualcomm's libraries: reads a request, writes a response.

Started by `mnnqnn_tasks.qnn.run` alone.  Standard input holds the request (JSON); the
response (JSON) and bulk buffers go to files whose descriptors the request names, so that
nothing is left on disk whatever happens.  Everything printed goes to standard error.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import MnnqnnError
from mnnqnn_tasks.qnn.netjson import load
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.qnn.times import measured

Request = dict[str, Any]

_PR_SET_PDEATHSIG = 1


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

    return System(Path(request["lib_dir"])).inspect(Path(request["binary"])).to_json()


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
    "execute": _execute,
    "build_id": _identity,
}


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent is gone (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    """Serve one request and end the process without running library destructors."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, by SIGKILL
    os.dup2(2, 1)
    request: Request = json.loads(sys.stdin.read())
    _die_with(request["parent"])
    try:
        response: dict[str, Any] = {"result": ACTIONS[request["action"]](request)}
    except MnnqnnError as error:
        fields = [error.what, error.where, error.why, error.todo, error.tail]
        response = {"error": [type(error).__name__, *fields]}
    with open(request["response_fd"], "w", encoding="utf-8") as stream:
        json.dump(response, stream)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
