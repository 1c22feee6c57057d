"""Which comparison decides, and at which tokens."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from mnnqnn_tasks.errors import VerifyError
from mnnqnn_tasks.partition.subgraph import QuantInfo
from mnnqnn_tasks.verify.hostmodel import Plugin
from mnnqnn_tasks.verify.judgement import judge_logits, judge_output, worst
from mnnqnn_tasks.verify.metrics import Array, Comparison
from mnnqnn_tasks.verify.ranges import Calibration
from mnnqnn_tasks.verify.reference import Reference, own_probe, row_probes
from mnnqnn_tasks.verify.rows import any_per_row, one_row, rows_where, token_axis
from mnnqnn_tasks.verify.store import Store
from mnnqnn_tasks.verify.thresholds import Thresholds

WANT = np.arange(1, 13, dtype=np.float32).reshape(1, 4, 3)


def miss(found: Comparison) -> str | None:
    return Thresholds().graph_miss("fixed", found)


def clipped(row: int) -> Array:
    got = WANT.copy()
    got[0, row] *= -1
    return got


def mask(*flags: int) -> np.ndarray:
    return np.array(flags, dtype=np.bool_)


@pytest.mark.parametrize(
    ("dims", "single", "axis"),
    [
        ((1, 16, 64), (1, 1, 64), 1),
        ((16, 1, 64), (1, 1, 64), 0),
        ((1, 64), (1, 64), None),
        ((1, 1, 16, 16), (1, 1, 1, 1), None),
        ((1, 16, 64), (1, 64), None),
        ((1, 16, 64), (1, 2, 64), None),
    ],
)
def test_token_axis(dims: tuple[int, ...], single: tuple[int, ...], axis: int | None) -> None:
    assert token_axis(dims, single) == axis


def test_rows() -> None:
    row = one_row(WANT, (1, 1, 3), 2)
    assert row is not None
    assert row.tolist() == [[[7, 8, 9]]]
    assert one_row(WANT, (1, 4, 3), 2) is WANT
    assert one_row(WANT, (3,), 2) is None
    assert rows_where(WANT, 1, mask(1, 0, 0, 1)).tolist() == [[[1, 2, 3], [10, 11, 12]]]
    flags = WANT > 10
    assert any_per_row(flags, 1).tolist() == [False, False, False, True]


def test_all_tokens_decide_when_all_are_inside() -> None:
    result = judge_output("t1", "x", WANT, clipped(3), miss, mask(1, 1, 1, 1), 1)
    assert result.status == "failed"


def test_tokens_outside_do_not_spoil_a_pass() -> None:
    result = judge_output("t1", "x", WANT, WANT, miss, mask(0, 0, 0, 0), 1)
    assert (result.status, result.why) == ("passed", None)


def test_tokens_inside_decide_when_others_are_clipped() -> None:
    result = judge_output("t1", "x", WANT, clipped(3), miss, mask(1, 1, 1, 0), 1)
    assert result.status == "passed"
    assert result.why == "there: 3 of 4 tokens keep to the calibrated ranges"
    assert result.found.snr_db == math.inf
    result = judge_output("t1", "x", WANT, clipped(2), miss, mask(1, 1, 1, 0), 1)
    assert result.status == "failed"
    assert result.why is not None
    assert "where 3 of 4 tokens" in result.why


@pytest.mark.parametrize(("inside", "axis"), [(mask(0, 0, 0, 0), 1), (mask(1, 1, 1, 0), None)])
def test_without_a_token_inside_nothing_is_judged(inside: np.ndarray, axis: int | None) -> None:
    result = judge_output("t1", "x", WANT, clipped(3), miss, inside, axis)
    assert result.status == "not exercised"


def test_values_that_are_not_finite_fail_whatever_the_ranges() -> None:
    got = WANT.copy()
    got[0, 3, 0] = math.nan
    assert judge_output("t1", "x", WANT, got, miss, mask(1, 1, 1, 0), 1).status == "failed"


def test_a_chain_outside_the_ranges_cannot_fail() -> None:
    assert judge_logits("logits", WANT, clipped(3), miss, 0).status == "failed"
    assert judge_logits("logits", WANT, clipped(3), miss, 2).status == "not exercised"
    assert judge_logits("logits", WANT, WANT, miss, 2).status == "passed"


def test_the_worst_probe_counts_and_a_judged_one_before_an_unjudged() -> None:
    inside = mask(1, 1, 1, 1)
    good = judge_output("t1", "x", WANT, WANT, miss, inside, 1)
    bad = judge_output("t1", "x", WANT, clipped(3), miss, inside, 1)
    none = judge_output("t1", "x", np.zeros(3), np.zeros(3), miss, inside, None)
    assert worst([good, bad, none]) is bad
    told = worst([none, good])
    assert told.found is good.found and told.status == "passed"
    assert told.why == "set aside: all CPU values are zero"  # nothing is passed over in silence
    assert worst([good, good]) is good
    assert worst([none]) is none


PIECE = Plugin("qnn/graph0.bin", ("in",), ("out",), ("t0",), ("t1",), ("graph0",), (((1,),),))


def reference(tmp_path: Path, high: float) -> Reference:
    info = QuantInfo(1.0, 0.0, -100.0, high, "DT_INT16")
    calibration = Calibration({PIECE.path: ("inner",)}, {"inner": info})
    made = Reference(4, Store(tmp_path / "r"), calibration)
    made.single |= {"in": (1, 1, 3), "out": (1, 1, 3), "inner": (1, 1, 3)}
    made.store.put({"in": WANT, "out": 2 * WANT})
    made.scan(lambda _, names: dict.fromkeys(names, WANT), {})
    return made


def test_a_token_outside_a_range_is_known(tmp_path: Path) -> None:
    made = reference(tmp_path, high=9)
    assert made.inside(PIECE).tolist() == [True, True, True, False]
    (found,) = made.of_piece(PIECE)
    assert (found.tensor, found.count, found.reached_high) == ("inner", 3, 12.0)
    assert own_probe(made, PIECE).axes == {"out": 1}


def test_decode_takes_tokens_inside_the_ranges_and_never_the_first(tmp_path: Path) -> None:
    made = reference(tmp_path, high=9)
    (probe,) = row_probes(made, PIECE, made.single)  # the middle one of tokens 1 and 2 is 2
    assert probe.inputs["in"].tolist() == [[[7, 8, 9]]]
    assert probe.outputs["out"].tolist() == [[[14, 16, 18]]]
    assert probe.inside.tolist() == [True]


def test_decode_takes_a_middle_token_and_the_last_if_none_is_inside(tmp_path: Path) -> None:
    made = reference(tmp_path, high=-1)
    middle, last = row_probes(made, PIECE, made.single)
    assert middle.inputs["in"].tolist() == [[[7, 8, 9]]]
    assert last.inputs["in"].tolist() == [[[10, 11, 12]]]
    assert last.inside.tolist() == [False]


def test_a_border_without_tokens_gives_no_row(tmp_path: Path) -> None:
    made = reference(tmp_path, high=9)
    assert row_probes(made, PIECE, {"in": (7,), "out": (1, 1, 3)}) == []


def test_store_keeps_arrays_and_names_what_is_missing(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    store.put({"/a/b": WANT})
    first = store.get(["/a/b"])["/a/b"]
    store.put({"/a/b": WANT + 1})
    assert first.tolist() == WANT.tolist()  # an older map stays what it was
    assert store.get(["/a/b"])["/a/b"].tolist() == (WANT + 1).tolist()
    assert "/a/b" in store
    assert store.dims("/a/b") == (1, 4, 3)
    with pytest.raises(VerifyError, match="tensor c "):
        store.get(["c"])
