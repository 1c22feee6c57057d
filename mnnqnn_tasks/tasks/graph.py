"""The tasks of a model: one function per stage, in the order of the stages."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from doit.task import Task

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.spec.pipeline import Target
from mnnqnn_tasks.tasks import checks, session, tools
from mnnqnn_tasks.tasks.actions import remove, run_stage
from mnnqnn_tasks.tasks.cached import Action
from mnnqnn_tasks.tasks.fresh import Check, Fresh
from mnnqnn_tasks.tasks.keys import code_version, mnn_version, qnn_identity, stage_key
from mnnqnn_tasks.tasks.plan import Plan
from mnnqnn_tasks.tasks.session import GenieJob, Job


def group(name: str, members: Iterable[str], doc: str, part_of: str | None = None) -> Task:
    """A task that only holds others together; always fresh by itself."""
    session.current().groups.add(name)
    return Task(
        name,
        None,
        task_dep=list(members),
        uptodate=[True],
        doc=doc,
        has_subtask=True,
        subtask_of=part_of,
    )


def stage_task(
    job: Job | GenieJob,
    name: str,
    stage: str,
    arguments: Mapping[str, Any],
    *,
    doc: str,
    deps: Iterable[str],
    targets: Iterable[str],
    key: Mapping[str, object],
    clean: Iterable[str] = (),
    task_dep: Iterable[str] = (),
    checks: tuple[Check, ...] = (),
    recall: Iterable[str] = (),
    base: str = "",
    tidy: str = "",
) -> Task:
    """A task that calls the function ``stage`` of a toolchain; see `run_stage`.

    With ``base`` its result goes through the cache, see `cached.Action`.
    """
    made, deps = list(targets), list(deps)
    action = None
    if base:
        reads = {job.path_names.shorten(path): path for path in deps}
        action = Action(f"{stage}/1", key, reads, base, tidy)
    return Task(
        name,
        [(run_stage, [name, stage, dict(arguments), tuple(recall), action])],
        file_dep=deps,
        targets=made,
        task_dep=list(task_dep),
        uptodate=[Fresh(key, job.path_names, checks)],
        clean=[(remove, [[*made, *clean]])],
        doc=doc,
        subtask_of=name.partition(":")[0],
    )


def model_task(job: Job) -> Task:
    """Digest the model folder; the only task that depends on where it is."""
    from mnnqnn_tasks.mnn.folder import open_folder

    folder = str(job.model.path)
    try:
        deps = [os.path.join(folder, name) for name in open_folder(folder).files]
    except ModelFileError:
        deps = []  # the action meets the same trouble, and then it is this model's alone
    return stage_task(
        job,
        f"model:{job.name}",
        "index",
        {
            "folder": folder,
            "out": job.layout.model_json,
            "structure": job.layout.structure_json,
            "spans": job.layout.spans_json,
            "code": code_version("mnn"),
            "digests": str(job.place.models.log),
        },
        doc=f"digest the files of {job.name}",
        deps=deps,
        targets=[job.layout.model_json, job.layout.structure_json, job.layout.spans_json],
        key=stage_key("model"),
        clean=[job.layout.blobs, job.layout.build],
        checks=(checks.ModelUnchanged(job, deps),),
    )


def io_tasks(job: Job) -> Iterator[Task]:
    """Input and output samples of every shape."""
    folder = str(job.model.path)
    wheel = {"MNN wheel": mnn_version()}
    before: list[str] = []
    for shape in job.model.shapes:
        sample = job.layout.io(shape, "input")
        name = f"io:{job.name}:{shape}:input"
        yield stage_task(
            job,
            name,
            "io_input",
            {"folder": folder, "shape": shape, "out": sample},
            doc=f"sample inputs of {job.name} for {shape} tokens",
            deps=[job.layout.structure_json],
            targets=[sample],
            # One after the other: doit starts what becomes ready in no certain order, and two
            # of these would keep two workers from the cut, which all else waits for.
            task_dep=before,
            key=stage_key("io", shape=shape, **wheel),
            base=os.path.dirname(sample),
        )
        before = [name]
    given = samples(job)
    results = [job.layout.io(shape, "output") for shape in job.model.shapes]
    yield stage_task(
        job,
        f"io:{job.name}:output",
        "io_output",
        {
            "folder": folder,
            "index": job.layout.model_json,
            "digests": str(job.place.state / "digests"),
            "samples": given,
            "out": results,
        },
        doc=f"what {job.name} computes on the CPU from the sample inputs",
        deps=[job.layout.model_json, *given.values()],
        targets=results,
        key=stage_key("io", **wheel),
        base=job.layout.samples,
    )


def validate_tasks(job: Job) -> Iterator[Task]:
    """Cut the model, ask QNN for every target which ops it refuses, join the answers."""
    layout = job.layout
    given: Mapping[str, str | None] = samples(job)
    if job.pipeline.toolchain.io == "native":
        given = dict.fromkeys(given)  # known without waiting for them
    yield stage_task(
        job,
        f"cut:{job.name}",
        "cut",
        {
            "folder": str(job.model.path),
            "index": layout.model_json,
            "structure": layout.structure_json,
            "inputs": given,
            "out": layout.cut_json,
            "host_model": layout.cut_model,
            "uses": layout.ops_json,
            "net": layout.ops_net,
        },
        doc=f"cut {job.name} as if QNN refused nothing, and list what to ask QNN",
        deps=[layout.structure_json, *(path for path in given.values() if path)],
        targets=[layout.cut_json, layout.cut_model, layout.ops_json, layout.ops_net],
        key=stage_key("cut", shapes=list(job.model.shapes)),
        base=os.path.dirname(layout.cut_json),
    )
    for target in job.model.targets:
        yield stage_task(
            job,
            f"validate:{job.name}:{target.name}",
            "validate",
            {
                "uses": layout.ops_json,
                "net": layout.ops_net,
                "target": options(target),
                "out": layout.validation(target.name),
            },
            doc=f"ops of {job.name} that QNN refuses for {target.name}",
            deps=[layout.ops_json, layout.ops_net],
            targets=[layout.validation(target.name)],
            key=stage_key("validate", **linked_for(target)),
        )
    answers = [layout.validation(target.name) for target in job.model.targets]
    yield stage_task(
        job,
        f"validate:{job.name}",
        "refused",
        {"answers": answers, "out": layout.refused_json},
        doc=f"ops of {job.name} that QNN refuses for any target",
        deps=answers,
        targets=[layout.refused_json],
        key=stage_key("refused"),
    )


def partition_task(job: Job) -> Task:
    """Cut the model into host and NPU pieces."""
    layout, shapes = job.layout, list(job.model.shapes)
    return stage_task(
        job,
        f"partition:{job.name}",
        "partition",
        {
            "folder": str(job.model.path),
            "index": layout.model_json,
            "structure": layout.structure_json,
            "refused": layout.refused_json,
            "cut": layout.cut_json,
            "host_model": layout.cut_model,
            "inputs": samples(job),
            "out": layout.build,
        },
        doc=f"cut {job.name} into pieces for the CPU and the NPU",
        deps=[
            layout.model_json,
            layout.structure_json,
            layout.refused_json,
            layout.cut_json,
            layout.cut_model,
            *samples(job).values(),
        ],
        targets=[layout.plan_json, layout.postreat_json, layout.host_model, layout.sources_json],
        key=stage_key("partition", shapes=shapes),
        base=layout.build,
        tidy="tidy_partition",
        clean=[os.path.dirname(layout.subgraph(""))],
    )


def translate_task(job: Job, graph: str) -> Task:
    """Translate one graph to QNN."""
    layout = job.layout
    return stage_task(
        job,
        f"translate:{job.name}:{graph}",
        "translate",
        {
            "folder": str(job.model.path),
            "subgraph": layout.subgraph(graph),
            "sources": layout.sources_json,
            "blobs": layout.blobs,
            "out": layout.graph(graph),
        },
        doc=f"translate {graph} of {job.name} to QNN",
        deps=[layout.subgraph(graph)],
        targets=[layout.net(graph), layout.cpp(graph)],
        task_dep=[f"partition:{job.name}"],
        key=stage_key("translate"),
        base=layout.graph(graph),
        clean=[layout.graph(graph)],
        checks=(checks.BlobsPresent(job),),
    )


def link_task(job: Job, target: Target, name: str, plan: Plan) -> Task:
    """Make one context binary: the graphs of one piece at all shapes."""
    layout, graphs = job.layout, list(plan.binaries[name])
    return stage_task(
        job,
        f"link:{job.name}:{target.name}:{name}",
        "link",
        {
            "nets": [layout.net(graph) for graph in graphs],
            "blobs": layout.blobs,
            "target": options(target),
            "out": layout.binary(target.name, name),
            "report": layout.report(target.name, name),
            # Of graphs that were cut here QNN was asked before; others may have any op.
            "ask": job.pipeline.toolchain.partition != "native",
        },
        doc=f"link {name} of {job.name} for {target.name}",
        deps=[layout.net(graph) for graph in graphs],
        targets=[layout.binary(target.name, name), layout.report(target.name, name)],
        task_dep=[f"translate:{job.name}:{graph}" for graph in graphs],
        key=stage_key("link", graphs=graphs, **linked_for(target)),
        base=os.path.dirname(layout.binary(target.name, name)),
    )


def bundle_task(
    job: Job, target: Target, plan: Plan, linked_by: Mapping[str, object] | None = None
) -> Task:
    """Put the folder together that goes to the device.

    ``linked_by`` is what the binaries depend on if the wheel's library did not link them.
    """
    layout, names = job.layout, list(plan.binaries)
    binaries = [layout.binary(target.name, name) for name in names]
    chunks, runtime = list(job.model.chunk_sizes), dict(job.pipeline.runtime)
    out = layout.bundle(target.name)
    # doit starts them in this order: a long task that starts last is waited for.
    links = [f"link:{job.name}:{target.name}:{name}" for name in plan.binaries_by_size()]
    return stage_task(
        job,
        f"bundle:{job.name}:{target.name}",
        "bundle",
        {
            "folder": str(job.model.path),
            "index": layout.model_json,
            "host_model": layout.host_model,
            "binaries": binaries,
            "chunk_sizes": chunks,
            "runtime": runtime,
            "target": options(target),
            "digests": str(job.place.state / "digests"),
            "out": out,
            "linked_with": str((linked_by or {}).get(tools.SDK, "")),
        },
        doc=f"the bundle of {job.name} for {target.name}",
        deps=[layout.model_json, layout.host_model, *binaries],
        targets=[os.path.join(out, "config_qnn.json")],
        task_dep=links,
        key=stage_key(
            "bundle",
            chunk_sizes=chunks,
            runtime=runtime,
            binaries=names,
            target=target.name,
            **(linked_by or linked_for(target)),
        ),
        clean=[out],
        checks=(checks.NothingExtra(job, out),),
        recall=(f"bundle:{job.name}:{target.name}", *links),
    )


def samples(job: Job) -> dict[str, str]:
    """The sample inputs by sequence length, decode first; names as JSON has them."""
    return {str(shape): job.layout.io(shape, "input") for shape in job.model.shapes}


@functools.cache
def options(target: Target) -> dict[str, Any]:
    """A target as JSON values; ``where`` is for messages only.  Do not change the result."""
    return {key: value for key, value in asdict(target).items() if key != "where"}


def linked_for(target: Target) -> dict[str, object]:
    """The part of a key that says for which chip, with which library."""
    return {**target.identity(), "QNN library": qnn_identity()}
