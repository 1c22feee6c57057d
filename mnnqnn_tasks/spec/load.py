"""From a pipeline's YAML file to a `Pipeline`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import PipelineError
from mnnqnn_tasks.spec import yamlfile
from mnnqnn_tasks.spec.check import Path as KeyPath
from mnnqnn_tasks.spec.check import did_you_mean, violations
from mnnqnn_tasks.spec.pipeline import Model, Pipeline, Target
from mnnqnn_tasks.spec.schemas import schema
from mnnqnn_tasks.spec.soc import Soc, table
from mnnqnn_tasks.spec.yamlfile import Document

_OPTIONS = (
    "vtcm_mb",
    "optimization_level",
    "hvx_threads",
    "fp16_relaxed_precision",
    "weight_sharing",
)
_CHUNK_SIZES = (128,)

#: Keys of config_qnn.json that say what the export made; another value would break it.
_MADE_BY_EXPORT = ("llm_model", "llm_weight", "chunk_limits", "base_dir", "npu_model_dir")


def load_pipeline(path: str | os.PathLike[str]) -> Pipeline:
    """Read, check and resolve the pipeline at ``path``.

    Relative paths in it count from the folder that the YAML file really lies in, also
    when it is reached through a link.

    Raises:
        PipelineError: when the file is unreadable, breaks ``pipeline.schema.json`` or
            contradicts itself; with file, line, column and key.
    """
    document = yamlfile.read(Path(path))
    for wrong in violations(document.value, schema("pipeline")):
        raise document.error(
            wrong.path, wrong.what, wrong.todo, why=wrong.about, at_key=wrong.at_key
        )
    raw = document.value
    warnings: list[str] = []
    file = Path(os.path.realpath(path))
    targets = _targets(document, warnings)
    for key in _MADE_BY_EXPORT:
        if key in raw.get("runtime", {}):
            raise document.error(
                ("runtime", key), "the export sets this key", "remove it", at_key=True
            )
    pipeline = Pipeline(
        file=file,
        models=_models(document, file.parent, targets),
        targets=targets,
        runtime=raw.get("runtime", {}),
        build_dir=_resolve(file.parent, raw.get("build_dir", "build")),
        dist_dir=_resolve(file.parent, raw.get("dist_dir", "dist")),
        warnings=tuple(warnings),
    )
    _check_folders(pipeline, document)
    return pipeline


def check_together(pipelines: Sequence[Pipeline]) -> None:
    """Refuse pipelines that cannot be loaded side by side.

    Tasks are called after models, so a model name may stand in one pipeline only.

    Raises:
        PipelineError: naming both places.
    """
    seen: dict[str, Model] = {}
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


def _refuse_twins(document: Document, section: str, names: Sequence[str], todo: str) -> None:
    """Refuse two names that are one on a file system that ignores letter case."""
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        earlier = first.setdefault(name.casefold(), i)
        if earlier != i:
            raise document.error(
                (section, i),
                f"the name {name!r} is already taken by {section}[{earlier}] "
                f"({document.where((section, earlier))})",
                todo,
            )


def _targets(document: Document, warnings: list[str]) -> tuple[Target, ...]:
    raw = document.value
    defaults = raw.get("defaults", {})
    targets = tuple(
        _target(document, ("targets", i), {**defaults, **entry}, warnings)
        for i, entry in enumerate(raw["targets"])
    )
    todo = "give one of them another 'name'"
    _refuse_twins(document, "targets", [t.name for t in targets], todo)
    return targets


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


def _models(document: Document, base: Path, targets: tuple[Target, ...]) -> tuple[Model, ...]:
    raw = document.value
    defaults = raw.get("defaults", {})
    by_name = {target.name: target for target in targets}
    for path in [("defaults",), *(("models", i) for i in range(len(raw["models"])))]:
        _check_names(document, path, by_name)
    models = []
    for i, entry in enumerate(raw["models"]):
        wanted = entry.get("targets", defaults.get("targets", list(by_name)))
        chunks = entry.get("chunk_sizes", defaults.get("chunk_sizes", _CHUNK_SIZES))
        models.append(
            Model(
                name=entry["name"],
                path=_resolve(base, entry["path"]),
                chunk_sizes=tuple(int(c) for c in chunks),
                targets=tuple(t for t in targets if t.name in wanted),
                where=document.where(("models", i)),
            )
        )
    _refuse_twins(document, "models", [m.name for m in models], "rename one of them")
    return tuple(models)


def _check_names(document: Document, path: KeyPath, by_name: dict[str, Target]) -> None:
    section: Any = document.value
    for step in path:
        section = section.get(step, {}) if isinstance(section, dict) else section[step]
    for i, name in enumerate(section.get("targets", ())):
        if name not in by_name:
            raise document.error(
                (*path, "targets", i),
                f"there is no target {name!r}",
                did_you_mean(name, by_name, "targets"),
            )


def _check_folders(pipeline: Pipeline, document: Document) -> None:
    """Refuse output folders that would grow over each other or over a model."""
    outputs = {
        f"{key} of model {model.name!r}": (key, folder / model.name)
        for key, folder in (("build_dir", pipeline.build_dir), ("dist_dir", pipeline.dist_dir))
        for model in pipeline.models
    }
    inputs = {f"the folder of model {m.name!r}": m.path for m in pipeline.models}
    places = list(outputs.items())
    for i, (what, (key, folder)) in enumerate(places):
        others = {name: other for name, (_, other) in places[:i]} | inputs
        for name, other in others.items():
            if folder == other or folder in other.parents or other in folder.parents:
                path: KeyPath = (key,) if key in document.value else ()
                raise document.error(
                    path,
                    f"{folder} ({what}) and {other} ({name}) overlap",
                    f"choose another {key}",
                )
