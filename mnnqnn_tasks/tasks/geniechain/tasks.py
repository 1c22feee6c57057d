"""The tasks of a Genie model; all of them are known from the pipeline alone."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from doit.task import Task

from mnnqnn_tasks.genie.names import GraphName, NamePlan, plan
from mnnqnn_tasks.spec.pipeline import Target
from mnnqnn_tasks.tasks import checks, graph, session
from mnnqnn_tasks.tasks.fresh import Check
from mnnqnn_tasks.tasks.geniechain.compiler import Compiler, compiler_of
from mnnqnn_tasks.tasks.keys import code_version, qnn_identity
from mnnqnn_tasks.tasks.session import GenieJob
from mnnqnn_tasks.tasks.tools import call

#: The files of a target beside its binaries, as `stages.config` makes them.
_CONFIG_FILES = ("genie_config.json", "htp_backend_ext_config.json", "tokenizer.json")

#: The rooms whose code makes a stage's result, beside this one.
ROOMS: Mapping[str, tuple[str, ...]] = {
    "values": ("genie",),
    "name_onnx": ("genie",),
    "name_net": ("qnn",),
    "link": ("qnn",),
    # The listing of a graph is about its source: the code that names it counts as well.
    "compile": ("genie", "toolchain/external"),
    "config": ("genie",),
    "lint": ("genie", "qnn"),
    "bundle": (),
}

#: Makes the tasks of a stage for one target.
_Maker = Callable[[GenieJob, Target, NamePlan], Iterator[Task]]


def tasks(job: GenieJob, ready: Mapping[str, Task]) -> Iterator[Task]:
    """Every task of a model, groups included.

    Args:
        ready: by target, the tasks of bundles that need no other.
    """
    names = names_of(job)
    named = [_NAME[job.pipeline.compile.native](job, one) for one in names]
    named.append(_values_task(job, names))
    yield from named
    yield graph.group(f"name:{job.name}", [t.name for t in named], f"graph names of {job.name}")
    made = [target for target in job.model.targets if target.name not in ready]
    compiles = functools.partial(_compile_tasks, compiler=compiler_of(job))
    makers: Mapping[str, _Maker] = {"compile": compiles, **_AFTER_COMPILE}
    for stage, make in makers.items():
        for target in made:
            per_target = list(make(job, target, names))
            yield from per_target
            if stage == "compile":
                members = [task.name for task in per_target]
                doc = f"all binaries of {job.name} for {target.name}"
                yield graph.group(f"compile:{job.name}:{target.name}", members, doc)
        there = [*made] if stage != "bundle" else job.model.targets
        parts = [f"{stage}:{job.name}:{target.name}" for target in there]
        yield graph.group(f"{stage}:{job.name}", parts, f"{stage} of {job.name} for all targets")
    yield from ready.values()
    yield from _exports(job, {target.name: [f"name:{job.name}:values"] for target in made}, ready)


def whole_tasks(job: GenieJob, ready: Mapping[str, Task]) -> Iterator[Task]:
    """The tasks of a model of which nothing but these bundles is asked for."""
    yield from ready.values()
    yield from _exports(job, {}, ready)


def task_names(job: GenieJob) -> set[str]:
    """The names of all tasks of a model, without groups."""
    name, model = job.name, job.model
    found = {f"name:{name}:{one}" for one in (*names_of(job), "values")}
    for target in model.targets:
        found |= {f"{stage}:{name}:{target.name}" for stage in ("config", "lint", "bundle")}
        splits = range(1, model.splits + 1)
        found |= {f"compile:{name}:{target.name}:{number}" for number in splits}
    return found


def _exports(
    job: GenieJob, more: Mapping[str, list[str]], ready: Mapping[str, Task]
) -> Iterator[Task]:
    """Groups of the targets that are known here; ``more`` is what they have beside the bundle."""
    parts = []
    for target in job.model.targets:
        if target.name not in more and target.name not in ready:
            continue
        name = f"export_genie:{job.name}:{target.name}"
        parts.append(name)
        members = [f"bundle:{job.name}:{target.name}", *more.get(target.name, ())]
        doc = f"export {job.name} for {target.name}"
        yield graph.group(name, members, doc, "export_genie")
    doc = f"export {job.name} for its targets"
    yield graph.group(f"export_genie:{job.name}", parts, doc, "export_genie")


def names_of(job: GenieJob) -> NamePlan:
    """The planned names of all graphs."""
    model = job.model
    return plan(model.context_lengths, model.sequence_lengths, model.splits)


def source_of(job: GenieJob, name: GraphName) -> str:
    """The file of a graph as the user has it."""
    path = job.model.graphs.format(
        type=name.kind,
        split=name.split,
        splits=name.splits,
        ar=name.ar,
        cl=name.cl,
        graph=name,
    )
    return os.path.normpath(path)


def rooms_of(stage: str) -> tuple[str, ...]:
    """The rooms whose code makes a stage's result."""
    return ("tasks/geniechain", *ROOMS[stage])


def _key(stage: str, **options: object) -> dict[str, object]:
    return {f"code of {room}": code_version(room) for room in rooms_of(stage)} | options


def _values_task(job: GenieJob, names: NamePlan) -> Task:
    """The list of names, for people and for compilers that this project does not run."""
    base = str(job.pipeline.file.parent)
    models = [
        (os.path.relpath(source_of(job, one), base), [one.ar, one.cl, one.split, one.splits])
        for one in names
    ]
    return graph.stage_task(
        job,
        f"name:{job.name}:values",
        "genie.values",
        {"models": models, "out": job.layout.values_json},
        doc=f"graph names of {job.name}, and compiler options that match",
        deps=(),
        targets=[job.layout.values_json],
        key=_key("values", models=[[path, list(numbers)] for path, numbers in models]),
    )


def _name_onnx(job: GenieJob, name: GraphName) -> Task:
    return _name_task(job, name, "name_onnx", (_weights_unchanged,))


def _name_net(job: GenieJob, name: GraphName) -> Task:
    return _name_task(job, name, "name_net", ())


_NAME: Mapping[bool, Callable[[GenieJob, GraphName], Task]] = {True: _name_net, False: _name_onnx}


def _name_task(job: GenieJob, name: GraphName, stage: str, more: tuple[Check, ...]) -> Task:
    """A copy of a graph under its planned name; its listing stands for it in other tasks."""
    source, layout = source_of(job, name), job.layout
    return graph.stage_task(
        job,
        f"name:{job.name}:{name}",
        f"genie.{stage}",
        {
            "source": source,
            "graph": str(name),
            "out": layout.named(str(name)),
            "listing": layout.listing(str(name)),
        },
        doc=f"give {os.path.basename(source)} the name {name}",
        deps=[source] if os.path.isfile(source) else [],  # else the action says what is missing
        targets=[layout.listing(str(name))],
        key=_key(stage),
        clean=[layout.named(str(name))],
        checks=more,
    )


def _weights_unchanged(values: Mapping[str, Any]) -> str | None:
    """The external weights of a model have the content that was copied."""
    for path, digest in values.get("weights", {}).items():
        if session.current().readable_digest(path) != digest:
            return f"{os.path.basename(path)} changed"
    return None


def _binary(job: GenieJob, number: int) -> str:
    """The name of a split's binary; names sort as the splits do."""
    total = str(job.model.splits)
    return f"{job.name}_{str(number).zfill(len(total))}_of_{total}.bin"


def _binaries(job: GenieJob) -> list[str]:
    return [_binary(job, number) for number in range(1, job.model.splits + 1)]


def _compile_tasks(
    job: GenieJob, target: Target, names: NamePlan, compiler: Compiler
) -> Iterator[Task]:
    """One binary per split, with its graphs for all lengths."""
    stage = "link" if job.pipeline.compile.native else "compile"
    for number in range(1, names.splits + 1):
        graphs = list(map(str, names.split(number)))
        file = _binary(job, number)
        out = os.path.join(job.layout.target(target.name), file)
        report = job.layout.report(target.name, file.removesuffix(".bin"))
        task = f"compile:{job.name}:{target.name}:{number}"
        arguments, leavings = _COMPILE[stage](job, task, target, number, graphs)
        yield graph.stage_task(
            job,
            task,
            f"genie.{stage}",
            {**arguments, "target": graph.options(target), "out": out, "report": report},
            doc=f"compile split {number} of {job.name} for {target.name}",
            deps=[job.layout.listing(name) for name in graphs],
            targets=[out, report],
            task_dep=[f"name:{job.name}:{name}" for name in graphs],
            key=_key(stage, file=file, graphs=graphs, **graph.linked_for(target), **compiler.key),
            clean=leavings,
            base=job.layout.target(target.name) if compiler.known else "",
        )


#: Arguments of a stage, and what it leaves behind.
_Call = tuple[dict[str, Any], list[str]]


def _native(job: GenieJob, task: str, target: Target, number: int, graphs: list[str]) -> _Call:
    nets = [os.path.join(job.layout.named(name), f"{name}_net.json") for name in graphs]
    return {"nets": nets, "blobs": str(job.model.blobs)}, []


def _external(job: GenieJob, task: str, target: Target, number: int, graphs: list[str]) -> _Call:
    chain, layout = job.pipeline.compile, job.layout
    arguments = {
        "command": list(chain.command),
        "base": str(job.pipeline.file.parent),
        "graphs": [(name, layout.named(name)) for name in graphs],
        "fields": {
            "soc_id": str(target.soc_id),
            "dsp_arch": target.dsp_arch,
            "split": str(number),
            "splits": str(job.model.splits),
        },
        "tools": call(layout, task, chain.time_limit_s),
    }
    return arguments, [layout.log(task), layout.work(task)]


_COMPILE = {"link": _native, "compile": _external}


def config_of(job: GenieJob) -> dict[str, Any]:
    """What ``genie_config.json`` says, as `stages.config` takes it."""
    model = job.model
    return {
        "context_size": names_of(job).context_size,
        "vocabulary": model.vocabulary,
        "bos_token": model.bos,
        "eos_tokens": list(model.eos),
        "head_dim": model.head_dim,
        "rope": {
            "theta": model.rope_theta,
            "dim": model.head_dim // 2,
            "scaling": model.rope_scaling,
        },
        "ctx_bins": _binaries(job),
        "sampler": model.sampler,
        **model.engine,
    }


def _config_task(job: GenieJob, target: Target, names: NamePlan) -> Iterator[Task]:
    told, folder = config_of(job), job.layout.target(target.name)
    device = {
        "soc_id": target.soc_id,
        "dsp_arch": target.dsp_arch,
        "weight_sharing": target.weight_sharing,
    }
    tokenizer = str(job.model.tokenizer)
    yield graph.stage_task(
        job,
        f"config:{job.name}:{target.name}",
        "genie.config",
        {"config": told, "device": device, "tokenizer": tokenizer, "out": folder},
        doc=f"genie_config.json of {job.name} for {target.name}",
        deps=[tokenizer] if os.path.isfile(tokenizer) else [],
        targets=[os.path.join(folder, name) for name in _CONFIG_FILES],
        key=_key("config", config=told, device=device),
    )


def _lint_task(job: GenieJob, target: Target, names: NamePlan) -> Iterator[Task]:
    folder, out, asked = (
        job.layout.target(target.name),
        job.layout.lint(target.name),
        list(job.pipeline.genie),
    )
    yield graph.stage_task(
        job,
        f"lint:{job.name}:{target.name}",
        "genie.lint",
        {"folder": folder, "binaries": _binaries(job), "versions": asked, "out": out},
        doc=f"what Genie will make of {job.name} for {target.name}",
        deps=[os.path.join(folder, name) for name in _files(job)],
        targets=[out],
        task_dep=_parts(job, target),
        key=_key("lint", genie=asked, **{"QNN library": qnn_identity()}),
    )


def _bundle_task(job: GenieJob, target: Target, names: NamePlan) -> Iterator[Task]:
    folder, out, files = (
        job.layout.target(target.name),
        job.layout.bundle(target.name),
        _files(job),
    )
    yield graph.stage_task(
        job,
        f"bundle:{job.name}:{target.name}",
        "genie.bundle",
        {"folder": folder, "names": files, "target": graph.options(target), "out": out},
        doc=f"the Genie bundle of {job.name} for {target.name}",
        deps=[*(os.path.join(folder, name) for name in files), job.layout.lint(target.name)],
        targets=[os.path.join(out, "genie_config.json")],
        task_dep=[f"lint:{job.name}:{target.name}"],
        key=_key("bundle", files=files, target=asdict(target) | {"where": ""}),
        clean=[out],
        checks=(checks.NothingExtra(job, out),),
    )


def _files(job: GenieJob) -> list[str]:
    """What a bundle consists of."""
    return [*_CONFIG_FILES, *_binaries(job)]


def _parts(job: GenieJob, target: Target) -> list[str]:
    count = range(1, job.model.splits + 1)
    binaries: Iterable[str] = (f"compile:{job.name}:{target.name}:{number}" for number in count)
    return [*binaries, f"config:{job.name}:{target.name}"]


_AFTER_COMPILE: Mapping[str, _Maker] = {
    "config": _config_task,
    "lint": _lint_task,
    "bundle": _bundle_task,
}
