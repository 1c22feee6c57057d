"""The ranges that the tensors of the NPU pieces were calibrated for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mnnqnn_tasks.errors import VerifyError
from mnnqnn_tasks.mnn import reader
from mnnqnn_tasks.partition.build import quant_infos
from mnnqnn_tasks.partition.subgraph import QuantInfo
from mnnqnn_tasks.verify.metrics import Limits, limits


@dataclass(frozen=True)
class Calibration:
    """The quantized tensors of a model's NPU pieces.

    Attributes:
        pieces: names of the tensors that a piece computes or reads, by its binary.
        infos: their quantization by name.
    """

    pieces: Mapping[str, tuple[str, ...]]
    infos: Mapping[str, QuantInfo]

    def names(self) -> list[str]:
        """All tensors of all pieces."""
        return list(dict.fromkeys(name for piece in self.pieces.values() for name in piece))

    def limits(self, name: str) -> Limits:
        """What the tensor ``name`` can express."""
        info = self.infos[name]
        return limits(info.scale, info.zero, info.min, info.max)


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
