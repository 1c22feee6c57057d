"""Where the files of a model lie in the build and the dist folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Paths of one model; ``build`` and ``dist`` are its folders in the two trees."""

    build: str
    dist: str

    def _in(self, *parts: str) -> str:
        return os.sep.join((self.build, *parts))  # cheaper than os.path.join, and often

    @property
    def model_json(self) -> str:
        """Digests of the model's files and weight ranges."""
        return self._in("model.json")

    @property
    def structure_json(self) -> str:
        """Digests of everything but the values of the weights."""
        return self._in("structure.json")

    @property
    def spans_json(self) -> str:
        """Which bytes of the weight file the model reads, for the next run."""
        return self._in("spans.json")

    @property
    def cut_json(self) -> str:
        """The cut if QNN refuses nothing, without the digests of the weights."""
        return self._in("cut", "cut.json")

    @property
    def cut_model(self) -> str:
        """The host model of `cut_json`."""
        return self._in("cut", "llm.mnn")

    @property
    def ops_json(self) -> str:
        """The different uses of ops."""
        return self._in("cut", "ops.json")

    @property
    def ops_net(self) -> str:
        """One graph of all the different uses of ops."""
        return self._in("cut", "ops_net.json")

    @property
    def refused_json(self) -> str:
        """What QNN refuses for any of the model's targets."""
        return self._in("refused.json")

    @property
    def plan_json(self) -> str:
        """The cut: which graphs there are."""
        return self._in("plan.json")

    @property
    def postreat_json(self) -> str:
        """The merges, as MNN's tools write them."""
        return self._in("npu_postreat.json")

    @property
    def host_model(self) -> str:
        """The model with Plugin ops."""
        return self._in("qnn", "llm.mnn")

    @property
    def sources_json(self) -> str:
        """Where the bytes behind a digest lie."""
        return self._in("sources.json")

    @property
    def blobs(self) -> str:
        """The content store of static tensors."""
        return self._in("blobs")

    @property
    def samples(self) -> str:
        """The folder of IO samples."""
        return self._in("testdir")

    def io(self, shape: int, kind: str) -> str:
        """``input`` or ``output`` sample of a sequence length."""
        return self._in("testdir", str(shape), f"{kind}.mnn")

    def validation(self, target: str) -> str:
        """What QNN refuses for ``target``."""
        return self._in("validate", f"{target}.json")

    def source(self, graph: str) -> str:
        """The folder of a graph's source that MNN's tools wrote."""
        return self._in("sources", graph)

    def source_list(self, graph: str) -> str:
        """Digests of the files in `source`."""
        return self._in("sources", f"{graph}.json")

    def library(self, graph: str) -> str:
        """The model library of a graph."""
        return self._in("libs", f"lib{graph}.so")

    def log(self, task: str) -> str:
        """What the tools of a task printed."""
        return self._in("logs", f"{_file_name(task)}.log")

    def work(self, task: str) -> str:
        """A folder for the tools of a task."""
        return self._in("work", _file_name(task))

    def subgraph(self, graph: str) -> str:
        """The description of a graph to translate."""
        return self._in("subgraphs", f"{graph}.json")

    def graph(self, graph: str) -> str:
        """The folder of a translated graph."""
        return self._in("qnn", graph)

    def net(self, graph: str) -> str:
        """A translated graph in the exact form."""
        return self._in("qnn", graph, f"{graph}_net.json")

    def cpp(self, graph: str) -> str:
        """A translated graph as C++ source."""
        return self._in("qnn", graph, f"{graph}.cpp")

    def binary(self, target: str, name: str) -> str:
        """A context binary; beside it lies its read-back report."""
        return self._in("targets", target, f"{name}.bin")

    def report(self, target: str, name: str) -> str:
        """The read-back report of a context binary."""
        return self._in("targets", target, f"{name}.json")

    def bundle(self, target: str) -> str:
        """The bundle's folder."""
        return os.path.join(self.dist, target)


def _file_name(task: str) -> str:
    """``link:m:a:graph0`` -> ``link-a-graph0``; the model is the folder's name already."""
    stage, _, *rest = task.split(":")
    return "-".join((stage, *rest))


def graph_name(piece: int, shape: int) -> str:
    """Name of the graph of piece ``piece`` at shape index ``shape`` (0 is decode)."""
    return f"graph{piece}" if shape == 0 else f"graph{shape}_{piece}"


def files_under(folders: Iterable[str]) -> set[str]:
    """Every file under ``folders``, as joined paths."""
    return {
        os.path.join(parent, name)
        for folder in folders
        for parent, _, names in os.walk(folder)
        for name in names
    }
