"""From a pipeline's YAML file to a `Pipeline`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnnqnn_tasks.errors import PipelineError
from mnnqnn_tasks.spec import yamlfile
from mnnqnn_tasks.spec.check import Path as KeyPath
from mnnqnn_tasks.spec.check import describe, did_you_mean, violations
from mnnqnn_tasks.spec.models import read_models
from mnnqnn_tasks.spec.pipeline import Model, Pipeline, Target
from mnnqnn_tasks.spec.schemas import schema
from mnnqnn_tasks.spec.soc import Soc, table
from mnnqnn_tasks.spec.toolchain import make_toolchain
from mnnqnn_tasks.spec.yamlfile import Document

if TYPE_CHECKING:
    from mnnqnn_tasks.spec.genie import GenieModel, GeniePipeline

_OPTIONS = (
    "vtcm_mb",
    "optimization_level",
    "hvx_threads",
    "fp16_relaxed_precision",
    "weight_sharing",
)
#: Bytes of the units of ``max_memory``.
_UNITS = {"MB": 10**6, "MiB": 1 << 20, "GB": 10**9, "GiB": 1 << 30}

#: Keys of config_qnn.json that say what the export made; another value would break it.
_MADE_BY_EXPORT = ("llm_model", "llm_weight", "chunk_limits", "base_dir", "npu_model_dir")


#: Schema and reader by ``kind``.
_MNN, _GENIE = "mnn", "genie"
_SCHEMAS = {_MNN: "pipeline", _GENIE: "genie_pipeline"}


def load_any(path: str | os.PathLike[str]) -> Pipeline | GeniePipeline:
    """Read, check and resolve the pipeline at ``path``, of whatever kind.

    Raises:
        PipelineError: see `load_pipeline`.
    """
    document = yamlfile.read(Path(path))
    said = document.value.get("kind", _MNN) if isinstance(document.value, dict) else _MNN
    if not isinstance(said, str) or said not in _SCHEMAS:
        raise document.error(
            ("kind",),
            f"there is no kind {describe(said)} of pipelines",
            did_you_mean(str(said), _SCHEMAS, "kinds"),
        )
    for wrong in violations(document.value, schema(_SCHEMAS[said])):
        raise document.error(
            wrong.path, wrong.what, wrong.todo, why=wrong.about, at_key=wrong.at_key
        )
    file = Path(os.path.realpath(path))
    return _genie(document, file) if said == _GENIE else _mnn(document, file)


def load_pipeline(path: str | os.PathLike[str]) -> Pipeline:
    """Read, check and resolve the pipeline at ``path``, which is one of MNN models.

    Relative paths in it count from the folder that the YAML file really lies in, also
    when it is reached through a link.

    Raises:
        PipelineError: when the file is unreadable, breaks ``pipeline.schema.json`` or
            contradicts itself; with file, line, column and key.
    """
    found = load_any(path)
    if not isinstance(found, Pipeline):
        raise PipelineError(
            "this is a pipeline of Genie models", where=str(path), todo="name one of MNN models"
        )
    return found


def _genie(document: Document, file: Path) -> GeniePipeline:
    # Imported where there is one: most projects have none, and pay for it at every start.
    from mnnqnn_tasks.spec import genie

    raw, warnings = document.value, list[str]()
    targets = _targets(document, warnings)
    made = genie.read_compile(document, file.parent)
    pipeline = genie.GeniePipeline(
        file=file,
        models=genie.read_genie_models(document, file.parent, targets, made.native),
        targets=targets,
        compile=made,
        genie=tuple(raw.get("genie", ())),
        build_dir=_resolve(file.parent, raw.get("build_dir", "build")),
        dist_dir=_resolve(file.parent, raw.get("dist_dir", "dist")),
        max_memory=_bytes(raw["max_memory"]) if "max_memory" in raw else None,
        cache=_cache(file.parent, raw.get("cache", {})),
        warnings=tuple(warnings),
    )
    genie.check_genie_folders(pipeline, document)
    return pipeline


def _mnn(document: Document, file: Path) -> Pipeline:
    raw = document.value
    warnings: list[str] = []
    targets = _targets(document, warnings)
    for key in _MADE_BY_EXPORT:
        if key in raw.get("runtime", {}):
            raise document.error(
                ("runtime", key), "the export sets this key", "remove it", at_key=True
            )
    if "scheduler" in raw and raw.get("executor") != "dask":
        raise document.error(
            ("scheduler",),
            "only Dask has a scheduler",
            "write executor: dask, or remove it",
            at_key=True,
        )
    build_dir = _resolve(file.parent, raw.get("build_dir", "build"))
    dist_dir = _resolve(file.parent, raw.get("dist_dir", "dist"))
    pipeline = Pipeline(
        file=file,
        models=read_models(document, file.parent, targets, (build_dir, dist_dir)),
        targets=targets,
        runtime=raw.get("runtime", {}),
        build_dir=build_dir,
        dist_dir=dist_dir,
        max_memory=_bytes(raw["max_memory"]) if "max_memory" in raw else None,
        executor=raw.get("executor", "local"),
        scheduler=raw.get("scheduler"),
        cache=_cache(file.parent, raw.get("cache", {})),
        warnings=tuple(warnings),
        toolchain=make_toolchain(document, file.parent),
    )
    _check_folders(pipeline, document)
    return pipeline


def check_together(pipelines: Sequence[Pipeline | GeniePipeline]) -> None:
    """Refuse pipelines that cannot be loaded side by side.

    Tasks are called after models, so a model name may stand in one pipeline only.

    Raises:
        PipelineError: naming both places.
    """
    seen: dict[str, Model | GenieModel] = {}
    for pipeline in pipelines:
        for model in pipeline.models:
            other = seen.setdefault(model.name.casefold(), model)
            if other is not model:
                raise PipelineError(
                    f"the model name {model.name!r} is used by two pipelines",
                    where=model.where,
                    why=f"the other one is at {other.where}",
                    todo="rename one of them, or load one file with pipeline=FILE",
                )


def _resolve(base: Path, text: str) -> Path:
    return Path(os.path.realpath(base / text))


def _bytes(text: str) -> int:
    """``4 GB``, whose form the schema has checked, in bytes."""
    number, unit = re.fullmatch(r"([0-9.]+) ?(\w+)", text).groups()  # type: ignore[union-attr]
    return int(float(number) * _UNITS[unit])


def _cache(base: Path, said: dict[str, Any]) -> dict[str, Any]:
    if "dir" not in said:
        return said
    return {**said, "dir": str(_resolve(base, os.path.expanduser(said["dir"])))}


def _targets(document: Document, warnings: list[str]) -> tuple[Target, ...]:
    raw = document.value
    defaults = raw.get("defaults", {})
    targets = tuple(
        _target(document, ("targets", i), {**defaults, **entry}, warnings)
        for i, entry in enumerate(raw["targets"])
    )
    _refuse_twins(document, [target.name for target in targets])
    return targets


def _refuse_twins(document: Document, names: Sequence[str]) -> None:
    """Refuse two names that are one on a file system that ignores letter case."""
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        earlier = first.setdefault(name.casefold(), i)
        if earlier != i:
            raise document.error(
                ("targets", i),
                f"the name {name!r} is already taken by targets[{earlier}] "
                f"({document.where(('targets', earlier))})",
                "give one of them another 'name'",
            )


def _target(
    document: Document, path: KeyPath, entry: dict[str, Any], warnings: list[str]
) -> Target:
    soc = _soc(document, path, entry, warnings)
    options: dict[str, Any] = {
        # JSON Schema counts 8.0 as an integer.
        key: entry[key] if isinstance(entry[key], bool) else int(entry[key])
        for key in _OPTIONS
        if key in entry
    }
    return Target(
        name=entry.get("name") or f"{soc.model or f'soc{soc.soc_id}'}-{soc.dsp_arch}",
        soc_id=soc.soc_id,
        soc_model=soc.model,
        dsp_arch=soc.dsp_arch,
        where=document.where(path),
        **options,
    )


def _soc(document: Document, path: KeyPath, entry: dict[str, Any], warnings: list[str]) -> Soc:
    """The chip that ``soc_id``, ``soc`` and ``dsp_arch`` agree on."""
    socs = table()
    named = None
    if "soc" in entry:
        named = socs.find(entry["soc"])
        if named is None:
            raise document.error(
                (*path, "soc"),
                f"the SoC table has no {entry['soc']!r}",
                did_you_mean(entry["soc"], socs.names(), "SoCs in the table")
                + " A SoC without a public name needs soc_id and dsp_arch.",
            )
    if "soc_id" not in entry and named is None:
        raise document.error(path, "a target needs 'soc_id' or 'soc'", "for instance soc_id: 57")
    soc_id = int(entry.get("soc_id", named.soc_id if named else 0))
    if named is not None and named.soc_id != soc_id:
        raise document.error(
            (*path, "soc"),
            f"soc {entry['soc']!r} is soc_id {named.soc_id}, but soc_id says {soc_id}",
            "remove one of the two keys",
        )
    arch = entry["dsp_arch"].lower() if "dsp_arch" in entry else None
    known = socs.by_id.get(soc_id)
    if known is None:
        return _unknown_soc(document, path, soc_id, arch, warnings)
    if arch is not None and arch != known.dsp_arch:
        raise document.error(
            (*path, "dsp_arch"),
            f"dsp_arch {arch} contradicts soc_id {soc_id} ({known.model or 'no public name'}), "
            f"which is {known.dsp_arch}",
            f"write dsp_arch: {known.dsp_arch}, leave dsp_arch out, or correct soc_id",
        )
    return known


def _unknown_soc(
    document: Document, path: KeyPath, soc_id: int, arch: str | None, warnings: list[str]
) -> Soc:
    if arch is None:
        raise document.error(
            (*path, "soc_id"),
            f"the SoC table has no soc_id {soc_id}, so its architecture is not known",
            "correct it, or add dsp_arch, for instance dsp_arch: v79",
        )
    warnings.append(
        f"{document.where((*path, 'soc_id'))}: soc_id {soc_id} is not in the SoC table; "
        f"dsp_arch {arch} is taken as given"
    )
    return Soc(soc_id, None, arch)


def _check_folders(pipeline: Pipeline, document: Document) -> None:
    """Refuse output folders that would grow over each other or over a model."""
    outputs = [
        (key, f"{key} of model {model.name!r}", str(folder / model.name))
        for key, folder in (("build_dir", pipeline.build_dir), ("dist_dir", pipeline.dist_dir))
        for model in pipeline.models
    ]
    taken = {str(m.path): f"the folder of model {m.name!r}" for m in pipeline.models}
    above = {parent: path for path in taken for parent in _with_parents(path)}
    for key, what, folder in outputs:
        # A folder of ours may neither hold one of the others nor lie in it.
        inside = next((path for path in _with_parents(folder) if path in taken), None)
        other = inside or above.get(folder)
        if other is not None:
            path: KeyPath = (key,) if key in document.value else ()
            raise document.error(
                path,
                f"{folder} ({what}) and {other} ({taken[other]}) overlap",
                f"choose another {key}",
            )
        taken[folder] = what
        above |= dict.fromkeys(_with_parents(folder), folder)


def _with_parents(path: str) -> Iterator[str]:
    """``path`` and the folders that it lies in."""
    yield path
    while (parent := os.path.dirname(path)) != path:
        yield parent
        path = parent
