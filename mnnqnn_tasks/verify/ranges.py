"""Which activations of a sample leave the ranges that their tensors were calibrated for.

A tensor with static quantization can only express what its scale covers; beyond that
the NPU clips and the CPU, which computes in float, does not.  A difference there says
that the sample is not like the calibration's, not that the graph is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mnnqnn_tasks.errors import VerifyError
from mnnqnn_tasks.mnn import reader
from mnnqnn_tasks.partition.build import quant_infos
from mnnqnn_tasks.partition.subgraph import QuantInfo
from mnnqnn_tasks.verify.hostmodel import Plugin
from mnnqnn_tasks.verify.metrics import Excursion, excursion
from mnnqnn_tasks.verify.walk import Arrays, Cpu

#: Tensors asked of the CPU at once: bounds memory, costs one forward pass each.
_BATCH = 96


@dataclass(frozen=True)
class Calibration:
    """The quantized tensors of a model's NPU pieces.

    Attributes:
        pieces: names of the tensors that a piece computes or reads, by its binary.
        infos: their quantization by name.
    """

    pieces: Mapping[str, tuple[str, ...]]
    infos: Mapping[str, QuantInfo]

    def excursions(self, cpu: Cpu, inputs: Arrays) -> dict[str, Excursion]:
        """Run the CPU model on ``inputs``; what left its range, by tensor name.

        Integer tensors are passed over: quantization means nothing on them.
        """
        names = sorted(set().union(*map(set, self.pieces.values()))) if self.pieces else []
        return {found.tensor: found for found in self._excursions(cpu, inputs, names)}

    def _excursions(self, cpu: Cpu, inputs: Arrays, names: Sequence[str]) -> Iterator[Excursion]:
        for start in range(0, len(names), _BATCH):
            batch = [name for name in names[start : start + _BATCH] if name not in inputs]
            for name, values in cpu(inputs, batch).items():
                info = self.infos[name]
                if values.dtype.kind != "f":
                    continue
                found = excursion(name, values, info.scale, info.zero, info.min, info.max)
                if found is not None:
                    yield found

    def of_piece(self, plugin: Plugin, found: Mapping[str, Excursion]) -> list[Excursion]:
        """The excursions among the tensors of one piece, in the model's order."""
        return [found[name] for name in self.pieces.get(plugin.path, ()) if name in found]


def calibration(model: Path, plan: Path) -> Calibration:
    """Collect the quantized tensors of the pieces of ``plan.json``.

    Raises:
        ModelFileError: when ``model`` is no MNN model.
        VerifyError: when the plan is missing or not one of this model.
    """
    net = reader.read(model)
    infos = quant_infos(net)
    if not infos:
        return Calibration({}, {})
    names = [str(name) for name in net.tensorName or ()]
    ops = net.oplists or ()
    pieces: dict[str, tuple[str, ...]] = {}
    try:
        for piece in json.loads(plan.read_text("utf-8"))["pieces"]:
            if piece["place"] != "npu":
                continue
            tensors = [int(port["tensor"]) for port in piece["inputs"]]
            for first, last in piece["op_ranges"]:
                for index in range(first, last + 1):
                    tensors += [int(t) for t in ops[index].outputIndexes]
            pieces[piece["binary"]] = tuple(names[t] for t in dict.fromkeys(tensors) if t in infos)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise VerifyError(
            "the plan does not fit the model",
            where=str(plan),
            why=f"{type(error).__name__}: {error}",
            todo="delete it and run the export again",
        ) from error
    return Calibration(pieces, {names[t]: info for t, info in infos.items() if t < len(names)})
