"""The report's JSON form, its table, and what counts as a failure."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from mnnqnn_tasks.files import canonical_json
from mnnqnn_tasks.qnn.ir import Graph, ScaleOffset, Tensor
from mnnqnn_tasks.verify import table
from mnnqnn_tasks.verify.metrics import Excursion, compare
from mnnqnn_tasks.verify.report import (
    ChainResult,
    GraphResult,
    OutputResult,
    PromptResult,
    Report,
    judge,
    to_json,
)
from mnnqnn_tasks.verify.thresholds import Activations, Thresholds, activations, strictest

SCHEMA = Path(__file__).parents[1] / "schemas" / "report.schema.json"


def output(name: str, want: Any, got: Any, kind: Activations = "float") -> OutputResult:
    found = compare(np.asarray(want), np.asarray(got))
    return judge(name, f"/model/{name}", (2,), found, Thresholds().graph_miss(kind, found))


def report(*outputs: OutputResult) -> Report:
    return Report(
        model="demo",
        target="sm8650",
        sample="IO samples",
        thresholds=Thresholds(),
        libraries={"MNN": "3.6.1"},
        graphs=[GraphResult("graph0", 1, "float", outputs)],
    )


GOOD = output("t1", [1.0, 2.0], [1.0, 2.0001])
BAD = output("t2", [1.0, 2.0], [1.0, 2.5])
WORSE = output("t3", [1.0, 2.0], [-1.0, -2.0])
ZERO = output("t4", [0.0, 0.0], [0.0, 0.0])
NAN = output("t5", [1.0, 2.0], [1.0, math.nan])
SAME = output("t6", [1.0, 2.0], [1.0, 2.0])


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(SCHEMA.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_statuses() -> None:
    statuses = [o.status for o in (GOOD, BAD, WORSE, ZERO, NAN, SAME)]
    assert statuses == ["passed", "failed", "failed", "not exercised", "failed", "passed"]


def test_fixed_activations_are_held_to_cosine() -> None:
    assert output("t", [1.0, 2.0], [1.0, 2.1]).status == "failed"
    assert output("t", [1.0, 2.0], [1.0, 2.1], "fixed").status == "passed"
    assert output("t", [1.0, 2.0], [1.0, -2.0], "fixed").status == "failed"


def test_problems_come_worst_first_and_name_graph_and_output() -> None:
    problems = report(GOOD, BAD, WORSE, NAN).problems()
    assert [line.split()[1] for line in problems] == ["t5", "t3", "t2"]
    assert problems[0].startswith("graph0 t5 (/model/t5): 1 of 2 NPU values")
    assert "SNR 13.0 dB is below 50 dB" in problems[2]


def test_not_exercised_is_listed_and_is_no_pass() -> None:
    found = report(GOOD, ZERO)
    assert found.passed()
    assert found.not_exercised() == ["graph0 t4 (/model/t4): all CPU values are zero"]
    assert "not exercised: all CPU values are zero" in table.render(found)
    assert "1 outputs were not exercised" in table.render(found)


def test_a_report_of_nothing_has_not_passed() -> None:
    empty = report()
    empty.graphs.clear()
    assert empty.problems() == ["nothing was compared"]


def test_graph_error_is_a_problem() -> None:
    found = report(GOOD)
    found.graphs.append(GraphResult("graph1_0", 16, "float", (), error="finalize failed: 1002"))
    assert found.problems() == ["graph1_0: finalize failed: 1002"]
    assert "FAILED: finalize failed: 1002" in table.render(found)


def test_prompt_with_another_token_is_a_problem() -> None:
    found = report(GOOD)
    found.prompt = PromptResult("hi", 16, 5, "there", (7, 8, 2), (7, 9, 2))
    assert found.problems() == ["prompt: another next token at answer positions [1]"]
    assert "same next token at 2 of 3 positions" in table.render(found)


def test_json_of_everything_keeps_to_the_schema(
    validator: jsonschema.Draft202012Validator,
) -> None:
    found = report(GOOD, BAD, WORSE, ZERO, NAN, SAME)
    found.graphs.append(
        GraphResult(
            "graph1_0",
            16,
            "fixed",
            (GOOD,),
            (Excursion("/x", -1.0, 1.0, -1.5, 0.5, 3, 0.1),),
            error="no",
        )
    )
    found.chains.append(ChainResult(16, "fixed", (GOOD,), 15, 16))
    found.prompt = PromptResult("hi", 16, 5, "there", (7, 8, 2), (7, 8, 2))
    value = json.loads(canonical_json(to_json(found)))
    validator.validate(value)
    assert value["passed"] is False
    assert [o["equal"] for o in value["graphs"][0]["outputs"]] == [
        False,
        False,
        False,
        True,
        False,
        True,
    ]
    assert value["graphs"][1]["out_of_range"][0]["count"] == 3


@pytest.mark.parametrize("key", ["graphs", "passed", "thresholds"])
def test_schema_refuses_a_missing_or_unknown_key(
    validator: jsonschema.Draft202012Validator, key: str
) -> None:
    value = to_json(report(GOOD))
    assert validator.is_valid(value)
    assert not validator.is_valid({k: v for k, v in value.items() if k != key})
    assert not validator.is_valid({**value, key + "_": 1})


def test_table_lines_up() -> None:
    text = table.render(report(GOOD, BAD))
    lines = text.splitlines()
    assert lines[0] == "demo for sm8650, sample: IO samples"
    head, good, bad = lines[2:5]
    assert good.endswith("ok")
    assert good.index("ok") == bad.index("FAILED") == head.index("result")
    assert lines[-1] == "FAILED: 1 problems"


def test_kind_of_activations() -> None:
    weight = Tensor("w", "STATIC", "SFIXED_POINT_8", (4,), ScaleOffset(1.0, 0))
    moving = Tensor("x", "NATIVE", "UFIXED_POINT_16", (4,), ScaleOffset(1.0, -32768))
    graph_input = Tensor("t0", "APP_WRITE", "FLOAT_32", (4,))
    assert activations(Graph("g", [graph_input, weight])) == "float"
    assert activations(Graph("g", [graph_input, weight, moving])) == "fixed"
    assert strictest(["float", "fixed"]) == "fixed"
    assert strictest(["float"]) == "float"
