"""What all doubles of external tools share: they note every call, and misbehave on demand.

A double stands in for a program that cannot be here: MNN's ``compilefornpu`` needs
Qualcomm's headers to be built, the SDK's tools come with an account.  It does with this
project's own stages what the program would do with its own, and fails as
``compilefornpu`` and the SDK's tools were seen or reported to fail.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(sys.argv[0]).resolve()
NAME = HERE.name


def main(work: Callable[[list[str], str], int], usage: str) -> None:
    """Note the call, then do what ``modes.json`` beside the double says.

    Args:
        work: gets the arguments and the mode; gives the exit code.
        usage: printed without arguments.
    """
    if len(sys.argv) == 1:
        print(usage)
        sys.exit(1)
    call = {
        "tool": NAME,
        "argv": sys.argv[1:],
        "cwd": os.getcwd(),
        "stack": resource.getrlimit(resource.RLIMIT_STACK)[0],
        "sdk": os.environ.get("QNN_SDK_ROOT"),
    }
    with open(HERE.parent / "calls.jsonl", "a") as log:
        log.write(json.dumps(call) + "\n")
    modes = HERE.parent / "modes.json"
    mode = json.loads(modes.read_text()).get(NAME, "") if modes.exists() else ""
    print(f"{NAME}: begin", flush=True)
    if mode == "segv":
        print("about to read through a null pointer", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if mode == "hang":
        if os.fork() == 0:  # tools start others: make, clang
            time.sleep(3600)
        time.sleep(3600)
    if mode == "exit":
        print("something is wrong", file=sys.stderr)
        sys.exit(7)
    code = 0 if mode == "nothing" else work(sys.argv[1:], mode)
    print(f"{NAME}: end")
    sys.exit(code)
