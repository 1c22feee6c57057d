"""command doit forget - doit's own, and it knows what our groups stand for"""

from __future__ import annotations

from doit.cmd_base import check_tasks_exist, subtasks_iter
from doit.cmd_forget import Forget as DoitForget
from doit.control import TaskControl

from mnnqnn_tasks.tasks import names, session


class Forget(DoitForget):  # type: ignore[misc]
    """Forgets that tasks ran; a name of a group stands for all that is in it."""

    def _execute(
        self, forget_sub: bool, forget_disable_default: bool, forget_all: bool
    ) -> int | None:
        no_names = self.sel_default_tasks and forget_disable_default
        if forget_all or no_names or not session.current().every_job():
            super()._execute(forget_sub, forget_disable_default, forget_all)
            return 0
        tasks = TaskControl(self.task_list).tasks  # which finds out who makes whose inputs
        wanted = names.expand(self.sel_tasks, tasks)
        check_tasks_exist(tasks, wanted)
        if forget_sub:
            chosen = [task.name for task in names.reach(tasks, wanted)]
        else:
            chosen = [
                each
                for name in wanted
                for each in (name, *(t.name for t in subtasks_iter(tasks, tasks[name])))
            ]
        members = dict.fromkeys(m for name in chosen for m in names.members(name, tasks))
        known = [name for name in members if self.dep_manager.backend.in_(name)]
        for name in known:
            self.dep_manager.remove(name)
            self.outstream.write(f"forgetting {name}\n")
        if not known:
            self.outstream.write("nothing to forget\n")
        self.dep_manager.close()
        return 0
