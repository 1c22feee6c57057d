"""QNN is asked about every op before graphs from elsewhere are linked.

Their sources ask for it (``DO_GRAPH_NODE_VALIDATIONS 1``), and MNN never does: what QNN
refuses would show up late, as a graph that cannot be prepared, without the op.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mnnqnn_tasks.errors import QnnError
from mnnqnn_tasks.qnn import run
from mnnqnn_tasks.qnn.options import TargetOptions


def refuse_bad_ops(nets: Sequence[Path], options: TargetOptions) -> None:
    """Ask QNN about every op of the graphs in ``nets``.

    Raises:
        QnnError: it refuses one; the error names graph and op, and how many more.
        NetFileError, NativeCrash, ToolMissing: it cannot be asked.
    """
    refused = [
        (net, verdict)
        for net, verdicts in zip(nets, run.validate(nets, options), strict=True)
        for verdict in verdicts
        if not verdict.ok
    ]
    if not refused:
        return
    net, first = refused[0]
    graph = net.name.removesuffix("_net.json")
    raise QnnError(
        f"QNN refuses op {first.node} ({first.type}) of {graph}",
        where=str(net),
        why=first.reason,
        todo="leave the op to the CPU (skips), or have the model translated natively",
        tail="\n".join(
            f"refused as well: {verdict.node} ({verdict.type}) of "
            f"{path.name.removesuffix('_net.json')}"
            for path, verdict in refused[1:]
        ),
    )
