"""What the bundle of a Genie model depends on, for a cache that has it as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from mnnqnn_tasks.errors import MnnqnnError
from mnnqnn_tasks.files import sha256_file
from mnnqnn_tasks.spec.pipeline import Target
from mnnqnn_tasks.tasks import session
from mnnqnn_tasks.tasks.geniechain import sources, tasks
from mnnqnn_tasks.tasks.geniechain.compiler import Compiler, compiler_of
from mnnqnn_tasks.tasks.keys import code_version, qnn_identity
from mnnqnn_tasks.tasks.session import GenieJob


def trouble(job: GenieJob) -> tuple[str, MnnqnnError] | None:
    """The task that will fail because a file of the model cannot be read, and the error."""
    for name in tasks.names_of(job):
        try:
            _planned(job, name)
        except MnnqnnError as error:
            return f"name:{job.name}:{name}", error
    try:
        session.current().digest(str(job.model.tokenizer))
    except MnnqnnError as error:
        target = job.model.targets[0].name if job.model.targets else ""
        return f"config:{job.name}:{target}", error
    return None


def planned(job: GenieJob, targets: Iterable[Target]) -> Iterator[tuple[Target, dict[str, Any]]]:
    """What bundles depend on, as the model's files are now; nothing if it cannot be told.

    Raises:
        ToolMissing: the QNN library is not installed.
    """
    compiler = compiler_of(job)
    if not compiler.known:
        return
    try:
        graphs = {str(name): _planned(job, name) for name in tasks.names_of(job)}
        tokenizer = session.current().digest(str(job.model.tokenizer))
    except MnnqnnError:
        return
    for target in targets:
        yield target, _inputs(job, target, graphs, tokenizer, compiler)


def made(job: GenieJob, target: Target, tokenizer: str) -> dict[str, Any] | None:
    """What a bundle depends on that was just made; ``None`` if it cannot be told.

    Args:
        tokenizer: SHA-256 of the bundle's.

    Raises:
        OSError: the listing of a graph is gone.
    """
    compiler = compiler_of(job)
    if not compiler.known:
        return None
    named = map(str, tasks.names_of(job))
    graphs = {name: sha256_file(job.layout.listing(name)) for name in named}
    return _inputs(job, target, graphs, tokenizer, compiler)


def _planned(job: GenieJob, name: Any) -> str:
    source = tasks.source_of(job, name)
    return sources.listing_digest(source, str(name), session.current().digest)


def _inputs(
    job: GenieJob,
    target: Target,
    graphs: Mapping[str, str],
    tokenizer: str,
    compiler: Compiler,
) -> dict[str, Any]:
    """Flat, to name what changed."""
    rooms = sorted({room for stage in tasks.ROOMS for room in tasks.rooms_of(stage)})
    return {
        "name": job.name,
        **{f"graph {name}": digest for name, digest in graphs.items()},
        os.path.basename(job.model.tokenizer): tokenizer,
        **{f"config's {key}": value for key, value in tasks.config_of(job).items()},
        **{f"target's {k}": v for k, v in asdict(target).items() if k != "where"},
        "genie": list(job.pipeline.genie),
        **compiler.key,
        **{f"code of {room}": code_version(room) for room in rooms},
        "QNN library": qnn_identity(),
    }
