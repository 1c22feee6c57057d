"""Which tasks a model has: for every stage, those of the toolchain that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from doit.task import Task

from mnnqnn_tasks.spec.pipeline import Target
from mnnqnn_tasks.tasks import external_graph, graph
from mnnqnn_tasks.tasks.plan import Plan
from mnnqnn_tasks.tasks.session import Job


def _native_partition(job: Job) -> Iterator[Task]:
    yield from graph.validate_tasks(job)
    yield graph.partition_task(job)


def _native_link(job: Job, target: Target, plan: Plan) -> Iterator[Task]:
    for binary in plan.binaries_by_size():
        yield graph.link_task(job, target, binary, plan)


_IO: Mapping[str, Callable[[Job], Iterator[Task]]] = {
    "native": graph.io_tasks,
    "external": external_graph.io_tasks,
}
_PARTITION: Mapping[str, Callable[[Job], Iterator[Task]]] = {
    "native": _native_partition,
    "external": external_graph.partition_tasks,
}
_TRANSLATE: Mapping[str, Callable[[Job, str], Task]] = {
    "native": graph.translate_task,
    "external": external_graph.translate_task,
}
_LINK: Mapping[str, Callable[[Job, Target, Plan], Iterator[Task]]] = {
    "native": _native_link,
    "external": external_graph.link_tasks,
}
_BUNDLE: Mapping[str, Callable[[Job, Target, Plan], Task]] = {
    "native": graph.bundle_task,
    "external": external_graph.bundle_task,
}


def static_tasks(job: Job) -> Iterator[Task]:
    """The tasks that exist whatever the model is cut into."""
    chain = job.pipeline.toolchain
    yield graph.model_task(job)
    yield from _IO[chain.io](job)
    yield from _PARTITION[chain.partition](job)


def planned_tasks(job: Job, plan: Plan, ready: Mapping[str, Task]) -> Iterator[Task]:
    """The tasks that follow from the cut, but for those of the bundles that are ``ready``."""
    name, parts = job.name, [target.name for target in job.model.targets]
    chain = job.pipeline.toolchain
    translate = [_TRANSLATE[chain.partition](job, g) for g in plan.by_size()]
    yield from translate
    yield graph.group(f"translate:{name}", [t.name for t in translate], f"all graphs of {name}")
    if "compile" in planned_stages(job):
        libraries = [external_graph.compile_task(job, g) for g in plan.by_size()]
        yield from libraries
        doc = f"all model libraries of {name}"
        yield graph.group(f"compile:{name}", [t.name for t in libraries], doc)
    for target in job.model.targets:
        link = list(_LINK[chain.link](job, target, plan))
        yield from link
        doc = f"all binaries of {name} for {target.name}"
        yield graph.group(f"link:{name}:{target.name}", [t.name for t in link], doc)
        if target.name not in ready:
            yield _BUNDLE[chain.link](job, target, plan)
    yield graph.group(
        f"link:{name}", [f"link:{name}:{p}" for p in parts], f"all binaries of {name}"
    )
    yield bundles(name, parts)


def bundles(model: str, targets: Iterable[str]) -> Task:
    """The group of a model's bundles."""
    members = [f"bundle:{model}:{target}" for target in targets]
    return graph.group(f"bundle:{model}", members, f"bundles of {model}")


def planned_stages(job: Job) -> tuple[str, ...]:
    """The stages whose tasks follow from the cut."""
    if job.pipeline.toolchain.link == "external":
        return ("translate", "compile", "link", "bundle")
    return ("translate", "link", "bundle")
