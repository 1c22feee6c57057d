"""Names of Genie's graphs: ``{type}_ar{N}_cl{M}_{K}_of_{T}``.

The convention of Qualcomm's exports (qai_hub_models, ``get_qnn_context_graph_name``):
``prompt`` where a graph takes more than one token at once, else ``token``; AR, tokens per
call; CL, context length; split K of T, from 1.  Loaders up to QAIRT 2.49 order splits as
strings, so K is padded with zeros where T has more than one digit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mnnqnn_tasks.errors import GenieError

_NAME = re.compile(r"(prompt|token)_ar([0-9]+)_cl([0-9]+)_([0-9]+)_of_([0-9]+)", re.ASCII)

#: Numbers in a name fit the loader's 32-bit integers.
_LIMIT = 1 << 31


@dataclass(frozen=True, order=True)
class GraphName:
    """What a well-formed name says.

    Attributes:
        ar: tokens per call, from 1.
        cl: context length in tokens, from ``ar``.
        split: from 1.
        splits: how many splits there are.
    """

    ar: int
    cl: int
    split: int
    splits: int

    def __post_init__(self) -> None:
        for what, value in (("AR", self.ar), ("CL", self.cl), ("split count", self.splits)):
            if not 1 <= value < _LIMIT:
                raise GenieError(f"{what} {value} is no graph's", why="it is a number from 1")
        if self.cl < self.ar:
            raise GenieError(
                f"context length {self.cl} is below the {self.ar} tokens of one call",
                todo="swap them, or take a longer context",
            )
        if not 1 <= self.split <= self.splits:
            raise GenieError(f"split {self.split} of {self.splits}", why="splits count from 1")

    @property
    def kind(self) -> str:
        """``prompt`` for more than one token, else ``token``."""
        return "prompt" if self.ar > 1 else "token"

    def __str__(self) -> str:
        number = str(self.split).zfill(len(str(self.splits)))
        return f"{self.kind}_ar{self.ar}_cl{self.cl}_{number}_of_{self.splits}"


def parse(name: str) -> GraphName | None:
    """What ``name`` says, None where it does not follow the convention.

    Split numbers may be padded or not; the type must fit the number of tokens.
    """
    found = _NAME.fullmatch(name)
    if found is None or any(len(number) > 10 for number in found.groups()[1:]):
        return None
    try:
        made = GraphName(*(int(number) for number in found.groups()[1:]))
    except GenieError:
        return None
    return made if made.kind == found[1] else None


@dataclass(frozen=True)
class NamePlan:
    """Names of all graphs of a model, in one place.

    Attributes:
        context_lengths: CL, ascending.
        sequence_lengths: AR, descending: the prompt first, as Qualcomm's exports have it.
        splits: how many pieces the model is cut into.
    """

    context_lengths: tuple[int, ...]
    sequence_lengths: tuple[int, ...]
    splits: int

    def __post_init__(self) -> None:
        for what, values in (
            ("context lengths", self.context_lengths),
            ("sequence lengths", self.sequence_lengths),
        ):
            if not values or len(set(values)) != len(values):
                raise GenieError(
                    f"{what} {list(values)} name no graphs",
                    why="they are one number or more, each once",
                )
        list(self)

    @property
    def context_size(self) -> int:
        """``context.size`` of genie_config.json: the largest context length."""
        return max(self.context_lengths)

    def split(self, number: int) -> tuple[GraphName, ...]:
        """Names of the graphs of one split, from 1: those that share its weights."""
        return tuple(
            GraphName(ar, cl, number, self.splits)
            for cl in self.context_lengths
            for ar in self.sequence_lengths
        )

    def __iter__(self) -> Iterator[GraphName]:
        for number in range(1, self.splits + 1):
            yield from self.split(number)


def plan(context_lengths: Sequence[int], sequence_lengths: Sequence[int], splits: int) -> NamePlan:
    """Plan the names of a model.

    Raises:
        GenieError: no lengths, one twice, one below 1, a context shorter than a call, or no
            splits.
    """
    if splits < 1:
        raise GenieError(f"{splits} splits", why="a model is cut into one piece or more")
    return NamePlan(
        tuple(sorted(context_lengths)), tuple(sorted(sequence_lengths, reverse=True)), splits
    )
