"""IO samples by MNN's own tool, of either generation."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import ModelFileError, ToolError
from mnnqnn_tasks.files import disk_errors, write_json
from mnnqnn_tasks.mnn import inputs, reader
from mnnqnn_tasks.mnn import samples as samplefile
from mnnqnn_tasks.mnn.cpu import output_names
from mnnqnn_tasks.mnn.folder import ModelFolder
from mnnqnn_tasks.mnn.samples import Sample
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.toolchain.external.mnnbuild import IoTool, io_tools
from mnnqnn_tasks.toolchain.external.runner import Runner
from mnnqnn_tasks.toolchain.external.workplace import (
    MODEL,
    MODEL_DIR,
    WEIGHT,
    expect,
    put_model,
    workplace,
)

_OUT, _INPUT_JSON = "testdir", "input.json"
_KINDS = ("input", "output")


def make_samples(
    folder: ModelFolder,
    mnn_path: Path,
    work: Path,
    runner: Runner,
    out: Mapping[int, Mapping[str, Path]],
) -> None:
    """Write ``input.mnn`` and ``output.mnn`` of every sequence length.

    Args:
        folder: the model.
        mnn_path: the build folder with the tool.
        work: a folder for the tool.
        runner: runs it.
        out: by sequence length, decode first, where ``input`` and ``output`` go.

    Raises:
        ToolMissing, ToolError, NativeCrash: there is no tool, or it fails.
        ModelFileError: the model is damaged, or has inputs that are not known.
        DiskError: something cannot be written.
    """
    tool = io_tools(mnn_path)[0]
    net = reader.read(folder.path / folder.model)
    with workplace(work) as place:
        put_model(place, folder)
        make = _by_json if tool.takes_json else _by_chunk
        found, tail = make(tool, place, runner, folder, net, list(out))
        for length, source in found.items():
            for kind in _KINDS:
                made = expect(
                    source / f"{kind}.mnn", tool.path.name, runner.label, tail, runner.log
                )
                _check(made, kind, length, net, tool, runner, tail)
        for length, source in found.items():
            for kind in _KINDS:
                target = out[length][kind]
                with disk_errors(target):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(source / f"{kind}.mnn", target)


Found = tuple[dict[int, Path], str]


def _by_json(
    tool: IoTool,
    place: Path,
    runner: Runner,
    folder: ModelFolder,
    net: Table,
    lengths: Sequence[int],
) -> Found:
    """``generateIO MODEL INPUT_JSON OUT WEIGHT``: all shapes in one run, numbered."""
    outputs = output_names(net)
    configs = [
        {
            "inputs": [
                _described(name, sample)
                for name, sample in inputs.folder_samples(folder, net, length).items()
            ],
            "outputs": outputs,
        }
        for length in lengths
    ]
    write_json(place / _INPUT_JSON, {"configs": configs}, durable=False)
    tail = runner.run([tool.path, MODEL, _INPUT_JSON, _OUT, WEIGHT], place)
    return {length: place / _OUT / str(n) for n, length in enumerate(lengths)}, tail


def _described(name: str, sample: Sample) -> dict[str, Any]:
    """An input as ``input.json`` has it: one value for all of the array.

    The last one of our own sample: what the tool would leave there otherwise is whatever
    the memory held.
    """
    flat = sample.values.reshape(-1)
    whole = sample.values.dtype.kind in "iu"
    value: int | float = 0
    if flat.size:
        value = int(flat[-1]) if whole else float(flat[-1])
    return {
        "name": name,
        "shape": list(sample.values.shape),
        "type": "int" if whole else "float",
        "value": value,
    }


def _by_chunk(
    tool: IoTool,
    place: Path,
    runner: Runner,
    folder: ModelFolder,
    net: Table,
    lengths: Sequence[int],
) -> Found:
    """``generateLlmIO MODEL_DIR OUT CHUNK``: decode and one chunk per run."""
    found: dict[int, Path] = {}
    tail = ""
    for run, chunk in enumerate(length for length in lengths if length != 1):
        out = f"{_OUT}{chunk}"
        # Older versions do not make the folder themselves.
        with disk_errors(place):
            (place / out).mkdir()
        tail = runner.run([tool.path, MODEL_DIR, out, str(chunk)], place, append=run > 0)
        found.setdefault(1, place / out / "1")
        found[chunk] = place / out / str(chunk)
    return {length: found[length] for length in lengths}, tail


def _check(
    path: Path, kind: str, length: int, net: Table, tool: IoTool, runner: Runner, tail: str
) -> None:
    """Refuse a sample that is damaged or of another shape or model.

    Raises:
        ToolError: naming the file.
    """
    try:
        made = samplefile.read(path)
    except ModelFileError as error:
        why = error.why or error.what
    else:
        ops = [str(op.name) for op in inputs.input_ops(net)]
        wanted = ops if kind == "input" else output_names(net)
        if missing := sorted(set(wanted) - set(made)):
            why = f"it lacks {', '.join(missing)}"
        elif kind == "input" and length not in made[ops[0]].values.shape:
            shape = list(made[ops[0]].values.shape)
            why = f"{ops[0]} has the shape {shape}, not one of {length} tokens"
        else:
            return
    raise ToolError(
        f"{tool.path.name} ended with exit code 0 and made a bad {path.name} for {length} tokens",
        where=runner.label,
        why=why,
        todo=f"the whole output is in {runner.log}",
        tail=tail or None,
    )
