"""The embedded toolchain: each stage as a function of paths and JSON values.

Every function returns the files that it made, and values that the task database keeps.
Imports are inside, so that a run with nothing to do loads none of this.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnnqnn_tasks.errors import StaleInputError
from mnnqnn_tasks.files import write_json

if TYPE_CHECKING:
    from mnnqnn_tasks.mnn.index import ModelIndex
    from mnnqnn_tasks.qnn.options import TargetOptions

#: Files made, and values to remember.
Outcome = tuple[list[str], dict[str, Any]]


def index(folder: str, out: str, structure: str) -> Outcome:
    """``model.json``: the model by content; ``structure.json``: all but weight values.

    Raises:
        ModelFileError, StaleInputError: see `index_model`.
    """
    from mnnqnn_tasks.mnn.index import index_model

    made = index_model(folder)
    write_json(out, made.to_json())
    write_json(structure, _structure(made, folder))
    return [out, structure], {"files": {name: digest.sha256 for name, digest in made.files.items()}}


def io_input(folder: str, shape: int, out: str) -> Outcome:
    """Sample inputs for ``shape`` tokens.

    Raises:
        ModelFileError: when the model or its embeddings cannot be read.
    """
    from mnnqnn_tasks.mnn import inputs

    inputs.write_inputs(Path(folder), shape, Path(out))
    return [out], {}


def io_output(folder: str, index: str, digests: str, sample: str, out: str) -> Outcome:
    """What the model computes from ``sample`` on the CPU.

    ``digests`` is the memory of file digests of the build folder.

    Raises:
        StaleInputError: when the model is not the one in ``index``.
        NativeCrash: when MNN's library dies.
    """
    from mnnqnn_tasks.mnn import cpu

    with _unchanged(folder, _index(index), digests):
        cpu.forward(folder, sample, out)
    return [out], {}


def ops(folder: str, index: str, inputs: Mapping[str, str], out: str) -> Outcome:
    """The different uses of ops in the model, each as a graph of its own.

    Raises:
        PartitionError, ModelFileError, StaleInputError: see `write_ops`.
    """
    from mnnqnn_tasks.toolchain.opcheck import write_ops

    made = write_ops(Path(folder), _index(index), _samples(inputs), Path(out))
    return [str(path) for path in made], {}


def validate(ops: str, target: Mapping[str, Any], out: str) -> Outcome:
    """Signatures of the ops that QNN refuses for ``target``.

    Raises:
        QnnError, NativeCrash, ToolMissing: when QNN cannot be asked.
    """
    from mnnqnn_tasks.toolchain.opcheck import refused_ops

    write_json(out, refused_ops(Path(ops), target_options(target)))
    return [out], {}


def refused(answers: Sequence[str], out: str) -> Outcome:
    """The union of what `validate` found for all targets."""
    union: dict[str, Any] = {}
    for path in answers:
        union |= json.loads(Path(path).read_text("utf-8"))
    write_json(out, union)
    return [out], {}


def partition(
    folder: str, index: str, refused: str, inputs: Mapping[str, str], out: str
) -> Outcome:
    """The plan and everything that goes with it.

    Raises:
        PartitionError, ModelFileError: see `partition_model`.
    """
    from mnnqnn_tasks.partition.write import partition_model
    from mnnqnn_tasks.translate.registry import unsupported_reason

    no = json.loads(Path(refused).read_text("utf-8"))
    place = Path(out)
    plan = partition_model(
        Path(folder), _index(index), _samples(inputs), set(no), place, unsupported_reason
    )
    _remove_stale_binaries(place / "targets", {Path(b).stem for b in plan.merges()})
    names = ["plan.json", "npu_postreat.json", "sources.json", "qnn/llm.mnn"]
    names += [f"subgraphs/{graph}.json" for graph in plan.graphs()]
    return [os.path.join(out, *name.split("/")) for name in names], {}


def _remove_stale_binaries(targets: Path, names: set[str]) -> None:
    for path in targets.glob("*/graph*"):
        if path.stem not in names:
            path.unlink(missing_ok=True)


def translate(folder: str, subgraph: str, sources: str, blobs: str, out: str) -> Outcome:
    """The QNN graph of a subgraph.

    Raises:
        TranslateError: when an op cannot be translated.
        StaleInputError: when the model's bytes are not those that were cut.
    """
    from mnnqnn_tasks.toolchain import blobstore
    from mnnqnn_tasks.translate.emit import emit
    from mnnqnn_tasks.translate.files import translate_files

    made = translate_files(Path(subgraph), Path(sources), Path(folder))
    for digest, data in made.blobs.items():
        blobstore.put(Path(blobs), digest, data)
    emit(made.graph, made.blobs, Path(out), Path(blobs))
    files = [entry.path for entry in os.scandir(out)]
    return files, {"blobs": {d: blobstore.stamp(Path(blobs), d) for d in made.blobs}}


def link(
    nets: Sequence[str], blobs: str, target: Mapping[str, Any], out: str, report: str
) -> Outcome:
    """One context binary and what was read back from it.

    Raises:
        QnnError, NativeCrash, ToolMissing, DiskError: see `run.link`.
    """
    from mnnqnn_tasks.qnn import run

    run.link([Path(n) for n in nets], Path(blobs), target_options(target), Path(out), Path(report))
    return [out, report], {}


def bundle(
    folder: str,
    index: str,
    host_model: str,
    binaries: Sequence[str],
    chunk_sizes: Sequence[int],
    runtime: Mapping[str, Any],
    target: Mapping[str, Any],
    out: str,
) -> Outcome:
    """The bundle's folder.

    Raises:
        BundleError, StaleInputError, DiskError: see `make_bundle`.
    """
    from mnnqnn_tasks.qnn import library
    from mnnqnn_tasks.toolchain.bundle import make_bundle

    made = make_bundle(
        model_dir=folder,
        index=index,
        host_model=host_model,
        binaries=binaries,
        chunk_sizes=chunk_sizes,
        runtime=runtime,
        target=target,
        library=library.identity(),
        out_dir=out,
    )
    return [str(path) for path in made], {}


def _structure(made: ModelIndex, folder: str) -> dict[str, Any]:
    """What the shape of the model depends on, as opposed to the values of its weights."""
    from mnnqnn_tasks.mnn.folder import open_folder

    files = {name: digest.sha256 for name, digest in made.files.items()}
    if "tie_embeddings" not in open_folder(folder).llm_config:
        files.pop(made.weight or "", None)  # else the inputs are read from it
    return {"files": files, "ranges": [list(span) for span in sorted(made.ranges)]}


@contextlib.contextmanager
def _unchanged(folder: str, index: ModelIndex, digests: str) -> Iterator[None]:
    """Make sure that a library that reads the model by itself reads the model of ``index``.

    Raises:
        StaleInputError: when a file is another one before, or was written meanwhile.
    """
    from mnnqnn_tasks.cache.statcache import DigestCache

    cache = DigestCache(digests)
    before = _stamps(folder, index)
    for name, known in index.files.items():
        if cache.digest(os.path.join(folder, name)) != known.sha256:
            raise _stale(folder, name)
    yield
    after = _stamps(folder, index)
    for name in index.files:
        if before[name] != after[name]:
            raise _stale(folder, name)


def _stamps(folder: str, index: ModelIndex) -> dict[str, tuple[int, int, int, int]]:
    stats = {name: os.stat(os.path.join(folder, name)) for name in index.files}
    return {n: (s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for n, s in stats.items()}


def _stale(folder: str, name: str) -> StaleInputError:
    return StaleInputError(
        "the model changed while it was exported",
        where=os.path.join(folder, name),
        todo="run again when the file is complete",
    )


def _index(path: str) -> ModelIndex:
    from mnnqnn_tasks.mnn.index import ModelIndex

    return ModelIndex.from_json(json.loads(Path(path).read_text("utf-8")))


def _samples(inputs: Mapping[str, str]) -> dict[int, Path]:
    return {int(length): Path(path) for length, path in inputs.items()}


def target_options(target: Mapping[str, Any]) -> TargetOptions:
    from dataclasses import fields

    from mnnqnn_tasks.qnn.options import TargetOptions

    return TargetOptions(**{f.name: target[f.name] for f in fields(TargetOptions)})
