"""What a pipeline says, resolved: every default filled in, every path absolute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Target:
    """A chip and the options that its binaries are built with.

    Attributes:
        name: names the folder and the tasks; unique in the pipeline.
        soc_id: Qualcomm's number of the SoC.
        soc_model: its model name, ``None`` where the table has none.
        dsp_arch: Hexagon architecture, ``v75``.
        vtcm_mb: tightly coupled memory in MB.
        optimization_level: 1 to 3.
        hvx_threads: HVX threads.
        fp16_relaxed_precision: float32 arithmetic may run as float16.
        weight_sharing: the graphs of one binary store a common weight once.
        where: ``file:line:column`` of its entry, for messages; no part of its identity.
    """

    name: str
    soc_id: int
    soc_model: str | None
    dsp_arch: str
    vtcm_mb: int = 8
    optimization_level: int = 3
    hvx_threads: int = 4
    fp16_relaxed_precision: bool = True
    weight_sharing: bool = True
    where: str = field(default="", compare=False)

    def identity(self) -> dict[str, int | str | bool]:
        """What a binary for this target depends on: chip and options, not the name."""
        return {
            "soc_id": self.soc_id,
            "dsp_arch": self.dsp_arch,
            "vtcm_mb": self.vtcm_mb,
            "optimization_level": self.optimization_level,
            "hvx_threads": self.hvx_threads,
            "fp16_relaxed_precision": self.fp16_relaxed_precision,
            "weight_sharing": self.weight_sharing,
        }


@dataclass(frozen=True)
class Model:
    """A model to export.

    Attributes:
        name: names the folder and the tasks; unique in the pipeline.
        path: the model folder, absolute, links resolved; not checked for existence.
        chunk_sizes: prompt chunk lengths in the user's order, without decode.
        targets: the targets that it is exported for, in the pipeline's order.
        where: ``file:line:column`` of its entry, for messages; no part of its identity.
    """

    name: str
    path: Path
    chunk_sizes: tuple[int, ...]
    targets: tuple[Target, ...]
    where: str = field(default="", compare=False)

    @property
    def shapes(self) -> tuple[int, ...]:
        """Sequence lengths by shape index: decode, 1, then the chunk sizes."""
        return (1, *self.chunk_sizes)


@dataclass(frozen=True)
class Toolchain:
    """Who runs which stage: ``native`` is what pip installs, ``external`` is the user's own.

    Attributes:
        io, partition, link: ``native`` or ``external``; translation goes with partition.
        mnn_path: a build folder of MNN, absolute; set if io or partition is external.
        qnn_sdk_root: a QAIRT SDK, absolute; set if link is external.
        graph_name: what the names of an external partition's graphs begin with.
        skips: names of ops that an external partition leaves on the CPU.
        max_history_token: KV cache on the NPU in tokens; 0 is attention on the CPU.
        time_limit_s: seconds after which a tool is ended.
        tools: files and folders, absolute, that the tools use and that cannot be seen from
            outside; ``None`` where that is not said.
    """

    io: str = "native"
    partition: str = "native"
    link: str = "native"
    mnn_path: Path | None = None
    qnn_sdk_root: Path | None = None
    graph_name: str = "graph"
    skips: tuple[str, ...] = ()
    max_history_token: int = 0
    time_limit_s: int = 7200
    tools: tuple[str, ...] | None = None

    def is_native(self) -> bool:
        """Whether every stage is ``native``."""
        return {self.io, self.partition, self.link} == {"native"}


@dataclass(frozen=True)
class Pipeline:
    """A whole pipeline.

    Attributes:
        file: the YAML file, absolute, links resolved.
        runtime: JSON values for ``config_qnn.json``; do not change it.
        build_dir, dist_dir: absolute, links resolved; need not exist.
        max_memory: bytes that the tasks of a run may use together, ``None`` if not said.
        executor: where the costly stages are done: ``local`` or ``dask``.
        scheduler: address of the Dask scheduler; ``None`` for one that the run starts.
        cache: the mapping ``cache``, its ``dir`` absolute; do not change it.
        warnings: messages to print once.
        toolchain: who runs which stage.
    """

    file: Path
    models: tuple[Model, ...]
    targets: tuple[Target, ...]
    runtime: dict[str, Any] = field(hash=False)
    build_dir: Path
    dist_dir: Path
    max_memory: int | None = None
    executor: str = "local"
    scheduler: str | None = None
    cache: dict[str, Any] = field(default_factory=dict, hash=False)
    warnings: tuple[str, ...] = ()
    toolchain: Toolchain = Toolchain()

    def pairs(self) -> Iterator[tuple[Model, Target]]:
        """Every model with every target that it is exported for."""
        return ((model, target) for model in self.models for target in model.targets)
