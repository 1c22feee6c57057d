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
from mnnqnn_tasks.files import canonical_json, write_json

if TYPE_CHECKING:
    from mnnqnn_tasks.cache.statcache import Numbers
    from mnnqnn_tasks.mnn.index import ModelIndex
    from mnnqnn_tasks.partition.fill import Template
    from mnnqnn_tasks.partition.partition import Partition
    from mnnqnn_tasks.qnn.options import TargetOptions

#: Added to the niceness of a process whose result nothing in the run waits for.
_NICE = 3

#: Files made, and values to remember; ``digests``, where the stage knows some of what it
#: made, is used and not remembered.
Outcome = tuple[list[str], dict[str, Any]]


def index(folder: str, out: str, structure: str, spans: str, code: str, digests: str) -> Outcome:
    """``model.json``: the model by content; ``structure.json``: all but weight values.

    ``spans`` is a file to remember what the model file, read by ``code``, says; ``digests``
    is a memory of file digests.

    Raises:
        ModelFileError, StaleInputError: see `index_model`.
    """
    from mnnqnn_tasks.cache.statcache import DigestCache
    from mnnqnn_tasks.mnn.index import index_model
    from mnnqnn_tasks.mnn.spans import SpanMemory

    made = index_model(folder, SpanMemory(spans, code), DigestCache(digests))
    # Without fsync, here and below: the task database compares the size of what it finds.
    write_json(out, made.to_json(), durable=False)
    write_json(structure, _structure(made, folder), durable=False)
    return [out, structure, spans], {
        "files": {name: digest.sha256 for name, digest in made.files.items()}
    }


def io_input(folder: str, shape: int, out: str) -> Outcome:
    """Sample inputs for ``shape`` tokens.

    Raises:
        ModelFileError: when the model or its embeddings cannot be read.
    """
    from mnnqnn_tasks.mnn import inputs

    inputs.write_inputs(Path(folder), shape, Path(out))
    return [out], {}


def io_output(
    folder: str, index: str, digests: str, samples: Mapping[str, str], out: Sequence[str]
) -> Outcome:
    """What the model computes on the CPU from each of ``samples``, by number of tokens.

    ``digests`` is the memory of file digests of the build folder.

    Raises:
        StaleInputError: when the model is not the one in ``index``.
        NativeCrash: when MNN's library dies.
    """
    from mnnqnn_tasks.mnn import cpu

    with unchanged(folder, index, digests):
        cpu.forward(folder, dict(zip(samples.values(), out, strict=True)), nice=_NICE)
    return list(out), {}


def cut(
    folder: str,
    index: str,
    structure: str,
    inputs: Mapping[str, str | None],
    out: str,
    host_model: str,
    uses: str,
    net: str,
) -> Outcome:
    """The cut of the model if QNN refuses nothing, and what it has to be asked.

    ``inputs`` are samples by number of tokens; ``None`` for what `io_input` makes, whose
    dimensions are known before it has.  ``index`` only tells whether the weights that are
    looked at are those of the model: the cut does not depend on them.

    Raises:
        PartitionError, ModelFileError, StaleInputError: see `load_partition`, `op_uses`.
    """
    from mnnqnn_tasks.partition.write import host_model as host_bytes
    from mnnqnn_tasks.partition.write import write
    from mnnqnn_tasks.toolchain.opcheck import op_uses

    made = _partition(folder, structure, inputs, {})
    listed, text = op_uses(made, _index(index), Path(folder))
    write(Path(uses), canonical_json(listed, indent=1).encode())
    write(Path(net), text.encode())
    write(Path(host_model), host_bytes(made))
    write(Path(out), json.dumps(_template(made).to_json(), ensure_ascii=False).encode())
    return [out, host_model, uses, net], {}


def validate(uses: str, net: str, target: Mapping[str, Any], out: str) -> Outcome:
    """Signatures of the ops that QNN refuses for ``target``.

    Raises:
        QnnError, NativeCrash, ToolMissing: when QNN cannot be asked.
    """
    from mnnqnn_tasks.toolchain.opcheck import refused_ops

    write_json(out, refused_ops(Path(uses), Path(net), target_options(target)), durable=False)
    return [out], {}


def refused(answers: Sequence[str], out: str) -> Outcome:
    """The union of what `validate` found for all targets."""
    union: dict[str, Any] = {}
    for path in answers:
        union |= json.loads(Path(path).read_text("utf-8"))
    write_json(out, union, durable=False)
    return [out], {}


def partition(
    folder: str,
    index: str,
    structure: str,
    refused: str,
    cut: str,
    host_model: str,
    inputs: Mapping[str, str],
    out: str,
) -> Outcome:
    """The plan and everything that goes with it.

    The cut that is there is taken if QNN refuses nothing, else the model is cut again.

    Raises:
        PartitionError, ModelFileError, StaleInputError, DiskError: see `partition_model`.
    """
    from mnnqnn_tasks.partition import fill, write

    no = json.loads(Path(refused).read_text("utf-8"))
    place = Path(out)
    if no:
        made = _partition(folder, structure, inputs, no)
        write.write(place / write.HOST, write.host_model(made))
        template = _template(made)
    else:
        template = fill.read_template(Path(cut))
        write.take_over(Path(host_model), place / write.HOST)
    files = fill.fill(template, fill.range_digests(Path(index)))
    write.write_files(template, files, place)
    _remove_stale_binaries(place / "targets", {Path(b).stem for b in template.binaries})
    return [os.path.join(out, *name.split("/")) for name in (write.HOST, *files)], {}


def tidy_partition(out: str, made: Sequence[str]) -> None:
    """What `partition` does beside the files that it makes: delete those of an older cut.

    Args:
        out: the folder of the partition.
        made: the files that came from elsewhere.

    Raises:
        DiskError: when a file cannot be deleted.
    """
    from mnnqnn_tasks.partition import fill, write

    place = Path(out)
    graphs = {Path(name).stem for name in made if Path(name).parent.name == fill.GRAPHS}
    write.remove_stale(place, graphs)
    _remove_stale_binaries(place / "targets", graphs)


def _partition(
    folder: str, structure: str, inputs: Mapping[str, str | None], refused: Mapping[str, str]
) -> Partition:
    from mnnqnn_tasks.partition.partition import load_partition
    from mnnqnn_tasks.partition.template import stand_in_index
    from mnnqnn_tasks.translate.registry import unsupported_reason

    index = stand_in_index(json.loads(Path(structure).read_text("utf-8")))
    # The names of what is refused, without QNN's words: these differ between libraries.
    return load_partition(
        Path(folder), index, _samples(inputs), set(refused), supported=unsupported_reason
    )


def _template(made: Partition) -> Template:
    from mnnqnn_tasks.partition.template import make_template

    return make_template(made)


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
    from mnnqnn_tasks.translate import blobstore
    from mnnqnn_tasks.translate.emit import emit
    from mnnqnn_tasks.translate.files import translate_files

    made = translate_files(Path(subgraph), Path(sources), Path(folder))
    emit(made.graph, made.blobs, Path(out), Path(blobs))
    files = [entry.path for entry in os.scandir(out)]
    return files, {"blobs": blobstore.stamps(Path(blobs), made.blobs)}


def link(
    nets: Sequence[str],
    blobs: str,
    target: Mapping[str, Any],
    out: str,
    report: str,
    ask: bool = False,
) -> Outcome:
    """One context binary and what was read back from it.

    ``ask`` QNN about every op first: for graphs that were not made for what it takes.

    Raises:
        QnnError, NativeCrash, ToolMissing, DiskError: see `run.link`, `refuse_bad_ops`.
    """
    from mnnqnn_tasks.qnn import run

    if ask:
        from mnnqnn_tasks.toolchain.cppnet.ask import refuse_bad_ops

        refuse_bad_ops([Path(net) for net in nets], target_options(target))
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
    digests: str,
    out: str,
    recorded: Mapping[str, Sequence[Any]],
    linked_with: str = "",
) -> Outcome:
    """The bundle's folder; ``digests`` is the memory of file digests, see `DigestCache`.

    ``linked_with`` says what linked the binaries, if not the wheel's libraries.

    Raises:
        BundleError, StaleInputError, DiskError: see `make_bundle`.
    """
    from mnnqnn_tasks.cache.statcache import DigestCache
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
        library=linked_with or library.identity(),
        digest=DigestCache(digests, recorded).digest,
        out_dir=out,
    )
    known = {str(path): digest.sha256 for path, digest in made.items()}
    return list(known), {"digests": known}


def _structure(made: ModelIndex, folder: str) -> dict[str, Any]:
    """What the shape of the model depends on, as opposed to the values of its weights."""
    from mnnqnn_tasks.mnn.configs import embeddings_in_weight
    from mnnqnn_tasks.mnn.folder import open_folder

    files = {name: digest.sha256 for name, digest in made.files.items()}
    if not embeddings_in_weight(open_folder(folder).settings):
        files.pop(made.weight or "", None)  # else the inputs are read from it
    return {
        "model": made.model,
        "weight": made.weight,
        "files": files,
        "ranges": [list(span) for span in sorted(made.ranges)],
    }


@contextlib.contextmanager
def unchanged(folder: str, index: str, digests: str) -> Iterator[None]:
    """Make sure that what reads the model by itself reads the model of ``model.json``.

    Raises:
        StaleInputError: when a file is another one before, or was written meanwhile.
    """
    from mnnqnn_tasks.cache.statcache import DigestCache

    cache, made = DigestCache(digests), _index(index)
    before = _stamps(folder, made)
    for name, known in made.files.items():
        if cache.digest(os.path.join(folder, name)) != known.sha256:
            raise _stale(folder, name)
    yield
    after = _stamps(folder, made)
    for name in made.files:
        if before[name] != after[name]:
            raise _stale(folder, name)


def _stamps(folder: str, index: ModelIndex) -> dict[str, Numbers]:
    from mnnqnn_tasks.cache.statcache import numbers_of

    return {name: numbers_of(os.stat(os.path.join(folder, name))) for name in index.files}


def _stale(folder: str, name: str) -> StaleInputError:
    return StaleInputError(
        "the model changed while it was exported",
        where=os.path.join(folder, name),
        todo="run again when the file is complete",
    )


def _index(path: str) -> ModelIndex:
    from mnnqnn_tasks.mnn.index import ModelIndex

    return ModelIndex.from_json(json.loads(Path(path).read_text("utf-8")))


def _samples(inputs: Mapping[str, str | None]) -> dict[int, Path | None]:
    return {int(length): Path(path) if path else None for length, path in inputs.items()}


def target_options(target: Mapping[str, Any]) -> TargetOptions:
    from dataclasses import fields

    from mnnqnn_tasks.qnn.options import TargetOptions

    return TargetOptions(**{f.name: target[f.name] for f in fields(TargetOptions)})
