"""First step of the server process: a larger stack, then `mnnqnn_tasks.qnn.server`.

Imports next to nothing, because raising the limit means starting the program again.
"""

import os
import resource
import sys

#: QNN's graph preparation recurses.  The limit at exec is also what the library's own
#: threads get, so it is raised before Python starts for good.
STACK_BYTES = 256 << 20


def raise_stack_limit() -> None:
    """Start this program again with a larger stack, where the hard limit allows one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
        os.execv(sys.executable, sys.orig_argv)


def main() -> None:
    """Run the server."""
    raise_stack_limit()
    from mnnqnn_tasks.qnn.server import main

    main()
