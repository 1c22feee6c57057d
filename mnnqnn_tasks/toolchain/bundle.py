"""The bundle: the folder that MNN's LLM runtime loads on the device.

What is in it, and why, follows from MNN's LLM engine (``llmconfig.hpp``, ``llm.cpp``,
``diskembedding.cpp``):

* ``config_qnn.json`` is read first, then ``llm_config.json`` beside it, whose keys win.
* All paths are relative to the config's folder; the ``path`` of a Plugin op to
  ``npu_model_dir`` in it, which must therefore stay unset, as must ``base_dir``.
* ``chunk_limits`` must have two entries or more, the lengths that the graphs exist for.
* ``Llm::load`` refuses to start when the file that ``llm_weight`` names (``llm.mnn.weight``
  if it names none) does not exist, even if no op reads a byte of it.  So where the CPU
  part reads no weights, the key names ``qnn/llm.mnn``, which is there anyway and of which
  nothing is read as weights.
* Tied embeddings with a ``weight_offset`` above 0 are read from ``llm_weight``.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import BundleError, StaleInputError
from mnnqnn_tasks.files import (
    canonical_json,
    sha256_bytes,
    sha256_file,
    write_bytes,
)
from mnnqnn_tasks.mnn.configs import embeddings_in_weight
from mnnqnn_tasks.mnn.folder import open_folder
from mnnqnn_tasks.mnn.index import FileDigest, ModelIndex
from mnnqnn_tasks.mnn.params import net_ops, net_ranges
from mnnqnn_tasks.mnn.reader import read
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.toolchain.bundlefolder import CONFIG, MANIFEST, refuse_foreign_folder
from mnnqnn_tasks.toolchain.wholefolder import copy_file, keep_file, whole_folder

HOST_MODEL = "qnn/llm.mnn"
_VERSION = 1
_COPIERS = 4

#: Keys of a model's config.json that would send MNN to another folder.
_FOLDER_KEYS = ("base_dir", "npu_model_dir")


def make_bundle(
    *,
    model_dir: str | os.PathLike[str],
    index: str | os.PathLike[str],
    host_model: str | os.PathLike[str],
    binaries: Sequence[str | os.PathLike[str]],
    chunk_sizes: Sequence[int],
    runtime: Mapping[str, Any],
    target: Mapping[str, Any],
    library: str,
    out_dir: str | os.PathLike[str],
    digest: Callable[[Path], str] = sha256_file,
) -> dict[Path, FileDigest]:
    """Put the bundle of one model for one target together.

    Args:
        model_dir: the model folder.
        index: ``model.json``; what is copied must have the digests that it names.  That
            all is there which MNN needs, was checked when it was made.
        host_model: the rewritten model with Plugin ops, becomes ``qnn/llm.mnn``.
        binaries: ``graphN.bin`` files, become ``qnn/graphN.bin``; exactly those that the
            host model's Plugin ops name.
        chunk_sizes: prompt chunk lengths without decode.
        runtime: JSON values that go into the config last.
        target: JSON values that describe the target, for the manifest.
        library: identity of the QNN library, for the manifest.
        out_dir: the bundle's folder; replaced whole.
        digest: tells the SHA-256 of a file, perhaps without reading it again.

    Returns:
        The files of the bundle with their digests, sorted.

    Raises:
        BundleError: the parts do not fit together, or ``out_dir`` is something else.
        ModelFileError: the model folder cannot be read.
        StaleInputError: the model folder is not what ``index`` describes.
        DiskError: the bundle cannot be written; the old one is kept.
    """
    out = Path(out_dir)
    refuse_foreign_folder(out)
    folder = open_folder(model_dir)
    known = ModelIndex.from_json(json.loads(Path(index).read_text("utf-8")))
    net = read(host_model)
    _check_plugins(net, [Path(b).name for b in binaries], str(host_model))
    reads_weight = _ops_read_weight(net) or embeddings_in_weight(folder.settings)
    copied = [n for n in known.files if n not in (known.model, folder.weight, "config.json")]
    if reads_weight:
        copied.append(folder.weight)
    config = {key: value for key, value in folder.config.items() if key not in _FOLDER_KEYS}
    config |= {
        "llm_model": HOST_MODEL,
        "llm_weight": folder.weight if reads_weight else HOST_MODEL,
        "chunk_limits": [*sorted(chunk_sizes, reverse=True), 1],
        "backend_type": "cpu",
        **runtime,
    }
    sources = {HOST_MODEL: Path(host_model)}
    sources |= {f"qnn/{Path(b).name}": Path(b) for b in binaries}
    _refuse_clashes(sources, copied)
    sources |= {name: folder.path / name for name in copied}
    with whole_folder(out) as new:
        # Several at once: one file is digested while another is on its way to the disk.
        with ThreadPoolExecutor(_COPIERS) as pool:
            jobs = {
                name: pool.submit(_copy, source, new / name, out / name, digest)
                for name, source in sources.items()
            }
        files = {name: job.result() for name, job in jobs.items()}
        for name in copied:
            _check_digest(files[name], known, name, str(sources[name]))
        text = canonical_json(config, indent=1).encode("utf-8") + b"\n"
        write_bytes(new / CONFIG, text)
        files[CONFIG] = FileDigest(sha256_bytes(text), len(text))
        text = (canonical_json(_manifest(target, library, files), indent=1) + "\n").encode("utf-8")
        write_bytes(new / MANIFEST, text)
        files[MANIFEST] = FileDigest(sha256_bytes(text), len(text))
    return {out / name: files[name] for name in sorted(files)}


def _manifest(
    target: Mapping[str, Any], library: str, files: Mapping[str, FileDigest]
) -> dict[str, Any]:
    """The content of ``bundle.json``; its schema is ``schemas/bundle.schema.json``."""
    return {
        "version": _VERSION,
        "target": dict(target),
        "library": library,
        "files": {
            name: {"sha256": digest.sha256, "size": digest.size} for name, digest in files.items()
        },
    }


def _copy(source: Path, target: Path, old: Path, digest: Callable[[Path], str]) -> FileDigest:
    """Copy ``source``, or keep the old bundle's file where that has the same bytes."""
    with _readable(source):
        size = source.stat().st_size
        if old.is_file() and old.stat().st_size == size:
            sha256 = digest(source)
            if keep_file(old, target, sha256, digest):
                return FileDigest(sha256, size)
        return FileDigest(*copy_file(source, target))


@contextlib.contextmanager
def _readable(source: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StaleInputError(
            "a file of the bundle cannot be read", where=str(source), why=error.strerror
        ) from error


def _check_digest(copied: FileDigest, known: ModelIndex, name: str, where: str) -> None:
    if known.files.get(name) != copied:
        raise StaleInputError(
            "a file of the model changed while it was exported",
            where=where,
            todo="run again when nothing writes to the model folder any more",
        )


def _check_plugins(net: Table, binaries: Sequence[str], where: str) -> None:
    """The host model and the folder must agree on the binaries, in both directions."""
    named = {
        attribute.s
        for op in net_ops(net)
        if op.type == "Plugin"
        for attribute in op.main.attr or ()
        if attribute.key == "path"
    }
    given = {f"qnn/{name}" for name in binaries}
    if named != given:
        raise BundleError(
            "the host model and the context binaries do not belong together",
            where=where,
            why="; ".join(
                f"{what} {', '.join(sorted(names))}"
                for what, names in (
                    ("no binary for", named - given),
                    ("no Plugin op for", given - named),
                )
                if names
            ),
            todo="run the export again from the partition stage: doit clean, then export_qnn",
        )


def _ops_read_weight(net: Table) -> bool:
    return next(net_ranges(net), None) is not None


def _refuse_clashes(sources: Iterable[str], copied: Iterable[str]) -> None:
    taken = {*sources, CONFIG, MANIFEST}
    for name in copied:
        if name in taken:
            raise BundleError(
                f"the model folder has a file {name!r}, which the export makes",
                todo="move it out of the model folder",
            )
