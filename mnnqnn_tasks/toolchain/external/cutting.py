"""The cut and the graph sources by MNN's ``compilefornpu``.

It makes everything in one run, says little about what it left out, and exits with 0.  So
nothing of it is used before it is complete and fits together, and what is the same as
before stays as it is: later stages compare contents, and only what changed runs again.
"""

from __future__ import annotations

import re
import shutil
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import ModelFileError, SourceFileError, ToolError
from mnnqnn_tasks.files import disk_errors, link_or_copy, sha256_bytes, sha256_file, write_json
from mnnqnn_tasks.mnn import reader
from mnnqnn_tasks.mnn.folder import ModelFolder
from mnnqnn_tasks.mnn.params import net_ops
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.partition.write import take_over
from mnnqnn_tasks.toolchain.cppnet.listing import write_listing
from mnnqnn_tasks.toolchain.cppnet.merges import NAME as POSTREAT
from mnnqnn_tasks.toolchain.cppnet.merges import Merge, read_merges
from mnnqnn_tasks.toolchain.external import mnnbuild
from mnnqnn_tasks.toolchain.external.runner import Runner
from mnnqnn_tasks.toolchain.external.workplace import MODEL, expect, put_model, workplace
from mnnqnn_tasks.translate import blobstore

HOST = "qnn/llm.mnn"
#: The content store in the build folder.
BLOBS = "blobs"
#: Where sources lie in the build folder, and beside each folder its list of contents.
SOURCES = "sources"

_CONFIG = "qnn.json"
#: The last function of every source; a source without it was not written to its end.
_ENDING = b"QnnModel_freeGraphsInfo"
#: What lies between the texts of tensors and nodes.
_BETWEEN = re.compile(rb"\n\s*\n")
_RAW = re.compile(rb"\bBINVARSTART\((\w+)\)")


@dataclass(frozen=True)
class Options:
    """What ``compilefornpu`` is told besides the shapes."""

    graph_name: str = "graph"
    skips: tuple[str, ...] = ()
    max_history_token: int = 0

    def config(self, testdirs: Sequence[str]) -> dict[str, Any]:
        """The content of ``qnn.json``; older versions ignore what they do not know."""
        return {
            "type": "QNN",
            "skips": list(self.skips),
            "testdir": list(testdirs),
            "KVCACHE_SIZE_LIMIT": self.max_history_token,
            "graph_name": self.graph_name,
            "cache": "qnn",
        }


@dataclass(frozen=True)
class Cut:
    """What a run made.

    Attributes:
        merges: in order.
        host: the host model.
        files: SHA-256 by path of all files, in place.
        blobs: digests of the raw data, which are links to the content store.
    """

    merges: list[Merge]
    host: Table
    files: dict[Path, str]
    blobs: list[str]


def cut(
    folder: ModelFolder,
    mnn_path: Path,
    work: Path,
    runner: Runner,
    inputs: Sequence[Path],
    options: Options,
    out: Path,
) -> Cut:
    """Run ``compilefornpu`` and put what it made into the build folder.

    Args:
        folder: the model.
        mnn_path: the build folder with the tool.
        work: a folder for the tool.
        runner: runs it.
        inputs: the ``input.mnn`` of every shape, decode first; ``output.mnn`` is beside.
        options: what the tool is told.
        out: build folder of the model.

    Raises:
        ToolMissing, ToolError, NativeCrash: there is no tool, it fails, or it left
            something out.
        SourceFileError: ``npu_postreat.json`` is not what MNN writes, or a graph is missing.
        ModelFileError: the model is damaged.
        DiskError: something cannot be written.
    """
    tool = mnnbuild.compiler(mnn_path)
    _check_skips(folder, options)
    with workplace(work) as place:
        put_model(place, folder)
        testdirs = [f"testdir/{number}" for number in range(len(inputs))]
        for name, source in zip(testdirs, inputs, strict=True):
            for kind in ("input.mnn", "output.mnn"):
                link_or_copy(source.with_name(kind), place / name / kind)
        with disk_errors(place):
            (place / "qnn").mkdir()
        write_json(place / _CONFIG, options.config(testdirs), durable=False)
        tail = runner.run([tool, MODEL, HOST, _CONFIG], place)
        for name in (POSTREAT, HOST):
            expect(place / name, tool.name, runner.label, tail, runner.log)
        merges = _merges(place, mnn_path, runner, tail)
        host = _host(place / HOST, merges, options, runner, tail)
        files = dict(_put(place, merges, out))
        tidy(out, merges, files)
        return Cut(merges, host, files, [d for p, d in files.items() if p.suffix == ".raw"])


def _check_skips(folder: ModelFolder, options: Options) -> None:
    """MNN ignores a name that no op has; a misspelt one would be no skip."""
    if not options.skips:
        return
    known = {str(op.name) for op in net_ops(reader.read(folder.path / folder.model))}
    for name in options.skips:
        if name not in known:
            raise ToolError(
                f"toolchain.skips names the op {name!r}, which the model does not have",
                where=str(folder.path / folder.model),
                todo="names of ops are those of the model file, not of its framework",
            )


def _merges(place: Path, mnn_path: Path, runner: Runner, tail: str) -> list[Merge]:
    try:
        merges = read_merges(place)
        for merge in merges:
            for source in merge.graphs:
                _check_source(place / source)
    except SourceFileError as error:
        error.tail = error.tail or tail or None
        if not mnnbuild.writes_sources(mnn_path):
            error.why = f"{error.why}; {mnn_path} was built without QNN conversion"
            error.todo = mnnbuild.BUILD
        else:
            error.todo = f"the whole output is in {runner.log}"
        raise
    return merges


def _check_source(folder: Path) -> None:
    """A source must be whole, and its data there.

    Raises:
        SourceFileError: naming the file.
    """
    path = folder / f"{folder.name}.cpp"
    with disk_errors(path):
        names = {path.name for path in folder.iterdir()}
        for name in names:
            if not stat.S_ISREG((folder / name).lstat().st_mode):
                raise SourceFileError(
                    "it is no plain file", where=str(folder / name), why="a tool wrote it so"
                )
        text = path.read_bytes()
    if _ENDING not in text or not text.rstrip().endswith(b"}"):
        raise SourceFileError(
            "the source of a graph ends too early",
            where=f"{path}:{len(text.splitlines())}",
            why=f"{len(text)} bytes, without the function that every source ends with",
        )
    for raw in dict.fromkeys(_RAW.findall(text)):
        if f"{raw.decode()}.raw" not in names:
            raise SourceFileError(
                f"{raw.decode()[:80]}.raw is missing", where=str(folder), why="the source uses it"
            )


def _host(path: Path, merges: list[Merge], options: Options, runner: Runner, tail: str) -> Table:
    """The host model, which must name exactly the merges and be what was asked for.

    Raises:
        ToolError: it does not.
    """
    try:
        net = reader.read(path)
    except ModelFileError as error:
        raise _bad_host(str(error.why or error.what), runner, tail) from error
    named = {}
    kept_state = False
    for op in net_ops(net):
        if op.type != "Plugin":
            continue
        attributes = attributes_of(op)
        if "path" not in attributes or "allGraphName" not in attributes:
            raise _bad_host("a Plugin op lacks path or allGraphName", runner, tail)
        names = attributes["allGraphName"].list
        named[str(attributes["path"].s)] = tuple(names.s or ()) if names is not None else ()
        kept_state |= "state" in attributes
    listed = {merge.binary: merge.graph_names() for merge in merges}
    for binary in sorted({*named, *listed}):
        if named.get(binary) != listed.get(binary):
            here, there = named.get(binary, ()), listed.get(binary, ())
            raise _bad_host(
                f"{binary} has the graphs {list(here)} in it, {list(there)} in {POSTREAT}",
                runner,
                tail,
            )
    ignored = None
    if options.max_history_token and not kept_state:
        ignored = "KVCACHE_SIZE_LIMIT", "toolchain.max_history_token"
    if any(not merge.name.startswith(options.graph_name) for merge in merges):
        ignored = "graph_name", "toolchain.graph_name"
    if ignored:
        raise ToolError(
            f"compilefornpu took no notice of {ignored[0]}",
            where=runner.label,
            why="an older MNN does not know it",
            todo=f"remove {ignored[1]}, or build a newer MNN",
            tail=tail or None,
        )
    return net


def attributes_of(op: Table) -> dict[str, Table]:
    """The attributes of a Plugin op; none where it has other parameters."""
    main = op.main
    if main is None or main.type_name != "Plugin":
        return {}
    return {str(attribute.key): attribute for attribute in main.attr or ()}


def _bad_host(why: str, runner: Runner, tail: str) -> ToolError:
    return ToolError(
        f"compilefornpu ended with exit code 0 and made a bad {HOST}",
        where=runner.label,
        why=why,
        todo=f"the whole output is in {runner.log}",
        tail=tail or None,
    )


def _put(place: Path, merges: list[Merge], out: Path) -> Iterator[tuple[Path, str]]:
    """Move the results to where they belong; what did not change is left alone."""
    for name in (HOST, POSTREAT):
        take_over(place / name, out / name)
        yield out / name, sha256_file(out / name)
    for merge in merges:
        for source, name in zip(merge.graphs, merge.graph_names(), strict=True):
            yield from _put_source(place / source, out / SOURCES / name, out / BLOBS)


def _put_source(made: Path, target: Path, blobs: Path) -> Iterator[tuple[Path, str]]:
    """Move one graph.

    MNN writes every weight once per shape; equal files become one in the content store.
    """
    listed = {}
    with disk_errors(target):
        target.mkdir(parents=True, exist_ok=True)
        wanted = sorted(
            entry.name
            for entry in made.iterdir()
            if entry.name == f"{made.name}.cpp" or entry.suffix == ".raw"
        )
    for name in wanted:
        digest = sha256_file(made / name)
        if name.endswith(".raw"):
            blobstore.put_file(blobs, digest, made / name)
            link_or_copy(blobs / digest, target / name)
        elif _says_the_same(made / name, target / name):
            digest = sha256_file(target / name)
        else:
            take_over(made / name, target / name)
        listed[name] = digest, (target / name).stat().st_size
        yield target / name, digest
    index = target.parent / f"{target.name}.json"
    yield index, sha256_bytes(write_listing(index, listed))


def _says_the_same(made: Path, there: Path) -> bool:
    """Whether two sources consist of the same tensors and nodes, in whatever order.

    ``compilefornpu`` orders the casts of a graph's outputs by where they lie in its memory,
    so another sequence length or path can change the order in graphs that did not change.
    """
    with disk_errors(there):
        if not there.is_file() or there.stat().st_size != made.stat().st_size:
            return False
        texts = (made.read_bytes(), there.read_bytes())
    new, old = (sorted(part.strip() for part in _BETWEEN.split(text)) for text in texts)
    return new == old


def tidy(out: Path, merges: Sequence[Merge], made: Collection[Path]) -> None:
    """Delete what belongs to graphs and binaries that there are no more.

    Args:
        out: build folder of the model.
        made: the files of the cut that is there.

    Raises:
        DiskError: when a file cannot be deleted.
    """
    graphs = {name for merge in merges for name in merge.graph_names()}
    binaries = {merge.name for merge in merges}
    with disk_errors(out):
        for path in (out / SOURCES).glob("*"):
            if path.is_dir() and path.name not in graphs:
                shutil.rmtree(path)
        for path in (out / SOURCES).rglob("*"):
            if not path.is_dir() and path not in made:
                path.unlink()
        for path in (out / "qnn").iterdir():
            if path.is_dir() and path.name not in graphs:
                shutil.rmtree(path)
        for path in (out / "targets").glob("*/*"):
            if path.stem not in binaries:
                path.unlink()
