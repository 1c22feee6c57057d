"""The rules of Genie's loader: which releases have them, and where each was seen.

The one place that knows in which release something changed: the code of a rule asks `holds`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from mnnqnn_tasks.genie.versions import OLDEST, VERSIONS, Version, nearest


@dataclass(frozen=True)
class Rule:
    """A rule of the loader.

    Attributes:
        key: its name here.
        text: what it says.
        source: where it was seen.
        since: first release that it is known for.
        until: first release that does not have it any more, None where all later ones do.
    """

    key: str
    text: str
    source: str
    since: Version = OLDEST
    until: Version | None = None

    def holds(self, version: Version) -> bool:
        """Whether ``version`` has the rule."""
        release = nearest(version)
        return self.since <= release and (self.until is None or release < self.until)

    @property
    def span(self) -> str:
        """The known releases that have it: ``2.42``, ``2.42 to 2.49``, ``2.50 on``."""
        if self.until is None:
            return f"{self.since} on"
        last = max(version for version in VERSIONS if version < self.until)
        return str(last) if last == self.since else f"{self.since} to {last}"


_SEED = "sample source of QAIRT 2.42"
_TRIED = "tried with libGenie 2.47, 2.48, 2.49, 2.50 and 2.51"
_ALIKE = f"{_TRIED}, and taken for 2.42's as well"
_2_47, _2_48, _2_50 = Version(2, 47), Version(2, 48), Version(2, 50)

RULES: tuple[Rule, ...] = (
    Rule("mask", "the cache group past_ needs a graph with the input attention_mask", _ALIKE),
    Rule(
        "ar",
        "AR comes from input_ids, attention_mask, past_key outputs, inputs_embeds or logits, else "
        "from (ar|AR)_?digits in the name; a graph with neither is refused",
        f"{_SEED}; {_TRIED}",
    ),
    Rule(
        "ar-embeds",
        "AR comes from inputs_embeds before attention_mask and past_key outputs",
        f"{_SEED}; tried with libGenie 2.47, which takes the mask first",
        until=_2_47,
    ),
    Rule("number", "a number in a name that the loader reads fits 32 bits", _ALIKE),
    Rule(
        "cl",
        "CL comes from attention_mask or past_key, else from (cl|CL)_?digits in the name, else it "
        "is the largest number in the name if above 501; a graph with neither joins every "
        "context length that others of the model have",
        f"{_SEED}; {_TRIED}",
    ),
    Rule(
        "cl-unknown",
        "a graph without CL joins one context length, and a variant takes one such graph",
        _ALIKE,
    ),
    Rule(
        "order-strings",
        "splits are ordered as strings: _10_ before _2_",
        f"{_SEED} (std::set); tried with libGenie 2.47, 2.48 and 2.49",
        until=_2_50,
    ),
    Rule(
        "order-numbers",
        "splits are ordered by the number K of _K_of_; names without one, or with 0, come last",
        "tried with libGenie 2.50 and 2.51",
        since=_2_50,
    ),
    Rule(
        "context-size",
        "context.size is not above the largest CL, unless long context is on",
        f"{_SEED}; {_TRIED}",
    ),
    Rule(
        "context-size-equal",
        "context.size is not below the largest CL either, unless long context is on",
        "report of QAIRT 2.42: it refuses what differs; tried with libGenie 2.47, which takes it",
        until=_2_47,
    ),
    Rule("kv-dimension", "a past_key input has CL or CL - AR positions", _ALIKE),
    Rule(
        "kv-mapping",
        "the first split with a KV cache has a layer that the same split of all variants writes; "
        "else the loader crashes",
        "tried with libGenie 2.47, 2.48 and 2.49, which crash, and 2.50, which does not",
        until=_2_50,
    ),
    Rule(
        "kv-calls",
        "mask and KV cache have as many tokens as the past_key outputs, whatever input_ids has",
        "tried with libGenie 2.47, 2.48 and 2.49, and 2.50, which takes AR",
        until=_2_50,
    ),
    Rule(
        "kv-dim",
        "past keys and values have kv-dim of the config as head dimension",
        "tried with libGenie 2.47, and 2.48, which takes any",
        until=_2_48,
    ),
    Rule(
        "first-input",
        "graphs of the first split have input_ids, or embeddings",
        f"{_SEED}; {_TRIED}",
    ),
    Rule(
        "last-output",
        "graphs of the last split have logits",
        f"{_SEED}; {_TRIED}; in a dialog pooled_output, sequence_output and their like will not do",
    ),
    Rule(
        "shape",
        "embeddings, logits, mask, positions and KV cache have the shapes of AR, CL and config",
        _ALIKE,
    ),
    Rule(
        "quantization",
        "tensors of one name have one scale and offset in all splits and variants",
        _ALIKE,
    ),
    Rule("positions", "a graph has position_ids_sin and position_ids_cos", _ALIKE),
    Rule("kv-cache", "the last variant has past_key outputs", _ALIKE),
    Rule(
        "kv-values",
        "the last variant has a past_value output for every past_key output",
        f"{_TRIED}, which crash",
    ),
    Rule(
        "kv-value-inputs",
        "there is a past_value input for every past_key input; without one the loader uses memory "
        "that it never set, and loads or dies by chance",
        f"{_TRIED}: of 12 loads of one bundle up to 8 died, of the next one none; valgrind sees "
        "values that were never set in 2.47, and a write behind its buffer in 2.51",
    ),
)


@functools.cache
def _by_key() -> dict[str, Rule]:
    return {rule.key: rule for rule in RULES}


def holds(key: str, version: Version) -> bool:
    """Whether the release, or the last known one before it, has the rule called ``key``.

    Raises:
        KeyError: there is no such rule.
    """
    return _by_key()[key].holds(version)
