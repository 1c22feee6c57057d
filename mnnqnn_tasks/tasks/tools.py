"""What a user's own tools consist of, by content.

Two questions, of which the second is harder: whether a tool is another one than last time,
and whether nothing but its known files decides what it makes.  Only then may a cache hand
on what it made.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import doit

from mnnqnn_tasks.cache.keys import action_key
from mnnqnn_tasks.tasks import session
from mnnqnn_tasks.tasks.session import Job

if TYPE_CHECKING:
    from mnnqnn_tasks.tasks.geniechain.layout import GenieLayout
    from mnnqnn_tasks.tasks.layout import Layout
    from mnnqnn_tasks.toolchain.external.stages import Stamps

#: The entries of a key that say which build of MNN, which SDK and which compiler run.
MNN, SDK, CXX = "MNN tools", "QAIRT SDK", "clang++"


#: Python writes there while a tool runs; what is in it follows from the files beside it.
_DERIVED = "__pycache__"


def digest_of(path: str) -> str | None:
    """Digest of a file, or of everything in a folder, links followed; ``None`` if some of it
    cannot be read."""
    here = session.current()
    if not os.path.isdir(path):
        return here.readable_digest(path)
    try:
        files = list(_files_in(path, frozenset()))
    except OSError:
        return None
    found = {os.path.relpath(file, path): here.readable_digest(file) for file in files}
    return None if None in found.values() else action_key("folder", found)


def _files_in(folder: str, above: frozenset[str]) -> Iterator[str]:
    """Every file in a folder; a link to a folder that it lies in is left out.

    Raises:
        OSError: a folder cannot be read.
    """
    above |= {os.path.realpath(folder)}
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if not entry.is_dir():
                yield entry.path
            elif entry.name != _DERIVED and os.path.realpath(entry.path) not in above:
                yield from _files_in(entry.path, above)


def call(layout: Layout | GenieLayout, task: str, limit_s: int) -> dict[str, Any]:
    """How the tools of a task run, as JSON values; nothing of it changes what they make."""
    return {
        "label": task,
        "log": layout.log(task),
        "work": layout.work(task),
        "limit_s": limit_s,
        "live": doit.get_var("live", "0") not in ("0", "", "no", "false"),
    }


@dataclass(frozen=True)
class Tools:
    """Tools that run in some stage.

    Attributes:
        key: the part of a key that says which they are.
        stamps: of their files, as they were when `key` was made.
        known: whether `key` covers all that decides what they make.
    """

    key: Mapping[str, object]
    stamps: Stamps
    known: bool

    def __or__(self, other: Tools) -> Tools:
        """Both of them."""
        return Tools(
            {**self.key, **other.key},
            {**self.stamps, **other.stamps},
            self.known and other.known,
        )


#: What the wheels do needs no tools.
NONE = Tools({}, {}, True)


def mnn_tools(job: Job) -> Tools:
    """The tools in MNN's build folder."""
    folder = job.pipeline.toolchain.mnn_path
    assert folder is not None  # the pipeline was checked
    return _once(job, MNN, folder, _mnn)


def sdk_tools(job: Job) -> Tools:
    """The tools and libraries of the SDK."""
    root = job.pipeline.toolchain.qnn_sdk_root
    assert root is not None  # the pipeline was checked
    return _once(job, SDK, root, _sdk)


def compiler_tools(job: Job) -> Tools:
    """What makes a model library: the SDK, and the compiler that it runs."""
    return sdk_tools(job) | _once(job, CXX, Path(), _compiler)


def chain_tools(job: Job) -> Tools:
    """All tools that any stage of an export runs."""
    chain = job.pipeline.toolchain
    found = mnn_tools(job) if "external" in (chain.io, chain.partition) else NONE
    return found | compiler_tools(job) if chain.link == "external" else found


def _once(job: Job, kind: str, folder: Path, look: Callable[[Path], Tools]) -> Tools:
    """Tools are looked at once per command, however many tasks they run in."""
    more, seen = job.pipeline.toolchain.tools, session.current().tools
    if (kind, folder, more) not in seen:
        found = look(folder)
        seen[kind, folder, more] = found if more is None else _with(found, more)
    return seen[kind, folder, more]


def _with(found: Tools, more: Iterable[str]) -> Tools:
    """Tools of which the pipeline says what else they use: then that is all."""
    from mnnqnn_tasks.toolchain.external.stages import stamps

    # Of folders, which may hold a whole SDK, the stamps are not worth their time.
    before = stamps(path for path in more if os.path.isfile(path))
    digests = [digest_of(path) for path in more]
    return Tools({**found.key, "tools": digests}, {**found.stamps, **before}, None not in digests)


def _mnn(folder: Path) -> Tools:
    from mnnqnn_tasks.toolchain.external import mnnbuild

    files, known = mnnbuild.consists_of(folder)
    return _tools(MNN, "", files, folder, known)


def _sdk(root: Path) -> Tools:
    from mnnqnn_tasks.toolchain.external.sdk import Sdk

    sdk = Sdk(root)
    files, known = sdk.consists_of()
    text = f"QAIRT SDK {sdk.version() or 'of an unknown version'}, "
    return _tools(SDK, text, files, root, known)


def _compiler(_: Path) -> Tools:
    from mnnqnn_tasks.toolchain.external import loads

    path = shutil.which(CXX)
    if path is None:
        return Tools({CXX: None}, {}, True)  # the SDK's tool will say so, if it needs one
    program = Path(os.path.realpath(path))
    loaded = loads.libraries(program)
    return _tools(CXX, "", [program, *(loaded or ())], program.parent, loaded is not None)


def _tools(kind: str, text: str, files: Sequence[Path], folder: Path, known: bool) -> Tools:
    """Tools of these files; a missing one is for the task to meet.

    Names count from ``folder``; of a file elsewhere only the last part is one.
    """
    from mnnqnn_tasks.toolchain.external.stages import stamps

    here = session.current()
    before = stamps(map(str, files))
    named: dict[str, list[str]] = {}
    for path in files:
        inside = path.is_relative_to(folder)
        name = str(path.relative_to(folder)) if inside else path.name
        digest = here.readable_digest(str(path))
        known = known and digest is not None
        named.setdefault(name, []).append(digest or "")
    value = action_key(kind, {name: sorted(digests) for name, digests in named.items()})[:16]
    return Tools({kind: text + value}, before, known)
