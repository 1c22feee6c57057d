"""What a target asks of QNN: the options that change the bytes of a context binary."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class TargetOptions:
    """Options of one target, as a pipeline names them.

    Attributes:
        soc_id: Qualcomm's number of the chip (``Qnn_SocModel_t``), 57 for SM8650.
        dsp_arch: Hexagon architecture, ``v75``; checked against what the library
            associates with ``soc_id``.
        vtcm_mb: tightly coupled memory that a graph may use, MB; 0 takes the chip's maximum.
        optimization_level: ``FINALIZE_OPTIMIZATION_FLAG``, 1 (fast to prepare) to 3.
        hvx_threads: HVX threads that a graph may use.
        fp16_relaxed_precision: float tensors may be computed in 16 bits.
        weight_sharing: graphs of one binary keep one copy of equal weights.
    """

    soc_id: int
    dsp_arch: str
    vtcm_mb: int = 8
    optimization_level: int = 3
    hvx_threads: int = 4
    fp16_relaxed_precision: bool = True
    weight_sharing: bool = True

    def to_json(self) -> dict[str, int | str | bool]:
        """A JSON object with one key per field."""
        return asdict(self)
