"""Add a target to an exported model: wall time of the run over its own links' wall time.

The links' wall time runs from the first link's start to the last one's end, as the link
processes themselves noted it in the same run.
"""

from __future__ import annotations

import sys

import common


def main() -> int:
    """Export for one target, add another, export again."""
    options = common.parser(__doc__).parse_args()
    with common.project(options.model, options.chunk) as project:
        project.doit("export_qnn")
        first = len(project.times())
        project.targets.append({"name": "t69", "soc_id": 69, "dsp_arch": "v79"})
        project.write()
        run = project.doit("export_qnn")
        links = [t for t in project.times()[first:] if t.call == "link"]
        if not links:
            sys.exit("the second target linked nothing")
        wall = max(t.end for t in links) - min(t.begin for t in links)
        return common.say(
            f"second target {options.model.name}, wall / links' wall",
            run.wall / wall,
            1.15,
            [
                ("wall", f"{run.wall:.1f} s"),
                ("links", f"{wall:.1f} s for {len(links)}"),
            ],
        )


if __name__ == "__main__":
    sys.exit(main())
