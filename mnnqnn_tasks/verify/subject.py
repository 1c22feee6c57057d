"""What is verified, and how the user wants it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.verify.thresholds import Thresholds

#: Told what happens next, in a few words.
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What a user can choose.

    Attributes:
        text: verify with this text (or the file of this name) instead of the IO samples.
        prompt: verify with this user message and the CPU's greedy answer, and compare
            the next token at every position of the answer.
        answer_tokens: the answer is cut after as many tokens.
        shapes: only these; all if empty.
        jobs: shapes that run at once.
    """

    text: str | None = None
    prompt: str | None = None
    answer_tokens: int = 32
    shapes: tuple[int, ...] = ()
    jobs: int = 2
    thresholds: Thresholds = field(default_factory=Thresholds)


@dataclass(frozen=True)
class Subject:
    """What is verified.

    Attributes:
        name, target: of the model and the target, for the report.
        build: the model's build folder.
        model_dir: the model folder.
        shapes: tokens per call by shape index; the first is 1.
        options: the target's options, which the graphs are prepared with.
    """

    name: str
    target: str
    build: Path
    model_dir: Path
    shapes: tuple[int, ...]
    options: TargetOptions
    lib_dir: Path | None = None

    @property
    def report(self) -> Path:
        """Where the report goes."""
        return self.build / "verify" / f"{self.target}.json"
