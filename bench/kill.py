"""SIGKILL at ten random moments of an export, then a rerun: is the bundle the same?

Prints how many of the ten bundles differ from an undisturbed one, byte by byte.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import common


def main() -> int:
    """Kill and rerun; exit code 1 if any bundle differs."""
    parser = common.parser(__doc__, common.DEMO)
    parser.set_defaults(chunk=16)
    parser.add_argument("--times", type=int, default=10, help="how many exports to kill")
    parser.add_argument("--seed", type=int, default=None, help="repeats the moments of a run")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    chance = random.Random(seed)
    with common.project(options.model, options.chunk) as project:
        wall = project.doit("export_qnn").wall
        want = common.tree(project.dist)
        differing = sum(
            not _survives(project, want, chance.uniform(0, wall)) for _ in range(options.times)
        )
        return common.say(
            f"kill {options.model.name}, bundles that differ",
            differing / options.times,
            0,
            [("kills", str(options.times)), ("seed", str(seed)), ("files", str(len(want)))],
        )


def _survives(project: common.Project, want: dict[str, str], delay: float) -> bool:
    for path in project.root.iterdir():
        if path.name not in ("dodo.py", "pipelines", "model"):
            _remove(path)
    process = project.start("export_qnn")
    try:
        process.wait(delay)
        moment = "it had ended"
    except subprocess.TimeoutExpired:
        moment = "killed"
    finally:
        common.kill_group(process)
    project.doit("export_qnn")
    got = common.tree(project.dist)
    wrong = sorted(name for name in want.keys() | got.keys() if want.get(name) != got.get(name))
    said = f"DIFFERENT: {' '.join(wrong)}" if wrong else "same"
    print(f"  after {delay:.2f} s ({moment}): {said}", flush=True)
    return not wrong


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


if __name__ == "__main__":
    sys.exit(main())
