"""Task names as people type them: which exist, and which one was meant."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from doit.cmd_base import Command, DoitCmdBase
from doit.exceptions import InvalidCommand
from doit.task import Task

from mnnqnn_tasks.spec.check import nearest
from mnnqnn_tasks.tasks import session
from mnnqnn_tasks.tasks.session import GENIE_STAGES, STAGES

#: Stages whose tasks follow from the cut.
PLANNED = ("translate", "compile", "link", "bundle")


def loading_command() -> Any:
    """The doit command that is loading the tasks, ``None`` outside of one.

    doit tells a task creator neither the command nor the names on the command line; the
    command is the ``self`` of a frame above.
    """
    frame = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Command) and hasattr(found, "loader"):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None


def loading_option(name: str) -> Any:
    """The value of an option of the command that is loading the tasks, ``None`` outside."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is DoitCmdBase.execute.__code__:
            return frame.f_locals["params"].get(name)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _commands() -> set[str]:
    """Names that could stand where a task's does: ``doit NAME`` runs a command or a task."""
    command = loading_command()
    run = command is not None and command.get_name() == "run"
    return set(getattr(command.loader, "cmd_names", ())) if run else set()


def unknown(name: str, known: Iterable[str], hint: str = "doit list --all") -> InvalidCommand:
    """The error for a name that nothing has."""
    near = nearest(name, known)
    meant = f"did you mean {near}? " if near else ""
    return InvalidCommand(f"there is no task {name!r}\n  to do: {meant}see `{hint}`")


@dataclass
class Pattern:
    """A pattern on the command line that may fit tasks that follow from a cut.

    doit looks for fitting names before anything runs.  A placeholder whose own name fits
    the pattern is found, and turns into a group of the real tasks after the cut.
    """

    text: str
    waiting: set[str]  # models whose cut may still bring a fitting task
    fits: bool = False

    def placeholder(self, model: str) -> str:
        """The name of the placeholder for ``model``, which the pattern fits."""
        plain = re.sub(r"\[(!?)(.)[^]]*\]", lambda m: "~" if m[1] else m[2], self.text)
        return plain.replace("*", f"*{model}*", 1)

    def members(self, model: str, known: Iterable[str]) -> list[str] | None:
        """The tasks of ``model`` that fit; ``None`` if no task of any model does."""
        found = [name for name in known if fnmatchcase(name, self.text)]
        self.fits = self.fits or bool(found)
        self.waiting.discard(model)
        return None if not self.fits and not self.waiting else found


def patterns(typed: Iterable[str], models: Collection[str], known: Iterable[str]) -> list[Pattern]:
    """The patterns among ``typed`` that may fit tasks of the cut of ``models``.

    Args:
        typed: names and patterns as typed.
        models: the models that will be cut.
        known: names of tasks that there are in any case.
    """
    names = list(known)
    found = []
    for text in typed:
        if "*" not in text:
            continue
        # What is left of a pattern when a beginning of it fits "link:MODEL:" can fit more.
        begins = [text[:end] for end in range(len(text) + 1)]
        waiting = {
            model
            for model in models
            if any(fnmatchcase(f"{stage}:{model}:", b) for stage in PLANNED for b in begins)
        }
        if waiting:
            found.append(Pattern(text, waiting, any(fnmatchcase(n, text) for n in names)))
    return found


def expand(typed: Iterable[str], tasks: Mapping[str, Task]) -> list[str]:
    """Names with every pattern replaced by the names of ``tasks`` that fit."""
    return [
        name
        for given in typed
        for name in ([t for t in tasks if fnmatchcase(t, given)] if "*" in given else [given])
    ]


def reach(tasks: Mapping[str, Task], selected: Iterable[str]) -> Iterator[Task]:
    """The selected tasks and all that they depend on, each once, the nearest first.

    Like doit's ``tasks_and_deps_iter``, whose time grows with the square of their number.
    """
    waiting = deque(dict.fromkeys(selected))
    known = {*waiting}
    while waiting:
        task = tasks[waiting.popleft()]
        yield task
        for name in (*task.task_dep, *task.setup_tasks):
            if name not in known:
                known.add(name)
                waiting.append(name)


def members(name: str, tasks: Mapping[str, Task]) -> list[str]:
    """The tasks that a name stands for when something is deleted or forgotten.

    ``export_qnn`` and ``export_qnn:MODEL`` are everything that an export makes;
    ``export_qnn:MODEL:TARGET`` is what no other target needs; another group is what it
    holds.  Before a cut is known, the journal tells what a task of the cut stands for.
    """
    here = session.current()
    stage, *parts = name.split(":")
    if not here.is_group(name):
        job = here.job_of(name)
        if job is None or name not in tasks or tasks[name].loader is None:
            return [name]
        return [task for task in job.place.journal.records if f"{task}:".startswith(f"{name}:")]
    if stage not in session.EXPORTS:
        return [m for part in tasks[name].task_dep for m in members(part, tasks)]
    kind = session.Job if stage == "export_qnn" else session.GenieJob
    ours = [t for t in tasks if isinstance(here.job_of(t), kind) and not here.is_group(t)]
    if len(parts) > 1:
        ours = [task for task in ours if here.is_of_target(task)]
    return [
        member
        for task in ours
        if task.split(":")[1 : len(parts) + 1] == parts
        for member in members(task, tasks)
    ]


def check_names(names: Iterable[str], known: Collection[str], other: Collection[str]) -> None:
    """Refuse names and patterns that fit no task.

    Args:
        names: as typed.
        known: the names of our tasks.
        other: base names that task creators of the user's own may make tasks of; a
            name that starts with one of them is theirs to judge.

    Raises:
        InvalidCommand: with the nearest name.
    """
    for name in names:
        if name in known or name.split(":")[0] in other:
            continue
        if "*" in name:
            if any(fnmatchcase(task, name) for task in known) or other:
                continue
        elif other and name.split(":")[0] not in (*STAGES, *GENIE_STAGES):
            continue
        real = {task for task in known if "*" not in task}  # no placeholders of patterns
        raise unknown(name, {*real, *other, *_commands()})
