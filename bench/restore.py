"""Take a whole bundle from the local cache: wall time over the cold export's.

The build folder and the bundle are gone, the model stands where it was: what a branch
switch, `doit clean` or a fresh build folder costs.
"""

from __future__ import annotations

import shutil
import sys

import common


def main() -> int:
    """Cold export into an empty cache, then the same from the cache; compares the bytes."""
    options = common.parser(__doc__).parse_args()
    with common.project(options.model, options.chunk) as project:
        cold = project.doit("export_qnn")
        project.doit("export_qnn")
        before = common.tree(project.dist)
        shutil.rmtree(project.build)
        shutil.rmtree(project.dist)
        restored = project.doit("export_qnn")
        if common.tree(project.dist) != before or (project.build / "m").exists():
            sys.exit("the bundle is another one, or was built")
        return common.say(
            f"restore {options.model.name}, wall / cold wall",
            restored.wall / cold.wall,
            0.03,
            [("restored", f"{restored.wall:.2f} s"), ("cold", f"{cold.wall:.2f} s")],
        )


if __name__ == "__main__":
    sys.exit(main())
