"""Double of MNN's ``generateLlmIO MODEL_DIR OUT CHUNK``: decode and one chunk, real values."""

from __future__ import annotations

from pathlib import Path

from double import main

USAGE = "Usage: ./generateLlmIO model/config.json outputDir [blocksize]"


def work(argv: list[str], mode: str) -> int:
    from mnnqnn_tasks.mnn import cpu, inputs

    model, out, chunk = Path(argv[0]), Path(argv[1]), int(argv[2])
    assert (model / "llm_config.json").is_file()
    pairs = {}
    for length in (chunk, 1):
        given = out / str(length) / "input.mnn"
        inputs.write_inputs(model, 2 * length if mode == "shape" else length, given)
        pairs[str(given)] = str(given.with_name("output.mnn"))
    if mode == "partial":
        for path in pairs.values():
            Path(path).write_bytes(b"begun")
        return 0
    cpu.forward(model, pairs)
    print(f"Successfully generate {out}/{chunk}/input.mnn and {out}/{chunk}/output.mnn.")
    return 0


main(work, USAGE)
