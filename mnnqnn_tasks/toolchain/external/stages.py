"""The stages with a user's own tools, each a function of paths and JSON values.

The counterpart of `mnnqnn_tasks.toolchain.native`: every function returns the files that it
made, and values that the task database keeps.  Imports are inside, so that a run with
nothing to do loads none of this.

A ``tools`` argument says how a tool runs: ``label`` of the task, ``log`` and ``work`` as
paths, ``limit_s``, ``live``, ``mnn`` or ``sdk`` as folders, and ``stamps`` of its files: a
tool that is replaced while it works fails the stage, since nobody could tell what made the
result.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnnqnn_tasks.errors import StaleInputError
from mnnqnn_tasks.files import disk_errors, write_json
from mnnqnn_tasks.toolchain.native import Outcome, target_options, unchanged

if TYPE_CHECKING:
    from mnnqnn_tasks.toolchain.external.runner import Runner

Tools = Mapping[str, Any]

#: Size, times and inode by path of files, ``None`` of one that is not there.
Stamps = Mapping[str, Sequence[int] | None]


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
    with unchanged(folder, index, digests), _running(tools) as runner:
        make_samples(open_folder(folder), Path(tools["mnn"]), Path(tools["work"]), runner, places)
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
    from mnnqnn_tasks.mnn import reader
    from mnnqnn_tasks.mnn.cpu import output_names
    from mnnqnn_tasks.mnn.folder import open_folder
    from mnnqnn_tasks.mnn.index import ModelIndex
    from mnnqnn_tasks.toolchain.external.cutting import BLOBS, Options, cut
    from mnnqnn_tasks.toolchain.external.plan import plan_json
    from mnnqnn_tasks.translate import blobstore

    model, place = open_folder(folder), Path(out)
    told = Options(**{**options, "skips": tuple(options["skips"])})
    with unchanged(folder, index, digests), _running(tools) as runner:
        made = cut(
            model,
            Path(tools["mnn"]),
            Path(tools["work"]),
            runner,
            [Path(path) for path in inputs],
            told,
            place,
        )
        net = reader.read(model.path / model.model)
    known = ModelIndex.from_json(json.loads(Path(index).read_text("utf-8")))
    plan = plan_json(made, net, shapes, output_names(net), known.ranges, place)
    write_json(place / "plan.json", plan, durable=False)
    digests_made = {str(path): digest for path, digest in made.files.items()}
    return [*digests_made, str(place / "plan.json")], {
        "digests": digests_made,
        "blobs": blobstore.stamps(place / BLOBS, made.blobs),
    }


def tidy_partition(out: str, made: Sequence[str]) -> None:
    """What `partition` does beside the files that it makes: delete those of an older cut.

    Args:
        out: build folder of the model.
        made: the files that came from elsewhere.

    Raises:
        DiskError: when a file cannot be deleted.
    """
    from mnnqnn_tasks.toolchain.cppnet.merges import NAME, parse_merges
    from mnnqnn_tasks.toolchain.external.cutting import tidy

    postreat = Path(out, NAME)
    tidy(Path(out), parse_merges(postreat.read_bytes(), str(postreat)), set(map(Path, made)))


def translate(source: str, listing: str, net: str, blobs: str) -> Outcome:
    """``net.json`` of a source that ``compilefornpu`` wrote, with the files of ``listing``.

    Raises:
        SourceFileError, StaleInputError, DiskError: see `import_graph`.
    """
    from mnnqnn_tasks.toolchain.cppnet.listing import read_listing
    from mnnqnn_tasks.toolchain.cppnet.sources import import_graph
    from mnnqnn_tasks.translate import blobstore

    made = import_graph(Path(source), Path(net), Path(blobs), read_listing(Path(listing)))
    tidy_translate(os.path.dirname(net), [net])
    return [net], {"blobs": blobstore.stamps(Path(blobs), made.blobs)}


def tidy_translate(out: str, made: Sequence[str]) -> None:
    """Delete what a native translation of an earlier cut left.

    Raises:
        DiskError: when a file cannot be deleted.
    """
    with disk_errors(out), os.scandir(out) as entries:
        for entry in entries:
            if entry.is_file() and entry.path not in made:
                os.unlink(entry.path)


def compile(source: str, listing: str, graph: str, out: str, tools: Tools) -> Outcome:
    """The model library of a graph, of the files that ``listing`` names.

    ``listing`` is that of an external partition, or the ``net.json`` of a native translation.

    Raises:
        ToolMissing, ToolError, NativeCrash, StaleInputError, DiskError: see `compile_graph`.
    """
    from mnnqnn_tasks.toolchain.cppnet.listing import read_listing
    from mnnqnn_tasks.toolchain.external.linking import compile_graph
    from mnnqnn_tasks.toolchain.external.sdk import Sdk

    sdk, files = Sdk(Path(tools["sdk"])), read_listing(Path(listing))
    with _running(tools) as runner:
        compile_graph(Path(source), graph, files, sdk, Path(tools["work"]), runner, Path(out))
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

    with _running(tools) as runner:
        info = make_binary(
            [(graph, Path(path)) for graph, path in libraries],
            Path(out).stem,
            Sdk(Path(tools["sdk"])),
            target_options(target),
            Path(tools["work"]),
            runner,
            Path(out),
        )
    write_json(report, info.to_json(), durable=False)
    return [out, report], {}


@contextlib.contextmanager
def _running(tools: Tools) -> Iterator[Runner]:
    """What runs the tools, which must stay the files that they are.

    Raises:
        StaleInputError: one of them was written to since its stamp was taken.
    """
    from mnnqnn_tasks.toolchain.external.runner import Runner

    _check_stamps(tools["stamps"])
    yield Runner(tools["label"], Path(tools["log"]), tools["limit_s"], tools["live"])
    _check_stamps(tools["stamps"])


def stamps(files: Iterable[str]) -> Stamps:
    """The stamps of files."""
    from mnnqnn_tasks.cache.statcache import numbers_of

    found: dict[str, list[int] | None] = dict.fromkeys(files)
    for path in found:
        with contextlib.suppress(OSError):
            found[path] = list(numbers_of(os.stat(path)))
    return found


def _check_stamps(then: Stamps) -> None:
    for path, now in stamps(then).items():
        if now != then[path]:
            raise StaleInputError(
                "the tool changed after the run began",
                where=path,
                todo="run again when it is complete",
            )
