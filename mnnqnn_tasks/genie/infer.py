"""How the loader finds AR and CL of a graph: from its tensors, else from its name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from mnnqnn_tasks.genie.graphs import GraphInfo, Tensor
from mnnqnn_tasks.genie.rulebook import holds
from mnnqnn_tasks.genie.versions import Version

#: The number in a name is a context length only above this, so that an AR is never taken for one
#: (QAIRT 2.42, ``CONTEXT_SAFE_LIMIT``; 501 and 502 tried with 2.47 to 2.51).
CONTEXT_SAFE_LIMIT = 501

#: What the loader asks for as attention mask of its default cache group (2.47 to 2.51).
MASK = "attention_mask"

_AR = re.compile(r"(?:ar|AR)_?([0-9]+)")
_CL = re.compile(r"(?:cl|CL)_?([0-9]+)")
_NUMBER = re.compile(r"[0-9]+")
_KEY = re.compile(r"past_key_[0-9].*")
_VALUE = re.compile(r"past_value_[0-9].*")
_INT_MAX = (1 << 31) - 1


@dataclass(frozen=True)
class Found:
    """A number that the loader found.

    Attributes:
        value: the number; None where there is none; above 32 bits the loader gives up.
        source: the tensor's name, ``name`` for the graph's name, else empty.
    """

    value: int | None
    source: str = ""

    @property
    def overflows(self) -> bool:
        """Whether the loader's conversion fails ("stoi: out of range")."""
        return self.value is not None and self.value > _INT_MAX


def elements(tensor: Tensor) -> int:
    """Number of elements."""
    return math.prod(tensor.dims)


def _rows(tensor: Tensor) -> int | None:
    """Elements per element of the last dimension; None for what has no rows."""
    return elements(tensor) // tensor.dims[-1] if tensor.dims and tensor.dims[-1] else None


def past_keys(tensors: tuple[Tensor, ...], suffix: str) -> dict[str, Tensor]:
    """KV cache tensors ``past_key_..._in`` or ``_out``, by name, in the order of the file."""
    return {t.name: t for t in tensors if _KEY.fullmatch(t.name) and t.name.endswith(suffix)}


def past_values(tensors: tuple[Tensor, ...], suffix: str) -> dict[str, Tensor]:
    """As `past_keys`, ``past_value_..._in`` or ``_out``."""
    return {t.name: t for t in tensors if _VALUE.fullmatch(t.name) and t.name.endswith(suffix)}


def _first_key(tensors: tuple[Tensor, ...], suffix: str) -> Tensor | None:
    return next(iter(past_keys(tensors, suffix).values()), None)


def _ids(graph: GraphInfo) -> tuple[int | None, str]:
    tensor = graph.input("input_ids")
    return (elements(tensor), tensor.name) if tensor else (None, "")


def _mask(graph: GraphInfo) -> tuple[int | None, str]:
    tensor = graph.input(MASK)
    return (_rows(tensor), tensor.name) if tensor else (None, "")


def _embeds(graph: GraphInfo) -> tuple[int | None, str]:
    tensor = graph.input("inputs_embeds")
    return (_rows(tensor), tensor.name) if tensor else (None, "")


def _key_out(graph: GraphInfo) -> tuple[int | None, str]:
    tensor = _first_key(graph.outputs, "_out")
    return (tensor.dims[-1], tensor.name) if tensor and tensor.dims else (None, "")


def _logits(graph: GraphInfo) -> tuple[int | None, str]:
    tensor = graph.output("logits")
    return (_rows(tensor), tensor.name) if tensor else (None, "")


_Probe = Callable[[GraphInfo], tuple[int | None, str]]

#: Tensors that AR is taken from, in order; with the rule ar-embeds, and without it.
_AR_PROBES: dict[bool, tuple[_Probe, ...]] = {
    True: (_ids, _embeds, _mask, _key_out, _logits),
    False: (_ids, _mask, _key_out, _embeds, _logits),
}


def tokens(graph: GraphInfo, version: Version) -> Found:
    """AR: tokens per call."""
    for probe in _AR_PROBES[holds("ar-embeds", version)]:
        value, source = probe(graph)
        if value is not None:
            return Found(value, source)
    return tokens_by_name(graph.name)


def tokens_by_name(name: str) -> Found:
    """AR as the name says it: the first ``ar`` or ``AR`` with a number behind it."""
    found = _AR.search(name)
    return Found(_number(found[1]), "name") if found else Found(None)


def context(graph: GraphInfo) -> Found:
    """CL: context length, from the attention mask or the KV cache, else from the name."""
    mask = graph.input(MASK)
    if mask is not None and mask.dims:
        return Found(mask.dims[-1], mask.name)
    before, after = _first_key(graph.inputs, "_in"), _first_key(graph.outputs, "_out")
    if before is not None and after is not None and before.dims and after.dims:
        return Found(before.dims[-1] + after.dims[-1], before.name)
    return context_by_name(graph.name)


def context_by_name(name: str) -> Found:
    """CL as the name says it: behind ``cl`` or ``CL``, else the largest number above 501."""
    found = _CL.search(name)
    if found:
        return Found(_number(found[1]), "name")
    numbers = [_number(text) for text in _NUMBER.findall(name)]
    overflowing = [number for number in numbers if number > _INT_MAX]
    largest = max(overflowing or numbers, default=0)
    return Found(largest, "name") if largest > CONTEXT_SAFE_LIMIT else Found(None)


def _number(text: str) -> int:
    """The number; what has more digits than any integer of the loader's is one above them all."""
    digits = text.lstrip("0")
    return int(digits or "0") if len(digits) <= 18 else 10**18
