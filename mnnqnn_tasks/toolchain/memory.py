"""How much memory a stage may need, told from its inputs before it runs.

Cautious linear bounds over peaks that the kernel reported (``ru_maxrss`` of the process
that does the work; QNN 2.51.0, MNN 3.6.1, x86-64), in MB.

A link keeps several copies of every weight of every graph, shared or not, and tiles
activations; for some matrices it tries tilings in some 80 MB.  S is the bytes of static
tensors and A of all others, summed over graphs:

==========================================  =====  =====  ======  =======
binary (graphs by number of tokens)             S      A    peak    bound
==========================================  =====  =====  ======  =======
tiny, one layer (1)                           0.1    0.0      96      240
tiny, one layer (1, 16, 512, 1024)            0.2   10.3     154      267
tiny, one layer, 16-bit (1024)                0.1    7.2     114      258
SmolLM2, one layer (1)                        3.5    0.1     110      263
SmolLM2, one layer (512)                      3.5   27.7     214      332
SmolLM2, one layer (1, 16, 512)              10.6   28.6     251      381
SmolLM2, logits (1)                          28.3    0.4     274      425
SmolLM2, logits (1, 16)                      56.6    6.8     421      625
SmolLM2, logits (1, 16, 512)                 84.9  211.1     812     1320
4096 x 1024 int8 (1)                          4.2    0.0     200      267
1024 x 4096 int8 (1, 256)                     8.4    7.9     245      314
2048 x 11008 int8 (1, 128)                   45.1   10.1     336      558
2048 x 8192 float16 (1, 128)                 67.1    7.9     448      696
==========================================  =====  =====  ======  =======

The CPU model is loaded in pieces (`mnn.segments.BUDGET`) of 32-bit floats, and MNN repacks
them; the logits of all tokens are held twice.  A weight file does not say how many bits a
weight has, so the bound takes 4.  SmolLM2 took 472 for 128 tokens and 553 for 512 (bounds
718 and 1020), a tiny model 56 for 1024 (bound 85).

MNN's own tools load the whole model; that they do so in 32-bit floats, and nothing beside,
is assumed, not measured.

The cut holds the model's structure: 139 for SmolLM2, whose ``llm.mnn`` has 1.06 MB, and 57
for a tiny one with 0.2 MB (bounds 176 and 82).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

_MB = 10**6
#: Bytes of 32-bit floats per byte of 4-bit weights.
_FLOATS = 8

Arguments = Mapping[str, Any]


def needed(stage: str, arguments: Arguments) -> int:
    """Bytes that ``stage`` may use at once; 0 for a stage that needs little.

    Inputs that cannot be read count nothing: the stage itself meets the trouble.
    """
    try:
        return _STAGES[stage](arguments) if stage in _STAGES else 0
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0


def _link(arguments: Arguments) -> int:
    from mnnqnn_tasks.qnn.ir import DTYPE_BYTES

    sizes = {True: 0, False: 0}
    for net in arguments["nets"]:
        for tensor in _json(net)["tensors"]:
            size = math.prod(tensor["dims"]) * DTYPE_BYTES[tensor["dtype"]]
            sizes[tensor["kind"] == "STATIC"] += size
    return link_bound(sizes[True], sizes[False])


def link_bound(static: int, other: int) -> int:
    """Bytes that a link may use.

    Args:
        static: bytes of the weights and constants of all its graphs, repeats counted.
        other: bytes of all other tensors.
    """
    return 240 * _MB + 13 * static // 2 + 5 * other // 2


def _external_link(arguments: Arguments) -> int:
    """A model library holds the weights, and the tool's library works as the wheel's does."""
    return link_bound(sum(os.path.getsize(path) for _, path in arguments["libraries"]), 0)


def _io_output(arguments: Arguments) -> int:
    from mnnqnn_tasks.mnn.segments import BUDGET

    ranges = _ranges(arguments)
    largest = max(ranges, default=0)
    piece = min(_FLOATS * sum(ranges), max(BUDGET, _FLOATS * largest))
    hidden: int = _json(os.path.join(arguments["folder"], "llm_config.json"))["hidden_size"]
    vocabulary = 2 * largest // hidden  # at most: the largest weight makes the logits
    return 80 * _MB + 2 * piece + 2 * 4 * vocabulary * max(map(int, arguments["samples"]))


def _mnn_tool(arguments: Arguments) -> int:
    return 80 * _MB + _FLOATS * sum(_ranges(arguments))


def _ranges(arguments: Arguments) -> list[int]:
    """Sizes of the model's weights."""
    return [entry["size"] for entry in _json(arguments["index"])["ranges"]]


def _cut(arguments: Arguments) -> int:
    model: str = _json(arguments["structure"])["model"]
    return 60 * _MB + 110 * os.path.getsize(os.path.join(arguments["folder"], model))


def _json(path: str) -> Any:
    with open(path, encoding="utf-8") as stream:
        return json.load(stream)


_STAGES: dict[str, Callable[[Arguments], int]] = {
    "link": _link,
    "io_output": _io_output,
    "cut": _cut,
    "external.io": _mnn_tool,
    "external.partition": _mnn_tool,
    "external.link": _external_link,
    "genie.link": _link,
}
