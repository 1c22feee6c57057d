"""What the CPU model has at every border for one shape, and how far it can be judged by.

A tensor with static quantization can only express what its scale covers; beyond that
the NPU clips and the CPU, which computes in float, does not.  A difference there says
that the sample is not like the calibration's, not that the graph is wrong.  So it is
kept which tokens leave a calibrated range, and in which tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mnnqnn_tasks.verify.hostmodel import Plugin
from mnnqnn_tasks.verify.metrics import Array, Excursion, excursion, outside
from mnnqnn_tasks.verify.ranges import Calibration
from mnnqnn_tasks.verify.rows import Dims, Mask, any_per_row, one_row, token_axis
from mnnqnn_tasks.verify.sides import Arrays, Cpu
from mnnqnn_tasks.verify.store import Store

#: Tensors asked of the CPU at once: bounds memory, costs one forward pass each.
_BATCH = 96


@dataclass
class Reference:
    """The CPU's side of one shape.

    Attributes:
        shape: tokens per call.
        store: arrays of all border tensors and outputs.
        excursions: by tensor, where its activations leave their calibrated range.
        clipped: by tensor, the tokens at which they do, [shape].
        single: dims of every tensor for one token.
    """

    shape: int
    store: Store
    calibration: Calibration
    single: dict[str, Dims] = field(default_factory=dict)
    excursions: dict[str, Excursion] = field(default_factory=dict)
    clipped: dict[str, Mask] = field(default_factory=dict)

    def scan(self, cpu: Cpu, inputs: Arrays) -> None:
        """Look for activations outside their range; integer tensors have none."""
        names = [name for name in self.calibration.names() if name not in inputs]
        for start in range(0, len(names), _BATCH):
            for name, values in cpu(inputs, names[start : start + _BATCH]).items():
                self._note(name, values)

    def _note(self, name: str, values: Array) -> None:
        if self.shape == 1:
            self.single[name] = values.shape
        if values.dtype.kind != "f":
            return
        limits = self.calibration.limits(name)
        found = excursion(name, values, limits)
        if found is None:
            return
        self.excursions[name] = found
        axis = token_axis(values.shape, self.single.get(name, ()))
        self.clipped[name] = (
            np.ones(self.shape, dtype=np.bool_)
            if axis is None
            else any_per_row(outside(values, limits), axis)
        )

    def of_piece(self, plugin: Plugin) -> list[Excursion]:
        """The excursions among the tensors of one piece, in the model's order."""
        names = self.calibration.pieces.get(plugin.path, ())
        return [self.excursions[name] for name in names if name in self.excursions]

    def inside(self, plugin: Plugin) -> Mask:
        """The tokens at which every tensor of a piece stays in its range, [shape]."""
        found = np.ones(self.shape, dtype=np.bool_)
        for name in self.calibration.pieces.get(plugin.path, ()):
            if name in self.clipped:
                found &= ~self.clipped[name]
        return found


@dataclass(frozen=True)
class Probe:
    """Inputs for a graph and what must come out.

    Attributes:
        inputs, outputs: arrays by the model's tensor names.
        inside: tokens at which the CPU's activations keep to the calibrated ranges.
        axes: axis of the tokens by output name; ``None`` where it has none.
    """

    inputs: Arrays
    outputs: Arrays
    inside: Mask
    axes: Mapping[str, int | None]


def own_probe(reference: Reference, plugin: Plugin) -> Probe:
    """The border tensors as they are."""
    outputs = reference.store.get(plugin.outputs)
    axes = {
        name: token_axis(array.shape, reference.single.get(name, ()))
        for name, array in outputs.items()
    }
    return Probe(reference.store.get(plugin.inputs), outputs, reference.inside(plugin), axes)


def row_probes(chunk: Reference, plugin: Plugin, single: Mapping[str, Dims]) -> list[Probe]:
    """Tokens of a chunk as decode calls: what a decode graph is judged by.

    Decode graphs compute on each token alone, with attention on the CPU, so the tensors
    of one token in a chunk are what decode has after the tokens before it.  A token in
    the middle of the text and the last one are taken, of those whose activations keep to
    the calibrated ranges.  The first is none of them: models park attention there, with
    activations in the hundreds that a later layer cancels (SmolLM2's residual goes from 604
    to 41 in one layer), and a decode graph never computes it, because a prompt comes first.

    Returns:
        None for a piece with a border tensor that cannot be divided into tokens.
    """
    inside = chunk.inside(plugin)
    good = np.flatnonzero(inside[1:]) + 1
    rows = good if good.size else np.arange(1, chunk.shape)
    chosen = dict.fromkeys(int(rows[i]) for i in (rows.size // 2, -1)) if rows.size else {}
    probes = [_row_probe(chunk, plugin, single, row, inside) for row in chosen]
    return [probe for probe in probes if probe is not None]


def _row_probe(
    chunk: Reference, plugin: Plugin, single: Mapping[str, Dims], row: int, inside: Mask
) -> Probe | None:
    def cut(names: Sequence[str]) -> dict[str, Array] | None:
        rows = {
            name: one_row(array, single[name], row)
            for name, array in chunk.store.get(names).items()
        }
        found = {name: array for name, array in rows.items() if array is not None}
        return found if len(found) == len(rows) else None

    inputs, outputs = cut(plugin.inputs), cut(plugin.outputs)
    if inputs is None or outputs is None:
        return None
    return Probe(inputs, outputs, inside[row : row + 1], dict.fromkeys(outputs))
