"""command doit verify_qnn - compare the exported graphs with the CPU model"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doit.exceptions import InvalidCommand

from mnnqnn_tasks.errors import MnnqnnError, VerifyError
from mnnqnn_tasks.spec.check import nearest
from mnnqnn_tasks.spec.pipeline import Target
from mnnqnn_tasks.tasks import exports, session
from mnnqnn_tasks.tasks.actions import internal_error
from mnnqnn_tasks.tasks.anywhere import TaskCommand
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
#: Options that move a threshold, by the field of `Thresholds` that they set.
_THRESHOLDS = tuple(
    {"name": name, "long": name.replace("_", "-"), "type": str, "default": "", "help": text}
    for name, text in (
        ("graph_snr_db", "lowest signal-to-noise ratio of a graph's output, dB [default: 50]"),
        ("graph_cosine", "lowest cosine where activations are 16-bit [default: 0.99]"),
        ("chain_cosine", "lowest cosine of the chain's logits [default: 0.999]"),
        ("chain_cosine_fixed", "the same where activations are 16-bit [default: 0.99]"),
    )
)


class VerifyQnn(TaskCommand):
    """Runs every graph on the host emulator; exit code 1 under a threshold."""

    name = "verify_qnn"
    takes_tasks = False  # names on the command line are models
    doc_purpose = "compare exported graphs with the CPU model on the host emulator"
    doc_usage = "[MODEL[:TARGET] ...]"
    doc_description = (
        "Verifies what `export_qnn` made, prints a table and writes build/MODEL/verify/TARGET.json."
    )
    cmd_options = (_TEXT, _PROMPT, _SHAPES, _JOBS, *_THRESHOLDS)

    def _execute(
        self,
        text: str,
        prompt: str,
        shapes: list[str],
        jobs: int,
        graph_snr_db: str,
        graph_cosine: str,
        chain_cosine: str,
        chain_cosine_fixed: str,
        pos_args: list[str],
    ) -> int:
        # doit passes parameters by the names in this signature.
        thresholds = {
            "graph_snr_db": graph_snr_db,
            "graph_cosine": graph_cosine,
            "chain_cosine": chain_cosine,
            "chain_cosine_fixed": chain_cosine_fixed,
        }
        worst = 0
        for job, target in list(_chosen(pos_args)):
            try:
                self._require_fresh(job, target)
                _verify(job, target, text, prompt, shapes, jobs, thresholds)
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
        made_by = {t: name for name, other in tasks.items() for t in other.targets}
        # A bundle from the cache is right without the graphs that it was linked from.
        whole = exports.is_whole(job, target)
        pending = [("link" if whole else "bundle") + f":{job.name}:{target.name}"]
        seen: set[str] = set()
        while pending:
            task = tasks[pending.pop()]
            if task.name in seen:
                continue
            seen.add(task.name)
            pending += task.task_dep
            pending += [made_by[dep] for dep in task.file_dep if dep in made_by]
            if session.current().is_group(task.name):
                continue
            status = self.dep_manager.get_status(task, tasks)
            if status.status != "up-to-date":
                what = f"{job.name} is not exported for {target.name}"
                if whole:
                    what = f"the bundle came from the cache, the graphs of {job.name} did not"
                raise VerifyError(
                    what,
                    why=f"{task.name}: {status.get_error_message() or explain(task)}",
                    todo=f"doit {'link' if whole else 'export_qnn'}:{job.name}:{target.name}",
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


def _verify(
    job: Job,
    target: Target,
    text: str,
    prompt: str,
    shapes: list[str],
    jobs: int,
    thresholds: dict[str, str],
) -> None:
    from mnnqnn_tasks.toolchain.native import target_options
    from mnnqnn_tasks.verify import run
    from mnnqnn_tasks.verify.thresholds import Thresholds

    subject = run.Subject(
        name=job.name,
        target=target.name,
        build=Path(job.layout.build),
        model_dir=job.model.path,
        shapes=job.model.shapes,
        options=target_options(options(target)),
    )
    chosen: dict[str, Any] = {"text": text or None, "prompt": prompt or None, "jobs": jobs}
    limits = {name: _limit(name, value) for name, value in thresholds.items() if value}
    run.run(
        subject,
        run.Options(shapes=tuple(map(_length, shapes)), thresholds=Thresholds(**limits), **chosen),
        progress=_tell,
    )


def _tell(what: str) -> None:
    """One line that the next overwrites: a large model takes minutes."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{what}\r")
        sys.stderr.flush()


def _limit(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise VerifyError(f"{text!r} is no threshold", todo=f"--{name.replace('_', '-')} 0.99")
    return value


def _length(text: str) -> int:
    if not text.isdigit():
        raise VerifyError(f"{text!r} is no sequence length", todo="--shape takes a number")
    return int(text)
