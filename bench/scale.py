"""CPU and memory of finding nothing to do, for more and more models.

A synthetic model of 25 layers, so that five targets make 205 tasks, is exported.  The others
are copies of it under other names, with their build folders and what the journal says of
them: to a run that is the same as if it had exported them.  Growth is linear if the CPU
time per task stays what it is.

``export_qnn`` and ``ci_plan`` are measured twice: as any run after the first one meets
them, and without the seals, which says what it costs to ask every task.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import common

#: Sizes measured unless --models says otherwise.
_SIZES = (10, 50, 200)

#: At most so much CPU (s) and memory (MB) at so many models, with seals.
_CPU, _PEAK, _AT = 3.0, 300.0, 50

_SOCS = ((57, "v75"), (69, "v79"), (43, "v73"), (36, "v69"), (87, "v81"))

#: Younger files are read again by every run, see ``mnnqnn_tasks/cache/statcache.py``.
_YOUNG = 2.1


def copy(project: common.Project, name: str) -> Iterator[str]:
    """Copy the exported model ``m000`` and all that was made of it; the journal's lines.

    What was made are links: nothing writes to it where there is nothing to do.
    """
    shutil.copytree(project.root / "models" / "m000", project.root / "models" / name)
    for top in (project.build, project.dist):
        shutil.copytree(top / "m000", top / name, copy_function=os.link)
    for line in (project.build / ".mnnqnn" / "tasks.jsonl").read_text("utf-8").splitlines():
        task, record = json.loads(line)
        stage, _, rest = task.partition(":")
        if rest.split(":")[0] == "m000" and record is not None:
            named = ":".join((stage, name, *rest.split(":")[1:]))
            yield json.dumps([named, record], ensure_ascii=False) + "\n"


def grow(project: common.Project, begin: int, end: int) -> None:
    """Add the models ``begin`` to ``end`` - 1."""
    made = [line for i in range(begin, end) for line in copy(project, f"m{i:03}")]
    with open(project.build / ".mnnqnn" / "tasks.jsonl", "a", encoding="utf-8") as stream:
        stream.writelines(made)
    time.sleep(_YOUNG)


def measure(project: common.Project, models: int, targets: int) -> int:
    """Print four lines for a size; returns the exit code, 1 when something is over its limit."""
    seals = project.build / ".mnnqnn" / "seals"
    code = 0
    for sealed in (False, True):
        for name in ("export_qnn", "ci_plan"):
            if not sealed:
                shutil.rmtree(seals, ignore_errors=True)
            arguments = ("ci_plan", "--json") if name == "ci_plan" else (name,)
            run = project.doit(*arguments, cores=1)
            if name == "ci_plan":
                parts = json.loads(run.output)["parts"]
                idle = [part["state"] for part in parts] == ["fresh"] * models * targets
            else:
                idle = run.output.startswith("0 run, ")
                tasks = int(run.output.rsplit(" up to date", 1)[0].split()[-1])
            over = sealed and models == _AT and (run.cpu > _CPU or run.peak_mb > _PEAK)
            limit = f" (at most {_CPU:g} s, {_PEAK:g} MB)" if sealed and models == _AT else ""
            print(
                f"{name}{'' if sealed else ', every task asked'}: {models} models, {tasks} tasks: "
                f"{run.cpu:.2f} s CPU, {run.cpu / tasks * 1e3:.3f} ms a task, "
                f"peak {run.peak_mb:.0f} MB{limit} "
                f"{'NOT FRESH' if not idle else 'OVER THE LIMIT' if over else 'ok'}",
                flush=True,
            )
            code |= over or not idle
        if not sealed:
            project.doit("export_qnn", cores=1)  # writes the seals
    return code


def main() -> int:
    """Measure every size."""
    parser = common.parser(__doc__, common.DEMO)
    parser.add_argument("--models", type=int, nargs="+", default=_SIZES, help="sizes")
    parser.add_argument("--layers", type=int, default=25, help="layers of the synthetic model")
    options = parser.parse_args()
    code = 0
    with common.project(options.model, options.chunk) as project:
        script = Path(__file__).with_name("deepen.py")
        given = ["--layers", str(options.layers)]
        first = project.root / "models" / "m000"
        first.parent.mkdir()
        subprocess.run([sys.executable, script, options.model, first, *given], check=True)
        project.models = [{"path": "../models/*", "chunk_sizes": [options.chunk]}]
        project.targets = [{"name": a, "soc_id": s, "dsp_arch": a} for s, a in _SOCS]
        project.write()
        project.doit("export_qnn")
        there = 1
        for size in sorted(options.models):
            grow(project, there, size)
            there = max(there, size)
            project.doit("export_qnn")  # digests of the copies, and the page cache
            code |= measure(project, there, len(_SOCS))
    return code


if __name__ == "__main__":
    sys.exit(main())
