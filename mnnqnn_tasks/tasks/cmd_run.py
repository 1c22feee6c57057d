"""command doit run - as doit's own, with exit codes that tell what went wrong"""

from __future__ import annotations

import functools
from typing import Any

from doit import cmd_run

from mnnqnn_tasks.tasks import session

#: Exit codes of doit: a task failed; an error in a task or in doit itself.
FAILED, ERROR = 1, 2


class Run(cmd_run.Run):  # type: ignore[misc]
    """Runs tasks.

    doit counts a task that waits for a failed one as an error.  Here the code is 1 if
    tasks failed, and what does not depend on them was made; 2 stays for what should not
    happen.
    """

    @functools.wraps(cmd_run.Run._execute)  # doit reads the options' names off it
    def _execute(self, *args: Any, **options: Any) -> Any:
        code = super()._execute(*args, **options)
        return FAILED if code == ERROR and session.current().only_failures else code
