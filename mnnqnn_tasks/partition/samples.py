"""The sample inputs: ``input.mnn`` says which tensors a shape has and how large they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mnnqnn_tasks.errors import PartitionError
from mnnqnn_tasks.mnn import reader
from mnnqnn_tasks.mnn.folder import ModelFolder
from mnnqnn_tasks.mnn.infer import DTYPES, TensorFact, blob_fact
from mnnqnn_tasks.mnn.infer.facts import Unknown
from mnnqnn_tasks.mnn.inputs import make_inputs
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.partition.net_view import NetView

#: Integer inputs up to this size keep their values: a shape can depend on them.
_MAX_VALUES = 1024


def input_facts(view: NetView, path: Path) -> dict[int, TensorFact]:
    """`facts_of` the sample in the file ``path``.

    Raises:
        ModelFileError: when the sample cannot be read.
        PartitionError: when it does not fit the model.
    """
    return facts_of(view, reader.read(path), str(path))


def expected_facts(view: NetView, folder: ModelFolder, length: int) -> dict[int, TensorFact]:
    """`facts_of` the sample that `mnn.inputs` makes for ``length`` tokens, before it is made.

    The values of embeddings, which alone take time to make, have no part in a cut.

    Raises:
        ModelFileError: see `make_inputs`.
        PartitionError: when the inputs do not fit the model.
    """

    def rows(count: int) -> npt.NDArray[np.float32]:
        return np.zeros((count, int(folder.settings["hidden_size"])), np.float32)

    made = make_inputs(folder.settings, view.net, length, rows)
    return facts_of(view, made, str(folder.path / folder.model))


def facts_of(view: NetView, sample: Table, where: str) -> dict[int, TensorFact]:
    """Facts of the model's inputs from a sample, by tensor index.

    Layout and type are those of the model's Input op, dimensions those of the sample.
    Values are kept for small integer inputs.

    Args:
        where: what the sample is called in errors.

    Raises:
        PartitionError: when it does not fit the model.
    """
    found: dict[str, TensorFact] = {}
    for op in sample.oplists or ():
        if op.type != "Const" or op.main is None or op.main.type_name != "Blob":
            raise PartitionError(
                "not a sample of inputs",
                where=where,
                why=f"it holds an op of type {op.type}",
                todo="delete it and run again",
            )
        try:
            found[op.name] = blob_fact(op.main)
        except Unknown as error:
            raise PartitionError(
                f"sample tensor {op.name!r} cannot be used",
                where=where,
                why=str(error),
                todo="delete it and run again",
            ) from error
    facts = {}
    for tensor in view.inputs:
        fact = found.get(view.names[tensor])
        if fact is None:
            continue
        main = view.ops[view.producer[tensor]].table.main
        param = main if main is not None and main.type_name == "Input" else Table("Input")
        dtype = DTYPES.get(param.dtype)
        if dtype != fact.dtype:
            raise PartitionError(
                f"sample tensor {view.names[tensor]!r} has another type than the model's input",
                where=where,
                why=f"it is {fact.dtype}, the model wants {dtype}",
                todo="make the sample inputs again from this model",
            )
        keep = dtype == "int32" and fact.size <= _MAX_VALUES
        value = fact.value if keep else None
        facts[tensor] = TensorFact(fact.dims, fact.dtype, param.dformat, value)
    return facts


def find_outputs(view: NetView, names: tuple[str, ...]) -> tuple[int, ...]:
    """Tensor indices of the outputs ``names``.

    Raises:
        PartitionError: when there is none, or one is not in the model.
    """
    where: Mapping[str, int] = {name: i for i, name in reversed(list(enumerate(view.names)))}
    missing = [name for name in names if name not in where]
    if missing or not names:
        raise PartitionError(
            "the outputs are not in the model",
            why=f"missing: {', '.join(missing)}" if missing else "the model names no output",
            todo="check the model: MNN's exporter names the output 'logits'",
        )
    return tuple(where[name] for name in names)


def default_outputs(view: NetView) -> tuple[str, ...]:
    """``logits`` where the model has it, else all outputs that it names.

    Exported LLMs also name ``hidden_states``, which the runtime asks for only in other
    uses than generating text and which MNN's own export for NPUs leaves out.
    """
    named = tuple(view.net.outputName or ())
    return ("logits",) if "logits" in named else named
