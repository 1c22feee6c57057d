"""``genie_config.json`` and the backend extensions file: what goes in, and writing them.

Keys are those that libGenie takes of a ``basic`` dialog on QnnHtp (2.47 to 2.51 were asked);
``schemas/genie_config.schema.json`` describes the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import GenieError
from mnnqnn_tasks.files import write_json

CONFIG = "genie_config.json"
EXTENSIONS = "htp_backend_ext_config.json"


@dataclass(frozen=True)
class Penalty:
    """Makes tokens rarer that the text has already.

    Attributes:
        last_n: of how many of the last tokens.
        repetition: divides their logits; 1 changes nothing.
        presence, frequency: are subtracted, once or for every time; 0 changes nothing.
    """

    last_n: int
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """``token-penalty`` of libGenie."""
        return {
            "version": 1,
            "penalize-last-n": self.last_n,
            "repetition-penalty": self.repetition,
            "presence-penalty": self.presence,
            "frequency-penalty": self.frequency,
        }


@dataclass(frozen=True)
class Sampler:
    """How the next token is chosen.

    Attributes:
        temperature: 0 or more.
        top_k: of so many tokens; 1 is greedy.
        top_p: of so much probability, 0 to 1.
        penalty: None for none.
    """

    seed: int = 42
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    penalty: Penalty | None = None

    def to_json(self) -> dict[str, Any]:
        """``sampler`` of a dialog."""
        made: dict[str, Any] = {
            "version": 1,
            "seed": self.seed,
            "temp": self.temperature,
            "top-k": self.top_k,
            "top-p": self.top_p,
        }
        return {**made, "token-penalty": self.penalty.to_json()} if self.penalty else made


@dataclass(frozen=True)
class Device:
    """The chip, as the SoC table has it; both numbers are needed.

    Without ``soc_model`` an answer begins well and drifts into garbage (seen on an IQ-9075 with
    QAIRT 2.42).

    Attributes:
        soc_id: Qualcomm's number of the chip.
        dsp_arch: Hexagon architecture, ``v75``.
        weight_sharing: the binaries were made with shared weights.
    """

    soc_id: int
    dsp_arch: str
    perf_profile: str = "burst"
    weight_sharing: bool = True

    def to_json(self) -> dict[str, Any]:
        """The backend extensions file."""
        core = {"core_id": 0, "perf_profile": self.perf_profile}
        device = {"soc_model": self.soc_id, "dsp_arch": self.dsp_arch, "cores": [core]}
        made: dict[str, Any] = {"devices": [device], "memory": {"mem_type": "shared_buffer"}}
        if self.weight_sharing:
            made["context"] = {"weight_sharing_enabled": True}
        return made


@dataclass(frozen=True)
class Rope:
    """Rotary embedding.

    Attributes:
        theta: base of the frequencies.
        dim: entries of cos and sin per token, half the head dimension.
        scaling: ``rope-scaling`` of libGenie, ``rope-type`` and what belongs to it; None for
            plain RoPE.
    """

    theta: float
    dim: int
    scaling: dict[str, Any] | None = None


@dataclass(frozen=True)
class GenieConfig:
    """A dialog with one model of context binaries on the NPU.

    Attributes:
        context_size: the largest context length of the graphs, tokens.
        vocabulary: entries of the logits.
        bos_token: id of the token that begins a text, -1 for none.
        eos_tokens: ids of the tokens that end an answer.
        head_dim: elements of a key per head, ``kv-dim``.
        ctx_bins: the binaries in the order of the splits.
        tokenizer: a Hugging Face ``tokenizer.json``.
        cpu_mask, threads, poll, use_mmap: how the runtime runs on the device's CPU.
    """

    context_size: int
    vocabulary: int
    bos_token: int
    eos_tokens: tuple[int, ...]
    head_dim: int
    rope: Rope
    ctx_bins: tuple[str, ...]
    tokenizer: str = "tokenizer.json"
    extensions: str = EXTENSIONS
    sampler: Sampler = field(default_factory=Sampler)
    threads: int = 3
    cpu_mask: str = "0xe0"
    poll: bool = True
    use_mmap: bool = True

    def __post_init__(self) -> None:
        if not self.ctx_bins or not self.eos_tokens:
            what = "context binaries" if not self.ctx_bins else "tokens that end an answer"
            raise GenieError(f"a Genie config without {what}", todo="name one or more")

    def to_json(self) -> dict[str, Any]:
        """``genie_config.json``."""
        eos: int | list[int] = list(self.eos_tokens)
        return {
            "dialog": {
                "version": 1,
                "type": "basic",
                "context": {
                    "version": 1,
                    "size": self.context_size,
                    "n-vocab": self.vocabulary,
                    "bos-token": self.bos_token,
                    "eos-token": eos if len(self.eos_tokens) > 1 else self.eos_tokens[0],
                },
                "sampler": self.sampler.to_json(),
                "tokenizer": {"version": 1, "path": self.tokenizer},
                "engine": {
                    "version": 1,
                    "n-threads": self.threads,
                    "backend": {
                        "version": 1,
                        "type": "QnnHtp",
                        "QnnHtp": self._htp(),
                        "extensions": self.extensions,
                    },
                    "model": self._model(),
                },
            }
        }

    def _htp(self) -> dict[str, Any]:
        htp = {
            "version": 1,
            "use-mmap": self.use_mmap,
            "spill-fill-bufsize": 0,
            "mmap-budget": 0,
            "poll": self.poll,
            "cpu-mask": self.cpu_mask,
            "kv-dim": self.head_dim,
            "allow-async-init": False,
        }
        # libGenie refuses these two beside a positional-encoding block.
        plain = {"pos-id-dim": self.rope.dim, "rope-theta": self.rope.theta}
        return htp if self.rope.scaling else {**htp, **plain}

    def _model(self) -> dict[str, Any]:
        model: dict[str, Any] = {
            "version": 1,
            "type": "binary",
            "binary": {"version": 1, "ctx-bins": list(self.ctx_bins)},
        }
        if self.rope.scaling:
            model["positional-encoding"] = {
                "type": "rope",
                "rope-dim": self.rope.dim,
                "rope-theta": self.rope.theta,
                "rope-scaling": self.rope.scaling,
            }
        return model


def write(folder: Path, config: GenieConfig, device: Device) -> Path:
    """Write the config and its extensions file; the path of the config.

    Raises:
        DiskError.
    """
    write_json(folder / config.extensions, device.to_json())
    write_json(folder / CONFIG, config.to_json())
    return folder / CONFIG
