"""command doit verify_qnn - compare the exported graphs with the CPU model"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doit.cmd_base import DoitCmdBase
from doit.exceptions import InvalidCommand

from mnnqnn_tasks.errors import MnnqnnError, VerifyError
from mnnqnn_tasks.spec.check import nearest
from mnnqnn_tasks.spec.pipeline import Target
from mnnqnn_tasks.tasks import session
from mnnqnn_tasks.tasks.actions import internal_error
from mnnqnn_tasks.tasks.fresh import explain
from mnnqnn_tasks.tasks.graph import options
from mnnqnn_tasks.tasks.session import Job

_TEXT = {
    "name": "text",
    "long": "text",
    "type": str,
    "default": "",
    "help": "use the activations of this text, or of the file of this name",
}
_PROMPT = {
    "name": "prompt",
    "long": "prompt",
    "type": str,
    "default": "",
    "help": "use this user message and the CPU's answer, and compare every next token",
}
_SHAPES = {
    "name": "shapes",
    "long": "shape",
    "type": list,
    "default": [],
    "help": "only this sequence length; may be given again",
}
_JOBS = {
    "name": "jobs",
    "long": "jobs",
    "short": "j",
    "type": int,
    "default": 2,
    "help": "how many sequence lengths run at once [default: %(default)s]",
}


class VerifyQnn(DoitCmdBase):  # type: ignore[misc]
    """Runs every graph on the host emulator; exit code 1 under a threshold."""

    name = "verify_qnn"
    takes_tasks = False  # names on the command line are models
    doc_purpose = "compare exported graphs with the CPU model on the host emulator"
    doc_usage = "[MODEL[:TARGET] ...]"
    doc_description = (
        "Verifies what `export_qnn` made, prints a table and writes build/MODEL/verify/TARGET.json."
    )
    cmd_options = (_TEXT, _PROMPT, _SHAPES, _JOBS)

    def _execute(
        self, text: str, prompt: str, shapes: list[str], jobs: int, pos_args: list[str]
    ) -> int:
        worst = 0
        for job, target in list(_chosen(pos_args)):
            try:
                self._require_fresh(job, target)
                _verify(job, target, text, prompt, shapes, jobs)
            except VerifyError as error:
                sys.stderr.write(f"{error}\n")
                worst = max(worst, 1)
            except MnnqnnError as error:
                sys.stderr.write(f"ERROR: {error}\n")
                worst = 3
            except Exception as error:
                sys.stderr.write(f"ERROR: {internal_error(error)}\n")
                worst = 3
        return worst

    def _require_fresh(self, job: Job, target: Target) -> None:
        """Verify what the pipeline says, not what an older run left.

        Raises:
            VerifyError: when the export is missing or not up to date.
        """
        tasks = {task.name: task for task in self.task_list}
        pending = [f"bundle:{job.name}:{target.name}", f"io:{job.name}"]
        pending = [pending[0], *(t for t in tasks if t.startswith(pending[1] + ":"))]
        seen: set[str] = set()
        while pending:
            task = tasks[pending.pop()]
            if task.name in seen:
                continue
            seen.add(task.name)
            pending += task.task_dep
            made_by = {t: name for name, other in tasks.items() for t in other.targets}
            pending += [made_by[dep] for dep in task.file_dep if dep in made_by]
            if session.current().is_group(task.name):
                continue
            status = self.dep_manager.get_status(task, tasks)
            if status.status != "up-to-date":
                raise VerifyError(
                    f"{job.name} is not exported for {target.name}",
                    why=f"{task.name}: {status.get_error_message() or explain(task)}",
                    todo=f"doit export_qnn:{job.name}:{target.name}",
                )


def _chosen(wanted: list[str]) -> Iterator[tuple[Job, Target]]:
    pairs = {
        f"{job.name}:{target.name}": (job, target)
        for job in session.current().jobs.values()
        for target in job.model.targets
    }
    for name in wanted:
        if name not in session.current().jobs and name not in pairs:
            known = [*session.current().jobs, *pairs]
            near = nearest(name, known)
            raise InvalidCommand(
                f"there is no model or target {name!r}\n"
                f"  to do: {f'did you mean {near}? ' if near else ''}there are {', '.join(known)}"
            )
    for name, pair in pairs.items():
        if not wanted or name in wanted or pair[0].name in wanted:
            yield pair


def _verify(job: Job, target: Target, text: str, prompt: str, shapes: list[str], jobs: int) -> None:
    from mnnqnn_tasks.toolchain.native import target_options
    from mnnqnn_tasks.verify import run

    subject = run.Subject(
        name=job.name,
        target=target.name,
        build=Path(job.layout.build),
        model_dir=job.model.path,
        shapes=job.model.shapes,
        options=target_options(options(target)),
    )
    chosen: dict[str, Any] = {"text": text or None, "prompt": prompt or None, "jobs": jobs}
    run.run(subject, run.Options(shapes=tuple(map(_length, shapes)), **chosen))


def _length(text: str) -> int:
    if not text.isdigit():
        raise VerifyError(f"{text!r} is no sequence length", todo="--shape takes a number")
    return int(text)
