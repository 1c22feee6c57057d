"""The cheap checker gives the verdicts of the jsonschema package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mnnqnn_tasks.errors import PipelineError
from mnnqnn_tasks.spec.check import ANNOTATIONS, RULES, nearest, violations
from mnnqnn_tasks.spec.load import load_pipeline
from mnnqnn_tasks.spec.schemas import schema

SCHEMA = schema("pipeline")

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 130),
    st.sampled_from([1.0, 2.5, 128.0, 1e300, 70000, 10**30]),
    st.sampled_from(
        ["", "a", "v75", "v75\n", "V9", "SM8650", "a/b", "..", "a\n", "模型", "x" * 65]
    ),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=4)


def section(name: str) -> st.SearchStrategy[Any]:
    """A mapping with mostly the right keys and partly the right values."""
    properties = SCHEMA["$defs"][name]["properties"] if name else SCHEMA["properties"]
    keys = st.sampled_from([*properties, "unknown", "nmae"])
    return st.dictionaries(keys, VALUES, max_size=6)


DOCUMENTS = st.one_of(
    VALUES,
    section(""),
    st.fixed_dictionaries(
        {
            "version": st.sampled_from([1, 1, 1, 1.0, True, 2]),
            "models": st.lists(
                st.fixed_dictionaries({"name": SCALARS, "path": SCALARS}) | section("model"),
                max_size=3,
            ),
            "targets": st.lists(section("target"), max_size=3),
        },
        optional={
            "defaults": section("target") | VALUES,
            "runtime": st.dictionaries(st.text(max_size=3), VALUES) | SCALARS,
            "build_dir": SCALARS,
        },
    ),
)


@settings(max_examples=200, deadline=None)
@given(DOCUMENTS)
def test_same_verdict_as_jsonschema(document: Any) -> None:
    found = {tuple(v.path[:-1] if v.at_key else v.path) for v in violations(document, SCHEMA)}
    validator = jsonschema.Draft202012Validator(SCHEMA)
    expected = list(validator.iter_errors(document))
    assert bool(found) == bool(expected), (found, expected)
    # Our messages name the item that stands in a list twice, jsonschema the list.
    places = {tuple(e.absolute_path) for e in expected if e.validator != "uniqueItems"}
    assert places <= found


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(DOCUMENTS.map(json.dumps).map(str.encode), st.binary(max_size=200)))
def test_any_bytes_load_or_are_refused(tmp_path_factory: Any, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(data)
    try:
        pipeline = load_pipeline(path)
    except PipelineError as error:
        assert str(path) in str(error)
    else:
        assert pipeline.models and pipeline.targets
        json.dumps(pipeline.runtime, allow_nan=False)


def test_every_keyword_of_the_schema_is_known() -> None:
    def walk(node: Any) -> None:
        assert set(node) <= set(RULES) | ANNOTATIONS, node
        for child in [*node.get("properties", {}).values(), *node.get("$defs", {}).values()]:
            walk(child)
        if "items" in node:
            walk(node["items"])

    walk(SCHEMA)


def test_nearest() -> None:
    assert nearest("Modles", ["models", "targets"]) == "models"
    assert nearest("zzz", ["models", "targets"]) is None
    assert nearest("x", []) is None


def test_loading_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom mnnqnn_tasks.spec.load import load_pipeline\n"
        "load_pipeline('pipelines/demo.yaml')\n"
        "heavy = {'jsonschema', 'numpy', 'MNN', 'onnxruntime', 'doit', 'flatbuffers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    root = Path(__file__).resolve().parent.parent
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)
