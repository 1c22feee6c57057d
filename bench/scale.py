"""CPU and memory of finding nothing to do, for more and more models.

Three tiny models with weights of their own are exported for five targets.  The others are
copies of them under other names, with their build folders and what the journal says of
them: to a run that is the same as if it had exported them.  Growth is linear if the CPU
time per task stays what it is.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import common

#: Models really exported, and the sizes measured unless --models says otherwise.
_REAL, _SIZES = 3, (3, 10, 50)

_SOCS = ((57, "v75"), (69, "v79"), (43, "v73"), (36, "v69"), (87, "v81"))


def own_weights(model: Path, seed: int) -> None:
    """Change one weight in every 4 KiB of the model's weight file."""
    path = model / "llm.mnn.weight"
    data = bytearray(path.read_bytes())
    for at in range(2048, len(data), 4096):
        data[at] ^= 1 + seed % 3
    path.write_bytes(data)


def copy(project: common.Project, source: str, name: str) -> list[str]:
    """A copy of an exported model and of all that was made of it; its journal lines."""
    for top in (project.root / "models", project.build, project.dist):
        shutil.copytree(top / source, top / name, copy_function=shutil.copy2)
    lines = (project.build / ".mnnqnn" / "tasks.jsonl").read_text("utf-8").splitlines()
    made = []
    for line in lines:
        task, record = json.loads(line)
        stage, _, rest = task.partition(":")
        if rest.split(":")[0] == source and record is not None:
            named = ":".join((stage, name, *rest.split(":")[1:]))
            made.append(json.dumps([named, record], ensure_ascii=False))
    return made


def main() -> int:
    """Print a line per size."""
    parser = common.parser(__doc__, common.DEMO)
    parser.add_argument("--models", type=int, nargs="+", default=_SIZES, help="sizes")
    options = parser.parse_args()
    with common.project(options.model, options.chunk) as project:
        top = project.root / "models"
        for i in range(_REAL):
            own = top / f"m{i:03}"
            shutil.copytree(options.model, own, copy_function=shutil.copyfile)
            own_weights(own, i)
        project.models = [{"path": "../models/*", "chunk_sizes": [options.chunk]}]
        project.targets = [{"name": a, "soc_id": s, "dsp_arch": a} for s, a in _SOCS]
        project.write()
        project.doit("export_qnn")
        there = _REAL
        for size in sorted(options.models):
            made: list[str] = []
            for i in range(there, size):
                made += copy(project, f"m{i % _REAL:03}", f"m{i:03}")
            there = max(there, size)
            with open(project.build / ".mnnqnn" / "tasks.jsonl", "a", encoding="utf-8") as stream:
                stream.writelines(line + "\n" for line in made)
            project.doit("export_qnn")  # digests of the copies, and the page cache
            run = project.doit("export_qnn", cores=1)
            tasks = int(run.output.rsplit(" up to date", 1)[0].split()[-1])
            print(
                f"scale {there} models, {tasks} tasks: {run.cpu:.2f} s CPU, "
                f"{run.cpu / tasks * 1e3:.3f} ms a task, peak {run.peak_mb:.0f} MB, "
                f"{'nothing to do' if run.output.split()[0] == '0' else 'NOT FRESH'}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
