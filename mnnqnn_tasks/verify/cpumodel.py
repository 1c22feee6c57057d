"""Models on the CPU, arrays in and arrays out; remembers the layouts of their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mnnqnn_tasks.mnn.cpu import CpuWorker
from mnnqnn_tasks.mnn.samples import Sample
from mnnqnn_tasks.verify.metrics import Array
from mnnqnn_tasks.verify.sample import Samples
from mnnqnn_tasks.verify.sides import Arrays


@dataclass
class CpuModel:
    """One model file in a worker process.

    Attributes:
        weight: its weight file, or ``None`` if there is none.
        formats: MNN's layout of every tensor seen so far, by name.  The rewritten model
            keeps the tensor names of the original, so both share one table.
    """

    worker: CpuWorker
    model: Path
    weight: Path | None
    formats: dict[str, str] = field(default_factory=dict)

    def __call__(self, inputs: Arrays, outputs: Sequence[str]) -> dict[str, Array]:
        """Compute ``outputs`` from ``inputs``, both by tensor name.

        Raises:
            ModelFileError, NativeCrash, ToolMissing: see `CpuWorker.run`.
        """
        if not outputs:
            return {}
        given = {
            name: Sample(array, self.formats.get(name, "NCHW")) for name, array in inputs.items()
        }
        results = self.worker.run(self.model, self.weight, given, list(outputs))
        self.formats.update({name: sample.format for name, sample in results.items()})
        return {name: sample.values for name, sample in results.items()}

    def learn(self, samples: Samples) -> dict[str, Array]:
        """Remember the layouts of ``samples``; their arrays."""
        self.formats.update({name: sample.format for name, sample in samples.items()})
        return {name: sample.values for name, sample in samples.items()}
