"""Cold `doit export_qnn` of one model for one target: wall time over the floor, and memory.

The floor is what no exporter that calls this library can go below on this machine: the
CPU seconds that the library itself spent in finalize and serialize, in the same run,
over the number of cores.  Peak memory is the largest resident size of any one process
of the run, as the kernel counted it.
"""

from __future__ import annotations

import sys

import common


def main() -> int:
    """Export from nothing; exit code 1 if a limit is passed."""
    parser = common.parser(__doc__)
    parser.add_argument("--cores", type=int, default=2, help="processes at once")
    options = parser.parse_args()
    with common.project(options.model, options.chunk) as project:
        run = project.doit("export_qnn", cores=options.cores)
        times = [t for t in project.times() if t.call in ("finalize", "serialize")]
        library = sum(t.cpu for t in times)
        floor = library / options.cores
        slow = common.say(
            f"cold export {options.model.name}, wall / floor",
            run.wall / floor,
            1.8,
            [
                ("wall", f"{run.wall:.1f} s"),
                ("floor", f"{floor:.1f} s"),
                ("library CPU", f"{library:.1f} s in {len(times)} calls"),
                ("all CPU", f"{run.cpu:.1f} s"),
                ("cores", str(options.cores)),
            ],
        )
        large = common.say(
            f"cold export {options.model.name}, peak memory of a process, GB",
            run.peak_mb / 1000,
            1.0,
            [],
        )
        return max(slow, large)


if __name__ == "__main__":
    sys.exit(main())
