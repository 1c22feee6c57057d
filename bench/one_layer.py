"""Change one layer's weight bytes and export again: wall time over the cold export's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import common

#: Prints offset and size of the weight of a convolution in the middle of the model.  It
#: runs in a process of its own, which keeps this one small.
_FIND = """
import sys
from mnnqnn_tasks.mnn import reader
ops = [op for op in reader.read(sys.argv[1]).oplists if op.type == "Convolution"]
layers = [op.main for op in ops if op.main.external is not None and len(op.main.external) > 1]
external = layers[len(layers) // 2].external
print(int(external[0]), int(external[1]))
"""


def main() -> int:
    """Cold export, edit, warm export."""
    options = common.parser(__doc__).parse_args()
    with common.project(options.model, options.chunk, copy=True) as project:
        model = Path(str(project.models[0]["path"]))
        cold = project.doit("export_qnn")
        project.doit("export_qnn")
        before = common.tree(project.dist)
        found = subprocess.run(
            [sys.executable, "-c", _FIND, str(model / "llm.mnn")],
            check=True,
            capture_output=True,
            text=True,
            cwd=common.REPO,
        )
        offset, size = map(int, found.stdout.split())
        _flip(model / "llm.mnn.weight", offset + size // 2)
        warm = project.doit("export_qnn")
        after = common.tree(project.dist)
        changed = [name for name in after if before.get(name) != after[name]]
        return common.say(
            f"one layer {options.model.name}, warm wall / cold wall",
            warm.wall / cold.wall,
            0.10,
            [
                ("warm", f"{warm.wall:.2f} s"),
                ("cold", f"{cold.wall:.2f} s"),
                ("changed", " ".join(changed) or "nothing"),
            ],
        )


def _flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 1]))


if __name__ == "__main__":
    sys.exit(main())
