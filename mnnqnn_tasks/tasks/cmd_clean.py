"""command doit clean - doit's own, and it knows our groups and what earlier pipelines left"""

from __future__ import annotations

import sys
from typing import Any

import doit
from doit.cmd_clean import Clean as DoitClean
from doit.exceptions import InvalidCommand

from mnnqnn_tasks.tasks import actions, leftovers, names, report, session

_OLD = {
    "name": "old",
    "long": "old",
    "type": bool,
    "default": False,
    "help": "only what was made for models, targets and chunk sizes that there are no more",
}


class Clean(DoitClean):  # type: ignore[misc]
    """Deletes what tasks made; a name of a group stands for all that is in it."""

    cmd_options = (*DoitClean.cmd_options, _OLD)

    def _execute(
        self,
        dryrun: bool,
        cleandep: bool,
        cleanall: bool,
        cleanforget: bool,
        old: bool,
        pos_args: list[str] | None = None,
    ) -> int:
        here = session.current()
        if not here.every_job():
            super()._execute(dryrun, cleandep, cleanall, cleanforget, pos_args)
            return 0
        if old and doit.get_var("pipeline") is not None:
            raise InvalidCommand(
                "--old is about all pipelines, and pipeline=... chooses one\n"
                "  to do: leave pipeline=... out"
            )
        tasks = {task.name: task for task in self.task_list}
        typed = list(pos_args or ())
        if not old:
            wanted = [m for name in names.expand(typed, tasks) for m in names.members(name, tasks)]
            chosen = list(dict.fromkeys(name for name in wanted if name in tasks))
            if chosen or not typed:
                super()._execute(dryrun, cleandep, cleanall, cleanforget, chosen)
        if old or cleanall or not typed or not {*session.EXPORTS}.isdisjoint(typed):
            leftovers.remove(dryrun)
            if not old:
                actions.remove([report.path(place) for place in here.places.values()], dryrun)
        if not here.removed and not here.problems:
            self.outstream.write("nothing to remove\n")
        for problem in here.problems.values():
            sys.stderr.write(f"ERROR: {problem}\n")
        return 2 if here.problems else 0

    def clean_tasks(self, tasks: list[Any], dryrun: bool, cleanforget: bool) -> None:
        """As doit's, but groups, which have nothing to clean, are skipped."""
        groups = session.current().groups
        super().clean_tasks([t for t in tasks if t.name not in groups], dryrun, cleanforget)
