"""What a context binary says of itself: frozen dataclasses and their JSON form."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class TensorInfo:
    """An input or output as the binary declares it.

    Attributes:
        name, dtype, dims: as in `mnnqnn_tasks.qnn.ir.Tensor`.
        encoding: name of the quantization encoding, None for a plain type.
        scale, offset: of a per-tensor encoding, else None.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    encoding: str | None = None
    scale: float | None = None
    offset: int | None = None


@dataclass(frozen=True)
class GraphInfo:
    """A graph of a binary; options are None where the binary does not tell them.

    Attributes:
        vtcm_bytes: VTCM that the graph was prepared for.
        optimization_level: ``FINALIZE_OPTIMIZATION_FLAG``.
        hvx_threads: HVX threads that the graph was prepared for.
        spill_fill_bytes: memory that the graph spills to.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    vtcm_bytes: int | None = None
    optimization_level: int | None = None
    hvx_threads: int | None = None
    spill_fill_bytes: int | None = None


@dataclass(frozen=True)
class BinaryInfo:
    """A context binary.

    Attributes:
        build_id: of the library that wrote it.
        core_api: core API version, ``2.40.0``.
        soc_id: chip that it was made for, None where the binary does not tell.
        dsp_arch: ``v75``, None where the binary does not tell.
        size: bytes of the whole binary.
        graphs: in the order of the binary.
    """

    build_id: str
    core_api: str
    soc_id: int | None
    dsp_arch: str | None
    size: int
    graphs: tuple[GraphInfo, ...]

    def to_json(self) -> dict[str, Any]:
        """A JSON object with one key per field; `from_json` is its inverse."""
        return asdict(self)


def _tensor(data: dict[str, Any]) -> TensorInfo:
    return replace(TensorInfo(**data), dims=tuple(data["dims"]))


def _graph(data: dict[str, Any]) -> GraphInfo:
    return replace(
        GraphInfo(**data),
        inputs=tuple(map(_tensor, data["inputs"])),
        outputs=tuple(map(_tensor, data["outputs"])),
    )


def from_json(data: dict[str, Any]) -> BinaryInfo:
    """Read back what `BinaryInfo.to_json` gave."""
    return replace(BinaryInfo(**data), graphs=tuple(map(_graph, data["graphs"])))
