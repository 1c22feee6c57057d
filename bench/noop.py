"""CPU seconds of a second run of `doit export_qnn` with nothing to do.

The demo may take 0.5 s, a model of SmolLM2's size 1.0 s.
"""

from __future__ import annotations

import sys
from pathlib import Path

import common

#: Model, chunk size and CPU seconds allowed.
_CASES = ((common.DEMO, 16, 0.5), (common.SMOLLM2, 128, 1.0))


def measure(model: Path, chunk: int, limit: float) -> int:
    """Export ``model``, export again, print the second run's CPU seconds."""
    with common.project(model, chunk) as project:
        cold = project.doit("export_qnn")
        project.doit("export_qnn")  # reads what the first run left in the page cache
        again = project.doit("export_qnn")
        return common.say(
            f"noop {model.name}, CPU s",
            again.cpu,
            limit,
            [("wall", f"{again.wall:.2f} s"), ("cold CPU", f"{cold.cpu:.1f} s")],
        )


def main() -> int:
    """Both models, or the one of --model held to the larger limit."""
    options = common.parser(__doc__, Path()).parse_args()
    if options.model == Path():
        return max(measure(*case) for case in _CASES if case[0].is_dir())
    return measure(options.model, options.chunk, 1.0)


if __name__ == "__main__":
    sys.exit(main())
