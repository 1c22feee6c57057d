"""The stages with a user's own tools, each a function of paths and JSON values.

The counterpart of `mnnqnn_tasks.toolchain.native`: every function returns the files that it
made, and values that the task database keeps.  Imports are inside, so that a run with
nothing to do loads none of this.

A ``tools`` argument says how a tool runs: ``label`` of the task, ``log`` and ``work`` as
paths, ``limit_s``, ``live``, and ``mnn`` or ``sdk`` as folders.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnnqnn_tasks.files import write_json
from mnnqnn_tasks.toolchain.native import Outcome, target_options, unchanged

if TYPE_CHECKING:
    from mnnqnn_tasks.toolchain.external.runner import Runner

Tools = Mapping[str, Any]


def io(
    folder: str, index: str, digests: str, out: Mapping[str, Sequence[str]], tools: Tools
) -> Outcome:
    """IO samples of every length by MNN's tool; ``out``: length -> input, output.

    Raises:
        ToolMissing, ToolError, NativeCrash, ModelFileError, StaleInputError, DiskError.
    """
    from mnnqnn_tasks.mnn.folder import open_folder
    from mnnqnn_tasks.toolchain.external.samples import make_samples

    places = {
        int(n): {"input": Path(given), "output": Path(result)} for n, (given, result) in out.items()
    }
    with unchanged(folder, index, digests):
        make_samples(
            open_folder(folder), Path(tools["mnn"]), Path(tools["work"]), _runner(tools), places
        )
    return [path for pair in out.values() for path in pair], {}


def partition(
    folder: str,
    index: str,
    digests: str,
    shapes: Sequence[int],
    inputs: Sequence[str],
    options: Mapping[str, Any],
    out: str,
    tools: Tools,
) -> Outcome:
    """The cut and all graph sources by ``compilefornpu``, and the plan of them.

    Raises:
        ToolMissing, ToolError, NativeCrash, SourceFileError, ModelFileError,
        StaleInputError, DiskError.
    """
    from mnnqnn_tasks.files import sha256_file
    from mnnqnn_tasks.mnn import reader
    from mnnqnn_tasks.mnn.cpu import output_names
    from mnnqnn_tasks.mnn.folder import open_folder
    from mnnqnn_tasks.mnn.index import ModelIndex
    from mnnqnn_tasks.toolchain.external.cutting import Options, cut
    from mnnqnn_tasks.toolchain.external.plan import plan_json

    model, place = open_folder(folder), Path(out)
    told = Options(**{**options, "skips": tuple(options["skips"])})
    with unchanged(folder, index, digests):
        made = cut(
            model,
            Path(tools["mnn"]),
            Path(tools["work"]),
            _runner(tools),
            [Path(path) for path in inputs],
            told,
            place,
        )
        net = reader.read(model.path / model.model)
    known = ModelIndex.from_json(json.loads(Path(index).read_text("utf-8")))
    lists = {path: sha256_file(path) for path in made.files if path.suffix == ".json"}
    plan = plan_json(made, net, shapes, output_names(net), known.ranges, lists, place)
    write_json(place / "plan.json", plan, durable=False)
    return [str(path) for path in (*made.files, place / "plan.json")], {}


def translate(source: str, net: str, blobs: str) -> Outcome:
    """``net.json`` of a source that ``compilefornpu`` wrote.

    Raises:
        SourceFileError, DiskError: see `import_graph`.
    """
    from mnnqnn_tasks.toolchain.cppnet.sources import import_graph
    from mnnqnn_tasks.translate import blobstore

    made = import_graph(Path(source), Path(net), Path(blobs))
    for entry in os.scandir(os.path.dirname(net)):
        if entry.is_file() and entry.path != net:
            os.unlink(entry.path)  # a native translation of an earlier cut
    return [net], {"blobs": {d: blobstore.stamp(Path(blobs), d) for d in made.blobs}}


def compile(source: str, graph: str, out: str, tools: Tools) -> Outcome:
    """The model library of a graph.

    Raises:
        ToolMissing, ToolError, NativeCrash, DiskError: see `compile_graph`.
    """
    from mnnqnn_tasks.toolchain.external.linking import compile_graph
    from mnnqnn_tasks.toolchain.external.sdk import Sdk

    sdk = Sdk(Path(tools["sdk"]))
    compile_graph(Path(source), graph, sdk, Path(tools["work"]), _runner(tools), Path(out))
    return [out], {}


def link(
    libraries: Sequence[tuple[str, str]],
    target: Mapping[str, Any],
    out: str,
    report: str,
    tools: Tools,
) -> Outcome:
    """One context binary and what was read back from it.

    Raises:
        ToolMissing, ToolError, NativeCrash, QnnError, DiskError: see `make_binary`.
    """
    from mnnqnn_tasks.toolchain.external.linking import make_binary
    from mnnqnn_tasks.toolchain.external.sdk import Sdk

    info = make_binary(
        [(graph, Path(path)) for graph, path in libraries],
        Path(out).stem,
        Sdk(Path(tools["sdk"])),
        target_options(target),
        Path(tools["work"]),
        _runner(tools),
        Path(out),
    )
    write_json(report, info.to_json(), durable=False)
    return [out, report], {}


def _runner(tools: Tools) -> Runner:
    from mnnqnn_tasks.toolchain.external.runner import Runner

    return Runner(tools["label"], Path(tools["log"]), tools["limit_s"], tools["live"])
