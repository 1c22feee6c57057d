"""command doit why - say what a run would do, and why"""

from __future__ import annotations

from doit.control import TaskControl

from mnnqnn_tasks.tasks import names, session
from mnnqnn_tasks.tasks.anywhere import TaskCommand
from mnnqnn_tasks.tasks.fresh import explain


class Why(TaskCommand):
    """Prints the tasks that are not fresh; runs nothing."""

    doc_purpose = "say which tasks would run, and why"
    doc_usage = "[TASK ...]"
    doc_description = (
        "Looks at what is on the disk now. Tasks that only follow from these are not listed: "
        "whether they run depends on what the listed ones make."
    )

    def _execute(self, pos_args: list[str]) -> int:
        tasks = TaskControl(self.task_list).tasks  # which finds out who makes whose inputs
        selected = names.expand(self.sel_tasks or tasks, tasks)
        stale = 0
        for task in names.reach(tasks, selected):
            if session.current().is_group(task.name) or not task.actions:
                continue
            status = self.dep_manager.get_status(task, tasks)
            if status.status == "up-to-date":
                continue
            stale += 1
            reason = status.get_error_message() or explain(task)
            self.say(f"{task.name}: {reason}")
        if not stale:
            self.say("nothing would run")
        return 0
