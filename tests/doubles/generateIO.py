"""Double of MNN's ``generateIO MODEL INPUT_JSON OUT WEIGHT``: what the file says, real values.

It calls itself by the older tool's name, as MNN's does.
"""

from __future__ import annotations

import json
from pathlib import Path

from double import main

USAGE = "Usage: ./generateLlmIO model inputJson outputDir externalFilePath"
TYPES = {"int": "int32", "float": "float32"}


def work(argv: list[str], mode: str) -> int:
    import numpy as np

    from mnnqnn_tasks.mnn import cpu
    from mnnqnn_tasks.mnn import samples as files

    model, out, weight = Path(argv[0]), Path(argv[2]), Path(argv[3])
    assert weight.name == "llm.mnn.weight" and weight.is_file()
    configs = json.loads(Path(argv[1]).read_text())["configs"]
    pairs = {}
    for number, config in enumerate(configs):
        given = out / str(number) / "input.mnn"
        made = {
            entry["name"]: files.Sample(
                np.full(entry["shape"], entry["value"], TYPES[entry.get("type", "float")]),
                "NHWC" if entry["name"] == "logits_index" else "NCHW",
            )
            for entry in config["inputs"]
        }
        files.write(given, made)
        pairs[str(given)] = str(given.with_name("output.mnn"))
    if mode != "partial":
        cpu.forward(model.parent, pairs)
    return 0


main(work, USAGE)
