"""Pipelines of ``kind: genie``: what they say, resolved, and reading them.

``schemas/genie_pipeline.schema.json`` describes the file.
"""

from __future__ import annotations

import os
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import PipelineError
from mnnqnn_tasks.spec.check import Path as KeyPath
from mnnqnn_tasks.spec.check import did_you_mean
from mnnqnn_tasks.spec.pipeline import Target
from mnnqnn_tasks.spec.yamlfile import Document

#: What stands in the path of a graph's file, and in an argument of a compiler.
GRAPH_FIELDS = ("type", "split", "splits", "ar", "cl", "graph")
PER_GRAPH = ("onnx", "graph")
COMMAND_FIELDS = (
    *PER_GRAPH,
    "onnxs",
    "graphs",
    "extensions",
    "soc_id",
    "dsp_arch",
    "split",
    "splits",
    "out",
)


@dataclass(frozen=True)
class GenieModel:
    """A model that Genie is to run.

    Attributes:
        name: names the folder and the tasks.
        context_lengths, sequence_lengths: CL and AR in tokens.
        splits: how many pieces it is cut into.
        graphs: pattern of the graphs' files, absolute; see `GRAPH_FIELDS`.
        blobs: folder of static tensors, for a native compile.
        tokenizer: a ``tokenizer.json``, absolute.
        vocabulary: entries of the logits.
        bos, eos: ids of the tokens that begin a text (-1: none) and end an answer.
        head_dim: elements of a key per head.
        rope_theta: base of the rotary embedding's frequencies.
        rope_scaling: ``rope-scaling`` of libGenie; do not change it.
        sampler, engine: what the pipeline says of them, fields of
            `mnnqnn_tasks.genie.config.Sampler` and `GenieConfig`; do not change them.
        targets: the targets that it is bundled for.
        where: ``file:line:column`` of its entry, for messages.
    """

    name: str
    context_lengths: tuple[int, ...]
    sequence_lengths: tuple[int, ...]
    splits: int
    graphs: str
    blobs: Path | None
    tokenizer: Path
    vocabulary: int
    bos: int
    eos: tuple[int, ...]
    head_dim: int
    rope_theta: float
    rope_scaling: dict[str, Any] | None = field(hash=False)
    sampler: dict[str, Any] = field(hash=False)
    engine: dict[str, Any] = field(hash=False)
    targets: tuple[Target, ...]
    where: str = field(default="", compare=False)


@dataclass(frozen=True)
class Compile:
    """Who makes the context binaries.

    Attributes:
        command: program and arguments with placeholders, `COMMAND_FIELDS`; empty for a
            native compile.
        time_limit_s: seconds after which a command is ended.
        tools: files and folders, absolute, that the command uses beside its arguments; None
            where that is not said: then nobody knows what a binary depends on.
    """

    command: tuple[str, ...] = ()
    time_limit_s: int = 7200
    tools: tuple[str, ...] | None = None

    @property
    def native(self) -> bool:
        """Whether the wheel's library compiles."""
        return not self.command


@dataclass(frozen=True)
class GeniePipeline:
    """A whole pipeline of ``kind: genie``.

    Attributes:
        file: the YAML file, absolute, links resolved.
        genie: releases of QAIRT whose loader must take the bundles; empty is every known one.
        build_dir, dist_dir: absolute, links resolved; need not exist.
        max_memory: bytes that the tasks of a run may use together, ``None`` if not said.
        cache: what the pipeline says of the cache; see `mnnqnn_tasks.cache.config`.
        warnings: messages to print once.
    """

    file: Path
    models: tuple[GenieModel, ...]
    targets: tuple[Target, ...]
    compile: Compile
    genie: tuple[str, ...]
    build_dir: Path
    dist_dir: Path
    max_memory: int | None = None
    cache: dict[str, Any] = field(default_factory=dict, hash=False)
    warnings: tuple[str, ...] = ()


def fields_of(text: str) -> list[str]:
    """The placeholders in ``text``; ``{{`` is a brace.

    Raises:
        ValueError: a brace without its other half, or more than a name in braces.
    """
    found = []
    for _, name, form, conversion in string.Formatter().parse(text):
        if form or conversion:
            raise ValueError("only a name may stand in braces")
        if name is not None:
            found.append(name)
    return found


def read_genie_models(
    document: Document, base: Path, targets: tuple[Target, ...], native: bool
) -> tuple[GenieModel, ...]:
    """The models of a pipeline; relative paths count from ``base``.

    Raises:
        PipelineError: with the place in the file.
    """
    by_name = {target.name: target for target in targets}
    models = []
    seen: dict[str, int] = {}
    for i, raw in enumerate(document.value["models"]):
        path: KeyPath = ("models", i)
        first = seen.setdefault(raw["name"].casefold(), i)
        if first != i:
            raise document.error(
                (*path, "name"), f"models[{first}] is called so", "rename one of them"
            )
        for j, name in enumerate(raw.get("targets", ())):
            if name not in by_name:
                raise document.error(
                    (*path, "targets", j),
                    f"there is no target {name!r}",
                    did_you_mean(name, by_name, "targets"),
                )
        models.append(_model(document, path, raw, base, targets, native))
    return tuple(models)


def _model(
    document: Document,
    path: KeyPath,
    raw: dict[str, Any],
    base: Path,
    targets: tuple[Target, ...],
    native: bool,
) -> GenieModel:
    source, other = ("net", "onnx") if native else ("onnx", "net")
    who = "compile.native is true" if native else "compile.command is given"
    if other in raw:
        raise document.error(
            (*path, other), f"{who}, which takes {source}", f"write {source}", at_key=True
        )
    if source not in raw:
        raise document.error(path, f"the key {source!r} is missing", f"add it: {who}")
    if "blobs" in raw and not native:
        raise document.error(
            (*path, "blobs"), "only a native compile reads it", "remove it", at_key=True
        )
    contexts = tuple(sorted(int(n) for n in raw["context_lengths"]))
    calls = tuple(sorted((int(n) for n in raw["sequence_lengths"]), reverse=True))
    if contexts[0] < calls[0]:
        raise document.error(
            (*path, "context_lengths"),
            f"context length {contexts[0]} is below the {calls[0]} tokens of one call",
            "swap them, or take a longer context",
        )
    if int(raw["head_dim"]) % 2:
        raise document.error((*path, "head_dim"), "it must be even", "write elements per head")
    graphs = os.path.normpath(os.path.join(_escaped(str(base)), raw[source]))
    _check_fields(document, (*path, source), raw[source], GRAPH_FIELDS)
    if "graph" not in fields_of(graphs):
        _check_distinct(document, (*path, source), graphs, contexts, calls, int(raw["splits"]))
    wanted = raw.get("targets")
    blobs = None
    if native:
        blobs = base / raw["blobs"] if "blobs" in raw else base / raw[source] / ".." / "blobs"
        blobs = Path(os.path.normpath(blobs))
    return GenieModel(
        name=raw["name"],
        context_lengths=contexts,
        sequence_lengths=calls,
        splits=int(raw["splits"]),
        graphs=graphs,
        blobs=blobs,
        tokenizer=Path(os.path.realpath(base / raw["tokenizer"])),
        vocabulary=int(raw["vocabulary"]),
        bos=int(raw["tokens"].get("bos", -1)),
        eos=tuple(int(n) for n in raw["tokens"]["eos"]),
        head_dim=int(raw["head_dim"]),
        rope_theta=raw["rope_theta"],
        rope_scaling=raw.get("rope_scaling"),
        sampler=_whole(raw.get("sampler", {}), "seed", "top_k"),
        engine=_whole(raw.get("engine", {}), "threads"),
        targets=tuple(t for t in targets if wanted is None or t.name in wanted),
        where=document.where(path),
    )


def _whole(said: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """JSON Schema counts 8.0 as an integer."""
    return {key: int(value) if key in keys else value for key, value in said.items()}


def _plain(pattern: str) -> str:
    """A pattern up to its first placeholder, as a path."""
    made = ""
    for literal, name, _, _ in string.Formatter().parse(pattern):
        made += literal
        if name is not None:
            break
    return made


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _check_fields(
    document: Document, path: KeyPath, text: str, known: Sequence[str]
) -> Sequence[str]:
    try:
        found = fields_of(text)
    except ValueError as error:
        raise document.error(
            path, f"{text!r} has a brace too many", "write {{ for a brace", why=str(error)
        ) from None
    for name in found:
        if name not in known:
            raise document.error(
                path,
                f"nothing stands for {{{name}}}",
                did_you_mean(name, known, "placeholders"),
            )
    return found


def _check_distinct(
    document: Document,
    path: KeyPath,
    pattern: str,
    contexts: Sequence[int],
    calls: Sequence[int],
    splits: int,
) -> None:
    """Refuse a pattern that gives two graphs one file."""
    needs: Iterator[tuple[str, bool]] = iter(
        (
            ("split", splits > 1),
            ("cl", len(contexts) > 1),
            ("ar", len([n for n in calls if n > 1]) > 1),
            ("type", len(calls) > 1),
        )
    )
    found = set(fields_of(pattern))
    if "ar" in found:
        found.add("type")
    for name, needed in needs:
        if needed and name not in found:
            raise document.error(
                path,
                "two graphs of the model would be one file",
                f"add {{{name}}} to the path",
                why=f"there is more than one {name}",
            )


def read_compile(document: Document, base: Path) -> Compile:
    """The section ``compile``.

    Raises:
        PipelineError: neither or both kinds of compilers, or a placeholder without meaning.
    """
    raw: Mapping[str, Any] = document.value["compile"]
    native = raw.get("native", False)
    if native == ("command" in raw):
        raise document.error(
            ("compile",),
            "native and command exclude each other" if native else "nothing compiles",
            "write native: true, or command: [...], and not both",
        )
    for key in ("time_limit_s", "tools"):
        if native and key in raw:
            raise document.error(("compile", key), "it is for a command", "remove it", at_key=True)
    command = list(raw.get("command", ()))
    given: set[str] = set()
    for i, argument in enumerate(command):
        given |= set(_check_fields(document, ("compile", "command", i), argument, COMMAND_FIELDS))
    if command:
        if fields_of(command[0]):
            raise document.error(
                ("compile", "command", 0), "the program's name has a placeholder", "write a path"
            )
        if "out" not in given:
            raise document.error(
                ("compile", "command"),
                "the command is not told {out}",
                "add an argument with {out}: where the context binary belongs",
            )
        if os.sep in command[0]:
            command[0] = os.path.normpath(base / os.path.expanduser(command[0]))
    tools = None
    if "tools" in raw:
        given_tools = [os.path.realpath(base / os.path.expanduser(path)) for path in raw["tools"]]
        for i, path in enumerate(given_tools):
            if not os.path.exists(path):
                todo = "correct it, or remove it"
                raise document.error(("compile", "tools", i), f"there is no {path}", todo)
        tools = tuple(given_tools)
    return Compile(tuple(command), int(raw.get("time_limit_s", 7200)), tools)


def check_genie_folders(pipeline: GeniePipeline, document: Document) -> None:
    """Refuse one folder for intermediate files and bundles.

    Raises:
        PipelineError: naming both.
    """
    for model in pipeline.models:
        build, dist = pipeline.build_dir / model.name, pipeline.dist_dir / model.name
        # A graph's copy replaces a whole folder, which must not be the one of its source.
        sources = [("tokenizer", model.tokenizer), ("graph", Path(_plain(model.graphs)))]
        for key, folder in (("build_dir", build), ("dist_dir", dist)):
            for what, path in sources:
                if folder in (path, *path.parents):
                    raise PipelineError(
                        f"{key}: {folder} would be written, and the {what} lies in it",
                        where=document.where(()),
                        todo=f"choose another {key}",
                    )
        if build == dist or build in dist.parents or dist in build.parents:
            raise PipelineError(
                f"build_dir and dist_dir of model {model.name!r} overlap",
                where=document.where(()),
                todo="choose another dist_dir",
            )
