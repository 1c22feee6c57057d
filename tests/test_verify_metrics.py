"""Known values of the measures, and what they refuse to judge."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mnnqnn_tasks.verify.metrics import agreement, compare, decibel, excursion, limits


def test_equal_tensors_have_infinite_snr() -> None:
    x = np.arange(-3, 4, dtype=np.float32).reshape(7, 1)
    found = compare(x, x.reshape(1, 7))
    assert (found.snr_db, found.max_abs_error) == (math.inf, 0.0)
    assert found.cosine == pytest.approx(1.0)
    assert found.unusable is None
    assert found.broken is None


def test_known_ratio() -> None:
    # Noise of 1 % of the amplitude at a right angle to the signal: 40 dB.
    found = compare(np.array([1.0, 0.0]), np.array([1.0, 0.01]))
    assert found.snr_db == pytest.approx(40.0)
    assert found.cosine == pytest.approx(1 / math.sqrt(1.0001))
    assert found.max_abs_error == 0.01
    assert found.max_abs_reference == 1.0


def test_scale_shows_in_snr_and_not_in_cosine() -> None:
    x = np.linspace(-1, 1, 101)
    found = compare(x, 2 * x)
    assert found.cosine == pytest.approx(1.0)
    assert found.snr_db == pytest.approx(0.0)


def test_fp16_rounding_of_noise_is_about_73_db() -> None:
    # The figure that the threshold of 50 dB is explained with.
    x = np.random.default_rng(1).standard_normal(100_000).astype(np.float32)
    assert compare(x, x.astype(np.float16)).snr_db == pytest.approx(73, abs=2)


def test_opposite_sign() -> None:
    assert compare(np.ones(4), -np.ones(4)).cosine == -1.0


def test_all_zero_actual_is_measured() -> None:
    found = compare(np.ones(4), np.zeros(4))
    assert (found.cosine, found.snr_db, found.unusable) == (0.0, 0.0, None)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_cpu_values_that_are_not_finite_judge_nothing(bad: float) -> None:
    found = compare(np.array([1.0, bad]), np.array([1.0, 1.0]))
    assert found.unusable == "1 of 2 CPU values are not finite"


def test_zero_reference_judges_nothing_but_shows_the_error() -> None:
    found = compare(np.zeros(3), np.array([0.0, 0.5, 0.0]))
    assert found.unusable == "all CPU values are zero"
    assert found.max_abs_error == 0.5


def test_empty_reference_judges_nothing() -> None:
    assert compare(np.zeros((0, 4)), np.zeros((0, 4))).unusable == "the tensor is empty"


@pytest.mark.parametrize("reference", [np.ones(2), np.zeros(2)])
def test_npu_values_that_are_not_finite_are_wrong(reference: np.ndarray) -> None:
    found = compare(reference, np.array([1.0, math.nan]))
    assert found.broken == "1 of 2 NPU values are not finite"
    assert found.unusable is None


def test_other_size_is_wrong() -> None:
    assert compare(np.ones(4), np.ones(3)).broken == "3 values instead of 4"


def test_large_integers_are_compared_without_overflow() -> None:
    big = np.array([2**31 - 1, -(2**31)], dtype=np.int32)
    assert compare(big, big).snr_db == math.inf
    assert compare(big, -big).broken is None


def test_decibel_ends() -> None:
    assert decibel(1.0, 0.0) == math.inf
    assert decibel(0.0, 1.0) == -math.inf


def test_agreement_counts_positions() -> None:
    want = np.array([[[0, 1, 0], [1, 0, 0], [0, 0, 1]]], dtype=np.float32)
    got = np.array([[[0, 2, 1], [0, 3, 1], [0, 0, 9]]], dtype=np.float32)
    assert agreement(want, got) == (2, 3)


def test_excursion_of_symmetric_16_bit() -> None:
    values = np.array([0.0, 32.767, -32.767, 40.0, -33.0, 32.7674], dtype=np.float32)
    found = excursion("x", values, limits(0.001, 0, -32767, 32767))
    assert found is not None
    assert (found.count, found.fraction) == (2, 2 / 6)
    assert (found.low, found.high) == (pytest.approx(-32.767), pytest.approx(32.767))
    assert found.reached_high == pytest.approx(40.0)


def test_excursion_uses_the_zero_point() -> None:
    values = np.array([-1.0, 2.0])
    assert excursion("x", values, limits(1.0, 1, 0, 3)) is None
    found = excursion("x", values, limits(1.0, 0, 0, 3))
    assert found is not None
    assert found.count == 1
