"""Who compiles a Genie model, by content."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mnnqnn_tasks.tasks.session import GenieJob
from mnnqnn_tasks.tasks.tools import digest_of


@dataclass(frozen=True)
class Compiler:
    """Who compiles a model.

    Attributes:
        key: the part of a key that says so; empty for the wheel's library.
        known: whether everything is known that a binary depends on.
    """

    key: dict[str, object]
    known: bool


def compiler_of(job: GenieJob) -> Compiler:
    """Who compiles the model; for a command, everything that it uses is looked at.

    What a command finds by itself only the pipeline can tell, in ``tools``.
    """
    chain = job.pipeline.compile
    if chain.native:
        return Compiler({}, True)
    tools = dict(_tools(job))
    known = chain.tools is not None and None not in tools.values()
    return Compiler({"command": list(chain.command[1:]), "tools": tools}, known)


def _tools(job: GenieJob) -> Iterator[tuple[str, str | None]]:
    """Digests of the program, its libraries, files that arguments name, and ``tools``.

    Another compiler makes another binary, whatever it is called.
    """
    from mnnqnn_tasks.toolchain.external.loads import libraries

    chain = job.pipeline.compile
    program, *rest = chain.command
    found = shutil.which(program)
    yield "program", digest_of(found) if found else None
    for path in libraries(Path(found)) or () if found else ():
        yield path.name, digest_of(str(path))
    for text, named in named_by(rest, str(job.pipeline.file.parent)).items():
        yield text, digest_of(named)
    for number, tool in enumerate(chain.tools or ()):
        yield f"tools[{number}]", digest_of(tool)


def named_by(arguments: Sequence[str], base: str) -> dict[str, str]:
    """The files that arguments name, by the argument: ``FILE`` or ``--option=FILE``."""
    found = {}
    for text in arguments:
        for part in (text, text.partition("=")[2]):
            path = os.path.join(base, part)
            if part and os.path.isfile(path):
                found[text] = path
                break
    return found
