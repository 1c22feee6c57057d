"""The rewritten model as the runtime on the device follows it: host ops and Plugin ops.

``qnn/llm.mnn`` is what a bundle runs: every NPU piece is one Plugin op whose attributes
name its graphs, and everything else runs on the CPU.  Verification follows this file
rather than the plan that it was made from, so that a tensor that was re-indexed wrongly
or a graph listed for another shape is found too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import VerifyError
from mnnqnn_tasks.mnn import reader
from mnnqnn_tasks.mnn.table import Table

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Plugin:
    """One NPU piece.

    Attributes:
        path: its context binary, relative to the bundle.
        inputs, outputs: names of tensors in the model.
        graph_inputs, graph_outputs: names of the same tensors in the QNN graphs.
        graphs: graph names by shape index.
        output_dims: dims of every output by shape index.
    """

    path: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    graph_inputs: tuple[str, ...]
    graph_outputs: tuple[str, ...]
    graphs: tuple[str, ...]
    output_dims: tuple[tuple[Dims, ...], ...]


@dataclass(frozen=True)
class HostStep:
    """Run the CPU ops between ``inputs`` (which are there already) and ``outputs``."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


Step = Plugin | HostStep


@dataclass(frozen=True)
class _Op:
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class HostModel:
    """The ops of ``qnn/llm.mnn``, by tensor name.

    Attributes:
        path: the file.
        inputs: the model's inputs.
        plugins: in the order of the file, which is an order of execution.
    """

    path: Path
    inputs: tuple[str, ...]
    plugins: tuple[Plugin, ...]
    _makers: dict[str, _Op]

    def schedule(self, outputs: Iterable[str]) -> list[Step]:
        """Every piece once, in an order in which each finds its inputs made.

        Args:
            outputs: the model's outputs that are wanted.

        Raises:
            VerifyError: when a tensor is made by nothing.
        """
        have = set(self.inputs)
        steps: list[Step] = []
        for plugin in self.plugins:
            steps += self._host(plugin.inputs, have)
            steps.append(plugin)
            have |= set(plugin.outputs)
        return steps + self._host(outputs, have)

    def _host(self, wanted: Iterable[str], have: set[str]) -> list[Step]:
        missing = tuple(sorted(set(wanted) - have))
        if not missing:
            return []
        step = HostStep(tuple(sorted(self._reach(missing, have))), missing)
        have |= set(missing)
        return [step]

    def _reach(self, wanted: Iterable[str], have: set[str]) -> set[str]:
        """The tensors of ``have`` that the host ops behind ``wanted`` start from."""
        found: set[str] = set()
        seen: set[str] = set()
        todo = list(wanted)
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in have:
                found.add(name)
                continue
            op = self._makers.get(name)
            if op is None or op.type == "Plugin":
                raise VerifyError(
                    f"nothing makes the tensor {name} before it is used",
                    where=str(self.path),
                    why="no op has it as an output"
                    if op is None
                    else "its Plugin op comes later in the file",
                    todo="run the export again; if it stays so, report it with this file",
                )
            todo.extend(op.inputs)
        return found


def load(path: Path) -> HostModel:
    """Read ``qnn/llm.mnn``.

    Raises:
        ModelFileError: when it is no MNN model.
        VerifyError: when a Plugin op lacks an attribute or contradicts itself.
    """
    net = reader.read(path)
    names = [str(name) for name in net.tensorName or ()]
    ops = [_op(op, names, path) for op in net.oplists or ()]
    plugins = tuple(
        _plugin(table, op, path)
        for table, op in zip(net.oplists or (), ops, strict=True)
        if op.type == "Plugin"
    )
    inputs = tuple(name for op in ops if op.type == "Input" for name in op.outputs)
    return HostModel(path, inputs, plugins, {name: op for op in ops for name in op.outputs})


def _op(op: Table, names: list[str], path: Path) -> _Op:
    def named(indices: Any) -> tuple[str, ...]:
        try:
            return tuple(names[i] for i in ([] if indices is None else indices) if i >= 0)
        except IndexError as error:
            raise _wrong(path, op, "it names a tensor that the model does not have") from error

    return _Op(str(op.type), named(op.inputIndexes), named(op.outputIndexes))


def _plugin(table: Table, op: _Op, path: Path) -> Plugin:
    main = table.main
    if main is None or main.type_name != "Plugin":
        raise _wrong(path, table, "it has no parameters of a Plugin")
    attributes = {a.key: a for a in main.attr or ()}
    missing = {"path", "inputs", "outputs", "allGraphName"} - set(attributes)
    if missing:
        raise _wrong(path, table, f"it has no attribute {sorted(missing)[0]}")

    def strings(key: str) -> tuple[str, ...]:
        value = attributes[key].list
        return tuple(value.s or ()) if value is not None else ()

    graphs = strings("allGraphName")
    made = Plugin(
        str(attributes["path"].s),
        op.inputs,
        op.outputs,
        strings("inputs"),
        strings("outputs"),
        graphs,
        tuple(
            tuple(_dims(attributes, f"o_{shape}_{i}", table, path) for i in range(len(op.outputs)))
            for shape in range(len(graphs))
        ),
    )
    pairs = ((made.inputs, made.graph_inputs), (made.outputs, made.graph_outputs))
    if any(len(mine) != len(graph) for mine, graph in pairs):
        raise _wrong(path, table, "it has more or fewer tensors than names for them")
    return made


def _dims(attributes: dict[str, Table], key: str, op: Table, path: Path) -> Dims:
    if key not in attributes or attributes[key].tensor is None:
        raise _wrong(path, op, f"it has no attribute {key}")
    dims = attributes[key].tensor.dims
    return tuple(int(d) for d in ([] if dims is None else dims))


def _wrong(path: Path, op: Table, why: str) -> VerifyError:
    return VerifyError(
        f"the op {op.name} of the rewritten model is damaged",
        where=str(path),
        why=why,
        todo="delete the file and run the export again",
    )
