"""The tasks of stages that run with a user's own tools; see `mnnqnn_tasks.tasks.graph`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from doit.task import Task

from mnnqnn_tasks.spec.pipeline import Target
from mnnqnn_tasks.tasks import checks, graph
from mnnqnn_tasks.tasks.keys import stage_key
from mnnqnn_tasks.tasks.plan import Plan
from mnnqnn_tasks.tasks.session import Job
from mnnqnn_tasks.tasks.tools import Tools, call, compiler_tools, mnn_tools, sdk_tools

#: The task that makes all samples in one run.
_IO = "io:{}:output"


def io_tasks(job: Job) -> Iterator[Task]:
    """One task: the tool makes inputs and outputs of all lengths in one run."""
    layout, name, mnn = job.layout, _IO.format(job.name), mnn_tools(job)
    pairs = {
        str(shape): [layout.io(shape, "input"), layout.io(shape, "output")]
        for shape in job.model.shapes
    }
    yield graph.stage_task(
        job,
        name,
        "external.io",
        {
            "folder": str(job.model.path),
            "index": layout.model_json,
            "digests": str(job.place.state / "digests"),
            "out": pairs,
            "tools": _call(job, name, mnn),
        },
        doc=f"IO samples of {job.name} by MNN's tool",
        deps=[layout.model_json],
        targets=[path for pair in pairs.values() for path in pair],
        key=stage_key("external.io", shapes=list(job.model.shapes), **mnn.key),
        base=_base(mnn, layout.samples),
        clean=_leavings(job, name),
    )


def partition_tasks(job: Job) -> Iterator[Task]:
    """One task: ``compilefornpu`` cuts the model and writes every graph's source."""
    layout, name, mnn, told = job.layout, f"partition:{job.name}", mnn_tools(job), options(job)
    inputs = list(graph.samples(job).values())
    results = [layout.io(shape, "output") for shape in job.model.shapes]
    yield graph.stage_task(
        job,
        name,
        "external.partition",
        {
            "folder": str(job.model.path),
            "index": layout.model_json,
            "digests": str(job.place.state / "digests"),
            "shapes": list(job.model.shapes),
            "inputs": inputs,
            "options": told,
            "out": layout.build,
            "tools": _call(job, name, mnn),
        },
        doc=f"cut and translate {job.name} with compilefornpu",
        deps=[layout.model_json, *inputs, *results],
        targets=[layout.plan_json, layout.postreat_json, layout.host_model],
        key=stage_key("external.partition", shapes=list(job.model.shapes), **told, **mnn.key),
        base=_base(mnn, layout.build),
        tidy="external.tidy_partition",
        clean=[os.path.dirname(layout.source("")), *_leavings(job, name)],
    )


def translate_task(job: Job, name: str) -> Task:
    """Read a source that ``compilefornpu`` wrote; link and verification take it from there."""
    layout = job.layout
    return graph.stage_task(
        job,
        f"translate:{job.name}:{name}",
        "external.translate",
        {
            "source": layout.source(name),
            "listing": layout.source_list(name),
            "net": layout.net(name),
            "blobs": layout.blobs,
        },
        doc=f"read the source of {name} of {job.name}",
        deps=[layout.source_list(name)],
        targets=[layout.net(name)],
        task_dep=[f"partition:{job.name}"],
        key=stage_key("external.translate"),
        base=layout.graph(name),
        tidy="external.tidy_translate",
        clean=[layout.graph(name)],
        checks=(checks.BlobsPresent(job),),
    )


def compile_task(job: Job, name: str) -> Task:
    """Compile a graph's source to a model library; does not know the target."""
    layout, task, compiler = job.layout, f"compile:{job.name}:{name}", compiler_tools(job)
    if job.pipeline.toolchain.partition == "external":
        source, listing = layout.source(name), layout.source_list(name)
        deps = [listing]
        after = f"partition:{job.name}"
    else:
        source, listing = layout.graph(name), layout.net(name)
        deps = [listing, layout.cpp(name)]
        after = f"translate:{job.name}:{name}"
    return graph.stage_task(
        job,
        task,
        "external.compile",
        {
            "source": source,
            "listing": listing,
            "graph": name,
            "out": layout.library(name),
            "tools": _call(job, task, compiler),
        },
        doc=f"compile the source of {name} of {job.name}",
        deps=deps,
        targets=[layout.library(name)],
        task_dep=[after],
        key=stage_key("external.compile", **compiler.key),
        base=_base(compiler, os.path.dirname(layout.library(name))),
        clean=_leavings(job, task),
    )


def link_tasks(job: Job, target: Target, plan: Plan) -> Iterator[Task]:
    """Make the context binaries with the SDK's tool."""
    layout, sdk = job.layout, sdk_tools(job)
    for name in plan.binaries_by_size():
        graphs = list(plan.binaries[name])
        task = f"link:{job.name}:{target.name}:{name}"
        out, report = layout.binary(target.name, name), layout.report(target.name, name)
        yield graph.stage_task(
            job,
            task,
            "external.link",
            {
                "libraries": [(g, layout.library(g)) for g in graphs],
                "target": graph.options(target),
                "out": out,
                "report": report,
                "tools": _call(job, task, sdk),
            },
            doc=f"link {name} of {job.name} for {target.name}",
            deps=[layout.library(g) for g in graphs],
            targets=[out, report],
            task_dep=[f"compile:{job.name}:{g}" for g in graphs],
            key=stage_key("external.link", graphs=graphs, **_linked_by(job, target)),
            base=_base(sdk, os.path.dirname(out)),
            clean=_leavings(job, task),
        )


def bundle_task(job: Job, target: Target, plan: Plan) -> Task:
    """The bundle of binaries that an SDK linked."""
    return graph.bundle_task(job, target, plan, _linked_by(job, target))


def _linked_by(job: Job, target: Target) -> dict[str, object]:
    return {**target.identity(), **sdk_tools(job).key}


def options(job: Job) -> dict[str, Any]:
    """What ``compilefornpu`` is told, as JSON values."""
    chain = job.pipeline.toolchain
    return {
        "graph_name": chain.graph_name,
        "skips": list(chain.skips),
        "max_history_token": chain.max_history_token,
    }


def _base(tools: Tools, folder: str) -> str:
    """The folder of a stage's results, if a cache may hand them on."""
    return folder if tools.known else ""


def _call(job: Job, task: str, tools: Tools) -> dict[str, Any]:
    """How the tools of a task run, and where they are."""
    chain = job.pipeline.toolchain
    return {
        **call(job.layout, task, chain.time_limit_s),
        "stamps": tools.stamps,
        "mnn": str(chain.mnn_path),
        "sdk": str(chain.qnn_sdk_root),
    }


def _leavings(job: Job, task: str) -> list[str]:
    return [job.layout.log(task), job.layout.work(task)]
