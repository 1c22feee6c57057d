"""Graph names: built, parsed, planned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnnqnn_tasks.errors import GenieError
from mnnqnn_tasks.genie.names import GraphName, parse, plan


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (GraphName(128, 4096, 2, 6), "prompt_ar128_cl4096_2_of_6"),
        (GraphName(1, 4096, 1, 1), "token_ar1_cl4096_1_of_1"),
        (GraphName(1, 512, 9, 9), "token_ar1_cl512_9_of_9"),
        (GraphName(1, 512, 2, 10), "token_ar1_cl512_02_of_10"),
        (GraphName(32, 512, 7, 128), "prompt_ar32_cl512_007_of_128"),
    ],
)
def test_name_and_back(name: GraphName, text: str) -> None:
    assert str(name) == text
    assert parse(text) == name


@given(st.integers(1, 4096), st.integers(0, 1 << 20), st.integers(1, 1200), st.integers(0, 1200))
def test_any_name_parses_back(ar: int, more: int, split: int, after: int) -> None:
    name = GraphName(ar, ar + more, split, split + after)
    assert parse(str(name)) == name


@given(st.integers(1, 1200))
def test_string_order_is_split_order(splits: int) -> None:
    names = [str(name) for name in plan([512], [1], splits)]
    assert names == sorted(names)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "qwen2_5_7b_instruct_prompt_2_of_8",
        "prompt_ar1_cl4096_1_of_2",  # one token at a time is `token`
        "token_ar8_cl4096_1_of_2",
        "token_ar1_cl4096_0_of_2",
        "token_ar1_cl4096_3_of_2",
        "token_ar0_cl4096_1_of_2",
        "prompt_ar128_cl64_1_of_2",
        "token_AR1_CL4096_1_of_2",
        "token_ar1_cl4096_1_of_2 ",
        "token_ar1_cl4096_1_of_2\n",
        "token_ar1_cl4096_T0_of_11",
        "token_ar\u0661_cl4096_1_of_2",
        "token_ar1_cl" + "9" * 5000 + "_1_of_2",
    ],
)
def test_what_is_no_name(text: str) -> None:
    assert parse(text) is None


@given(st.text())
def test_no_text_is_too_much(text: str) -> None:
    assert parse(text) is None or str(parse(text))


def test_unpadded_number_parses() -> None:
    assert parse("token_ar1_cl4096_2_of_11") == GraphName(1, 4096, 2, 11)


def test_plan_holds_every_graph_once() -> None:
    made = plan([4096, 512], [1, 128], 2)
    assert [str(name) for name in made] == [
        f"{kind}_cl{cl}_{split}_of_2"
        for split in (1, 2)
        for cl in (512, 4096)
        for kind in ("prompt_ar128", "token_ar1")
    ]
    assert made.context_size == 4096
    assert list(made.split(2)) == list(made)[4:]


@pytest.mark.parametrize(
    ("lengths", "tokens", "splits", "message"),
    [
        ([], [1], 1, "context lengths"),
        ([512], [], 1, "sequence lengths"),
        ([512, 512], [1], 1, "context lengths"),
        ([512], [1, 1], 1, "sequence lengths"),
        ([512], [1], 0, "0 splits"),
        ([512], [0], 1, "AR 0"),
        ([512], [1024], 1, "below the 1024 tokens"),
        ([1 << 40], [1], 1, "CL"),
    ],
)
def test_plan_that_names_nothing(
    lengths: list[int], tokens: list[int], splits: int, message: str
) -> None:
    with pytest.raises(GenieError, match=message):
        plan(lengths, tokens, splits)
