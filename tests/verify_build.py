"""Makes what verification reads, by the stages themselves and without doit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mnnqnn_tasks.files import write_json
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.toolchain import native
from mnnqnn_tasks.verify.run import Subject

REPO = Path(__file__).parents[1]
SHARED = REPO.parent / "shared" / "models"
DEMO = REPO / "models" / "tiny-qwen3-w8"
TARGET = TargetOptions(soc_id=57, dsp_arch="v75")


def build(model: Path, out: Path, chunks: Sequence[int]) -> Subject:
    """Samples, plan and translated graphs of ``model`` in ``out``."""
    shapes = (1, *chunks)
    index, refused = str(out / "model.json"), str(out / "refused.json")
    native.index(str(model), index)
    inputs = {}
    for shape in shapes:
        inputs[str(shape)] = str(out / "testdir" / str(shape) / "input.mnn")
        native.io_input(str(model), shape, inputs[str(shape)])
    write_json(Path(refused), {})
    native.partition(str(model), index, refused, inputs, str(out))
    for path in sorted((out / "subgraphs").glob("*.json")):
        native.translate(
            str(model),
            str(path),
            str(out / "sources.json"),
            str(out / "blobs"),
            str(out / "qnn" / path.stem),
        )
    return Subject(model.name, "t57", out, model, shapes, TARGET)
