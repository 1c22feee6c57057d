"""The model of Genie's loader against what libGenie itself said.

``data/genie_witness.json`` was recorded with libGenie of the wheels onnxruntime-qnn 2.3.0 to
2.7.0 (QAIRT 2.47 to 2.51), which loaded small context binaries with these graphs: the table that
it logged, what it printed, whether it died.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mnnqnn_tasks.errors import GenieError
from mnnqnn_tasks.genie import order, rulebook, rules
from mnnqnn_tasks.genie.graphs import GraphInfo, Tensor
from mnnqnn_tasks.genie.infer import context_by_name, tokens, tokens_by_name
from mnnqnn_tasks.genie.prediction import LoaderConfig
from mnnqnn_tasks.genie.versions import KNOWN, NEWEST, OLDEST, VERSIONS, Version, parse_version

WITNESS = json.loads((Path(__file__).parent / "data" / "genie_witness.json").read_text("utf-8"))


def tensors(index: int) -> tuple[Tensor, ...]:
    made = []
    for text in WITNESS["ports"][index]:
        name, dtype, dims, *quantized = text.split(" ")
        tensor = Tensor(name, dtype, tuple(map(int, dims.split("x"))))
        if quantized:
            scale, offset = float(quantized[0]), int(quantized[1])
            tensor = replace(tensor, encoding="SCALE_OFFSET", scale=scale, offset=offset)
        made.append(tensor)
    return tuple(made)


def graphs(case: dict[str, Any]) -> list[GraphInfo]:
    return [
        GraphInfo(g["name"], tensors(g["inputs"]), tensors(g["outputs"])) for g in case["graphs"]
    ]


@pytest.mark.parametrize("case", WITNESS["cases"], ids=lambda case: case["case"])
def test_the_loader_said_the_same(case: dict[str, Any]) -> None:
    config = LoaderConfig(**case["config"])
    for said in case["said"]:
        for release in said["qairt"]:
            found = rules.predict(graphs(case), config, parse_version(release))
            if found.by_chance and (said["accepted"] or said["crash"]):
                continue
            assert found.accepted == said["accepted"], (release, found.refusals)
            assert any(r.crash for r in found.refusals) == said["crash"], release
            if said["crash"]:
                continue
            assert {f"{v.ar},{v.cl}": list(v.graphs) for v in found.variants} == said["table"]
            messages = [refusal.message for refusal in found.refusals]
            assert set(messages) <= set(said["says"]), release
            assert len(messages) >= sum(" - " in text for text in said["says"] if ":" in text[:60])


def test_the_witness_knows_every_rule() -> None:
    """Every rule of the model decides some case that was tried."""
    refused = {
        refusal.rule
        for case in WITNESS["cases"]
        for known in KNOWN
        for refusal in rules.predict(
            graphs(case), LoaderConfig(**case["config"]), known.version
        ).refusals
    }
    # They say what other rules compare with, and refuse nothing themselves.
    silent = {"cl", "order-strings", "order-numbers", "ar-embeds", "kv-calls", "kv-dim"}
    live = {"kv-values"}  # test_genie_loader asks about it
    assert refused | silent | live == {rule.key for rule in rulebook.RULES}


def test_every_rule_cites_where_it_was_seen() -> None:
    """The source of 2.42 where it is a rule of 2.42, and the releases on both sides of a change."""
    keys = [rule.key for rule in rulebook.RULES]
    assert len(keys) == len(set(keys))
    for rule in rulebook.RULES:
        cited = {Version(*map(int, text.split("."))) for text in re.findall(r"2\.\d+", rule.source)}
        have = {known.version for known in KNOWN if rule.holds(known.version)}
        assert have
        assert cited <= set(VERSIONS)
        assert have - {Version(2, 42)} <= cited
        assert "2.42" in rule.source or rule.since > Version(2, 42) or rule.key in ASKED_FROM_2_47
        for change in filter(None, (rule.until, rule.since if rule.since > OLDEST else None)):
            assert change in VERSIONS


#: What was never heard of before: nobody has a libGenie of 2.42 that runs here.
ASKED_FROM_2_47 = {"kv-mapping", "kv-calls", "kv-dim", "kv-values", "kv-value-inputs"}


@pytest.mark.parametrize("rule", [r for r in rulebook.RULES if r.until], ids=lambda rule: rule.key)
def test_a_rule_that_ended_makes_a_difference(rule: rulebook.Rule) -> None:
    """Some graphs are judged in another way by the last release with it and the first without."""
    assert rule.until is not None
    before = VERSIONS[VERSIONS.index(rule.until) - 1]
    told = [
        [
            replace(rules.predict(given, LoaderConfig(**case["config"]), release), version=before)
            for release in (before, rule.until)
        ]
        for case in WITNESS["cases"]
        for given in [graphs(case)]
    ]
    assert any(one != other for one, other in told)


def test_the_readme_has_every_rule_that_changed() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| (.+?) \| (2\.\d\d(?: to 2\.\d\d| on)?) \|$", readme, re.M)
    changed = {
        (rule.text, rule.span)
        for rule in rulebook.RULES
        if not all(rule.holds(known.version) for known in KNOWN)
    }
    assert {(text.replace("`", ""), span) for text, span in rows} == changed


@pytest.mark.parametrize(
    ("name", "ar", "cl"),
    [
        ("token_ar1_cl4096_2_of_8", 1, 4096),
        ("AR_32_CL_1024", 32, 1024),
        ("qwen2_5_7b_instruct_prompt_2_of_8", None, None),
        ("model_501_1", None, None),
        ("model_502_1", None, 502),
        ("x_600_1024_7", None, 1024),
        ("aR8_cL64", None, None),
        ("clear8cl64", 8, 64),
        ("star16_ar8", 16, None),
        ("", None, None),
        ("cl99999999999", None, 99999999999),
        ("n" + "9" * 5000, None, 10**18),
    ],
)
def test_numbers_of_a_name(name: str, ar: int | None, cl: int | None) -> None:
    assert tokens_by_name(name).value == ar
    assert context_by_name(name).value == cl


def test_embeddings_before_the_mask_in_2_42() -> None:
    mask, embeds = (
        Tensor("attention_mask", "FLOAT_16", (1, 1, 8, 64)),
        Tensor("inputs_embeds", "FLOAT_16", (1, 16, 8)),
    )
    graph = GraphInfo("g", (mask, embeds), ())
    assert tokens(graph, Version(2, 42)).value == 16
    assert tokens(graph, Version(2, 47)).value == 8


def test_order_by_version() -> None:
    names = [f"a_{k}_of_11" for k in range(1, 12)]
    assert order.ordered(names, Version(2, 49))[:3] == ("a_10_of_11", "a_11_of_11", "a_1_of_11")
    assert list(order.ordered(names, Version(2, 50))) == names
    padded = [f"a_{k:02}_of_11" for k in range(1, 12)]
    lettered = [*names[:9], "a_T0_of_11", "a_T1_of_11"]
    for version in (Version(2, 42), Version(2, 49), NEWEST):
        assert list(order.ordered(reversed(padded), version)) == padded
        assert list(order.ordered(reversed(lettered), version)) == lettered


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.47", Version(2, 47)),
        ("v2.51.0.260929181845", Version(2, 51)),
        (" 2.42.0 ", Version(2, 42)),
        ("1.14.0", Version(2, 42)),
        ("1.21", Version(2, 51)),
        ("3.0", Version(3, 0)),
    ],
)
def test_version(text: str, version: Version) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "2", "latest", "2.x", "1.20.0", "1.99", "2.47;rm", "9" * 99])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(GenieError, match=r"version|release"):
        parse_version(text)


def test_unknown_releases_have_the_rules_of_the_last_known_before() -> None:
    names = [GraphInfo(f"ar1_cl64_{k}_of_10", (), ()) for k in range(1, 11)]
    mask = (Tensor("attention_mask", "FLOAT_16", (1, 1, 1, 64)),)
    bundle = [GraphInfo(graph.name, mask, ()) for graph in names]
    for old, new in (("2.30", "2.42"), ("2.45", "2.42"), ("2.99", "2.51")):
        first, second = (rules.predict(bundle, version=parse_version(v)) for v in (old, new))
        assert first.variants == second.variants
        assert str(first.version) == old
