"""The tasks of stages that run with a user's own tools; see `mnnqnn_tasks.tasks.graph`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import doit
from doit.task import Task

from mnnqnn_tasks.cache.keys import action_key
from mnnqnn_tasks.spec.pipeline import Target
from mnnqnn_tasks.tasks import checks, graph, session
from mnnqnn_tasks.tasks.keys import stage_key
from mnnqnn_tasks.tasks.plan import Plan
from mnnqnn_tasks.tasks.session import Job

#: The task that makes all samples in one run.
_IO = "io:{}:output"


def io_tasks(job: Job) -> Iterator[Task]:
    """One task: the tool makes inputs and outputs of all lengths in one run."""
    layout, name = job.layout, _IO.format(job.name)
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
            "tools": _tools(job, name),
        },
        doc=f"IO samples of {job.name} by MNN's tool",
        deps=[layout.model_json],
        targets=[path for pair in pairs.values() for path in pair],
        key=stage_key("external.io", **mnn_identity(job)),
        clean=_leavings(job, name),
    )


def partition_tasks(job: Job) -> Iterator[Task]:
    """One task: ``compilefornpu`` cuts the model and writes every graph's source."""
    layout, name, chain = job.layout, f"partition:{job.name}", job.pipeline.toolchain
    told = {
        "graph_name": chain.graph_name,
        "skips": list(chain.skips),
        "max_history_token": chain.max_history_token,
    }
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
            "tools": _tools(job, name),
        },
        doc=f"cut and translate {job.name} with compilefornpu",
        deps=[layout.model_json, *inputs, *results],
        targets=[layout.plan_json, layout.postreat_json, layout.host_model],
        key=stage_key(
            "external.partition", shapes=list(job.model.shapes), **told, **mnn_identity(job)
        ),
        clean=[os.path.dirname(layout.source("")), *_leavings(job, name)],
    )


def translate_task(job: Job, name: str) -> Task:
    """Read a source that ``compilefornpu`` wrote; link and verification take it from there."""
    layout = job.layout
    return graph.stage_task(
        job,
        f"translate:{job.name}:{name}",
        "external.translate",
        {"source": layout.source(name), "net": layout.net(name), "blobs": layout.blobs},
        doc=f"read the source of {name} of {job.name}",
        deps=[layout.source_list(name)],
        targets=[layout.net(name)],
        task_dep=[f"partition:{job.name}"],
        key=stage_key("external.translate"),
        clean=[layout.graph(name)],
        checks=(checks.blobs_present(job),),
    )


def compile_task(job: Job, name: str) -> Task:
    """Compile a graph's source to a model library; does not know the target."""
    layout, task = job.layout, f"compile:{job.name}:{name}"
    if job.pipeline.toolchain.partition == "external":
        source, deps = layout.source(name), [layout.source_list(name)]
        after = f"partition:{job.name}"
    else:
        source, deps = layout.graph(name), [layout.net(name), layout.cpp(name)]
        after = f"translate:{job.name}:{name}"
    return graph.stage_task(
        job,
        task,
        "external.compile",
        {
            "source": source,
            "graph": name,
            "out": layout.library(name),
            "tools": _tools(job, task),
        },
        doc=f"compile the source of {name} of {job.name}",
        deps=deps,
        targets=[layout.library(name)],
        task_dep=[after],
        key=stage_key("external.compile", **sdk_identity(job)),
        clean=_leavings(job, task),
    )


def link_tasks(job: Job, target: Target, plan: Plan) -> Iterator[Task]:
    """Make the context binaries with the SDK's tool."""
    layout = job.layout
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
                "tools": _tools(job, task),
            },
            doc=f"link {name} of {job.name} for {target.name}",
            deps=[layout.library(g) for g in graphs],
            targets=[out, report],
            task_dep=[f"compile:{job.name}:{g}" for g in graphs],
            key=stage_key("external.link", graphs=graphs, **_linked_by(job, target)),
            clean=_leavings(job, task),
        )


def bundle_task(job: Job, target: Target, plan: Plan) -> Task:
    """The bundle of binaries that an SDK linked."""
    return graph.bundle_task(job, target, plan, _linked_by(job, target))


def _linked_by(job: Job, target: Target) -> dict[str, object]:
    return {**target.identity(), **sdk_identity(job)}


def mnn_identity(job: Job) -> dict[str, object]:
    """The entry of a key that says which build of MNN runs."""
    from mnnqnn_tasks.toolchain.external import mnnbuild

    folder = job.pipeline.toolchain.mnn_path
    assert folder is not None  # the pipeline was checked
    files = ((str(path.relative_to(folder)), path) for path in mnnbuild.files(folder))
    return {"MNN tools": _identity("MNN", files)}


def sdk_identity(job: Job) -> dict[str, object]:
    """The entry of a key that says which SDK links."""
    from mnnqnn_tasks.toolchain.external.sdk import Sdk

    root = job.pipeline.toolchain.qnn_sdk_root
    assert root is not None  # the pipeline was checked
    sdk = Sdk(root)
    text = f"QAIRT SDK {sdk.version() or 'of an unknown version'}"
    return {graph.SDK: f"{text}, {_identity('QAIRT', sdk.identity())}"}


def _identity(kind: str, files: Iterable[tuple[str, Path]]) -> str:
    """One digest of the tools by content; a missing tool is for the task to meet."""
    here = session.current()
    return action_key(kind, {name: here.readable_digest(str(path)) for name, path in files})[:16]


def _tools(job: Job, task: str) -> dict[str, Any]:
    """How a tool of a task runs; nothing of it changes what it makes."""
    chain = job.pipeline.toolchain
    return {
        "label": task,
        "log": job.layout.log(task),
        "work": job.layout.work(task),
        "limit_s": chain.time_limit_s,
        "live": doit.get_var("live", "0") not in ("0", "", "no", "false"),
        "mnn": str(chain.mnn_path),
        "sdk": str(chain.qnn_sdk_root),
    }


def _leavings(job: Job, task: str) -> list[str]:
    return [job.layout.log(task), job.layout.work(task)]
