"""A process between us and a tool: the tool and all that it starts ends with us.

Started as a program of its own, so that raising the stack limit and watching for our death
touch neither this process nor its threads.  Ends the way the tool ended: with its exit
code, or by its signal.
"""

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

#: Exit code when the tool cannot be started, as shells have it.
CANNOT_START = 127


def _start(stack: bool, command: list[str]) -> None:
    """Become the tool."""
    os.setpgid(0, 0)
    # Python ignores these two; a tool must not inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if stack:
        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))
    try:
        os.execv(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
        os._exit(CANNOT_START)


def main() -> None:
    """``guard.py PARENT STACK USED COMMAND...``: run the command, end when the parent does.

    The most memory that one of the tool's processes had goes to the descriptor USED, in bytes.
    """
    parent, stack, used = int(sys.argv[1]), sys.argv[2] == "1", int(sys.argv[3])
    command = sys.argv[4:]
    tool = 0

    def end(number: int, frame: object) -> None:
        if tool:
            _kill_group(tool)
            _kill_rest()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        os._exit(1)
    held = {signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, held)  # not between the fork and its result
    tool = os.fork()
    if tool == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
        os.close(used)
        _start(stack, command)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
    status = os.waitid(os.P_PID, tool, os.WEXITED | os.WNOWAIT)
    _kill_group(tool)  # what it left behind would keep its output open
    os.waitpid(tool, 0)
    _kill_rest()
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    os.write(used, str(most).encode())
    assert status is not None
    if status.si_code == os.CLD_EXITED:
        os._exit(status.si_status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if status.si_status != signal.SIGKILL:
        signal.signal(status.si_status, signal.SIG_DFL)
    os.kill(os.getpid(), status.si_status)
    os._exit(128 + status.si_status)


def _kill_group(tool: int) -> None:
    # Until the tool's first line has run, it has no group of its own.
    for kill in (os.killpg, os.kill):
        try:
            kill(tool, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _kill_rest() -> None:
    """End what left the tool's group: without its parent it has become ours."""
    while True:
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as stream:
                for child in stream.read().split():
                    os.kill(int(child), signal.SIGKILL)
            os.waitpid(-1, 0)
        except (OSError, ValueError):  # none is left, or the system does not tell
            return


if __name__ == "__main__":
    main()
