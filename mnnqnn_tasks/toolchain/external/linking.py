"""Model libraries and context binaries by the tools of a QAIRT SDK.

``qnn-model-lib-generator`` compiles one graph's source with its raw data; what it makes does
not know the chip.  ``qnn-context-binary-generator`` loads the libraries of one binary's
graphs and finalizes them for a chip.  Both get what MNN's ``npu_convert.py`` gives them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from mnnqnn_tasks.errors import QnnError, ToolError
from mnnqnn_tasks.files import disk_errors, link_or_copy, sha256_bytes, write_json
from mnnqnn_tasks.qnn import run
from mnnqnn_tasks.qnn.binary import BinaryInfo
from mnnqnn_tasks.qnn.link import option_differences
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.toolchain.cppnet.listing import Listing, check_listed
from mnnqnn_tasks.toolchain.external.runner import Runner
from mnnqnn_tasks.toolchain.external.sdk import HOST, Sdk
from mnnqnn_tasks.toolchain.external.workplace import expect, is_plain, workplace

_CONTEXT, _EXTENSIONS, _OUT = "context_config.json", "htp_backend_extensions.json", "out"
_ELF = b"\x7fELF"


def compile_graph(
    source: Path, name: str, files: Listing, sdk: Sdk, work: Path, runner: Runner, out: Path
) -> None:
    """Make the model library of a graph.

    Args:
        source: the folder with ``<name>.cpp`` and the raw files.
        name: the graph.
        files: the raw files by name, with their digests, and perhaps the source.
        sdk: whose tool runs.
        work: a folder for the tool.
        runner: runs it.
        out: the library; replaced when it is complete.

    Raises:
        ToolMissing, ToolError, NativeCrash, DiskError.
        StaleInputError: a file is another one than in ``files``.
    """
    sdk.require()
    with workplace(work, plain=True) as place:
        text = source / f"{name}.cpp"
        with disk_errors(text):
            data = text.read_bytes()
            check_listed(files, text, sha256_bytes(data))
            (place / text.name).write_bytes(data)
        pack_raws(source, files, place / f"{name}.bin")
        sdk = _plainly(sdk, place)
        tool = sdk.model_lib_generator
        tail = runner.run(
            [
                *_started_by(tool),
                *("-c", f"./{name}.cpp", "-b", f"./{name}.bin", "-t", HOST, "-o", "."),
            ],
            place,
            env=sdk.environment(),
            deep_stack=True,
        )
        made = place / HOST / f"lib{name}.so"
        expect(made, tool.name, runner.label, tail, runner.log)
        with made.open("rb") as stream:
            if stream.read(len(_ELF)) != _ELF:
                raise ToolError(
                    f"{tool.name} ended with exit code 0, and {made.name} is no library",
                    where=runner.label,
                    todo=f"the whole output is in {runner.log}",
                    tail=tail or None,
                )
        _take(made, out)


def _plainly(sdk: Sdk, place: Path) -> Sdk:
    """The SDK under a path that make can have: a link in the tool's folder if need be."""
    if is_plain(sdk.root):
        return sdk
    link = place / "sdk"
    with disk_errors(link):
        link.symlink_to(sdk.root)
    return Sdk(link)


def pack_raws(source: Path, files: Listing, tar: Path) -> None:
    """Pack the raw files of a graph, as ``tar -cf`` does, but by their contents alone.

    Sorted, and without times, owners and modes: the same files give the same bytes.

    Raises:
        ToolError: when there are none.
        StaleInputError: one has another digest than in ``files``.
        DiskError: when it cannot be written.
    """
    names = sorted(name for name in files if name.endswith(".raw"))
    if not names:
        raise ToolError(
            "the graph has no raw files",
            where=str(source),
            why="qnn-model-lib-generator needs the weights beside the source",
        )
    with disk_errors(tar), tarfile.open(tar, "w", format=tarfile.GNU_FORMAT) as packed:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = (source / name).stat().st_size
            with (source / name).open("rb") as stream:
                read = _Hashed(stream)
                packed.addfile(info, cast("IO[bytes]", read))
            check_listed(files, source / name, read.sha256.hexdigest())


class _Hashed:
    """A file, and the digest of what was read of it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.sha256 = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self.sha256.update(data)
        return data


def make_binary(
    libraries: Sequence[tuple[str, Path]],
    name: str,
    sdk: Sdk,
    options: TargetOptions,
    work: Path,
    runner: Runner,
    out: Path,
) -> BinaryInfo:
    """Make one context binary and read it back.

    Args:
        libraries: name and model library of each graph, in the order of ``allGraphName``.
        name: the binary, without ``.bin``.
        sdk: whose tool runs.
        options: the target.
        work: a folder for the tool.
        runner: runs it.
        out: the binary; replaced when it is what was asked for.

    Raises:
        ToolMissing, ToolError, NativeCrash, DiskError.
        QnnError: the binary differs from what was asked, or cannot be read.
    """
    sdk.require()
    graphs = [graph for graph, _ in libraries]
    with workplace(work, plain=True) as place:
        for graph, library in libraries:
            link_or_copy(library, place / f"lib{graph}.so")
        write_json(place / _CONTEXT, context_config(sdk), durable=False)
        write_json(place / _EXTENSIONS, extensions_config(graphs, options), durable=False)
        tool = sdk.context_generator
        tail = runner.run(
            [
                tool,
                # With "./", or the loader would look for them in the system's folders.
                *("--model", ",".join(f"./lib{graph}.so" for graph in graphs)),
                *("--backend", sdk.htp, "--binary_file", name),
                *("--config_file", f"./{_CONTEXT}", "--output_dir", _OUT),
            ],
            place,
            env=sdk.environment(),
            deep_stack=True,
        )
        made = place / _OUT / f"{name}.bin"
        expect(made, tool.name, runner.label, tail, runner.log)
        info = run.inspect(made, sdk.lib_dir if sdk.has_system else None)
        if found := list(differences(graphs, options, info)):
            raise QnnError(
                f"{made.name} differs from what was asked",
                where=runner.label,
                why="; ".join(found),
                todo=f"the whole output is in {runner.log}",
                tail=tail or None,
            )
        _take(made, out)
    return info


def context_config(sdk: Sdk) -> dict[str, Any]:
    """The file behind ``--config_file``: who reads the backend's own options, and where."""
    return {
        "backend_extensions": {
            "shared_library_path": str(sdk.extensions),
            "config_file_path": f"./{_EXTENSIONS}",
        }
    }


def extensions_config(graphs: Sequence[str], options: TargetOptions) -> dict[str, Any]:
    """The backend's options for one binary, as MNN's ``npu_convert.py`` writes them."""
    core = {"core_id": 0, "perf_profile": "burst", "rpc_control_latency": 100}
    return {
        "graphs": [
            {
                "vtcm_mb": options.vtcm_mb,
                "O": float(options.optimization_level),
                "fp16_relaxed_precision": int(options.fp16_relaxed_precision),
                "hvx_threads": options.hvx_threads,
                "graph_names": list(graphs),
            }
        ],
        "devices": [{"soc_id": options.soc_id, "dsp_arch": options.dsp_arch, "cores": [core]}],
        "context": {"weight_sharing_enabled": options.weight_sharing},
    }


def differences(graphs: Sequence[str], options: TargetOptions, info: BinaryInfo) -> Iterator[str]:
    """Everything in which a binary differs from what was asked for."""
    found = [graph.name for graph in info.graphs]
    if sorted(found) != sorted(graphs):
        yield f"its graphs are {found}, asked {list(graphs)}"
    if info.soc_id is not None and info.soc_id != options.soc_id:
        yield f"soc_id is {info.soc_id}, asked {options.soc_id}"
    for graph in info.graphs:
        yield from option_differences(options, graph)


def _started_by(tool: Path) -> list[str | Path]:
    """How to start a tool that may be a Python script, as MNN does."""
    with disk_errors(tool), tool.open("rb") as stream:
        first = stream.readline(200)
    python = shutil.which("python3")
    return [python, tool] if python and first.startswith(b"#!") and b"python" in first else [tool]


def _take(made: Path, out: Path) -> None:
    """Move a result to its place, also from another file system."""
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        if made.stat().st_dev == out.parent.stat().st_dev:
            os.replace(made, out)
            return
    link_or_copy(made, out)
