"""Tests of metrics of numbers, and of their sums over sites, against scikit-learn and exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import d2_tweedie_score, mean_poisson_deviance, r2_score

from payloads.digit_sums import LARGEST, from_digits, to_digits
from payloads.held_out import SUMS, ErrorDigits
from payloads.record import PayloadError
from problems.number_metrics import METRICS, ErrorSums, number_intervals, number_metrics, sum_errors

floats = st.floats(-(2.0**119), 2.0**119)


@given(st.lists(floats, min_size=1, max_size=8))
def test_sums_of_digits_are_sums_of_numbers(values: list[float]) -> None:
    total = sum(to_digits([value]).astype(np.int64) for value in values)
    exact = sum(map(Fraction, values))
    assert abs(from_digits(total)[0] - exact) <= len(values) * Fraction(1, 2**121)
    assert from_digits(to_digits(values)) == [from_digits(to_digits([value]))[0] for value in values]


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, LARGEST, -LARGEST])
def test_numbers_without_digits_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="expected a number between"):
        to_digits([0.0, value])


def test_digits_of_many_sites_fit_into_32_bits() -> None:
    largest = np.abs(to_digits([np.nextafter(LARGEST, 0), -np.nextafter(LARGEST, 0)])).max()
    assert largest * 2**19 < 2**31


@pytest.mark.parametrize("loss", ["squared", "poisson"])
@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_metrics_of_sites_equal_metrics_of_pooled_rows(loss: str, shift: float) -> None:
    rng = np.random.default_rng(4)
    scores = rng.normal(size=60)
    labels = rng.poisson(np.exp(scores)).astype(float) if loss == "poisson" else scores + rng.normal(size=60)
    labels, scores = (labels, scores) if loss == "poisson" else (labels + shift, scores + shift)
    parts = [ErrorDigits.of(sum_errors(loss, labels[rows], scores[rows])) for rows in np.split(np.arange(60), [7, 30])]
    total = ErrorSums.of(from_digits(np.sum([part.digits for part in parts], axis=0))).metrics()
    # y^2 is rounded to 16 digits, of which the variance needs 12 with the shift
    assert total == pytest.approx(number_metrics(loss, labels, scores), rel=1e-3 if shift else 1e-12)
    means = np.exp(scores) if loss == "poisson" else scores
    assert total["r2"] == pytest.approx(r2_score(labels, means), rel=1e-8 if loss == "poisson" or not shift else 1e-3)
    if loss == "poisson":
        null = mean_poisson_deviance(labels, np.full(60, labels.mean()))
        assert 1 - total["deviance"] / null == pytest.approx(d2_tweedie_score(labels, means, power=1))


@pytest.mark.parametrize(("scores", "r2"), [([0.1, 0.1, 0.1], 1.0), ([0.1, 0.2, 0.1], 0.0)])
def test_equal_labels_have_the_r2_of_scikit_learn(scores: list[float], r2: float) -> None:
    assert number_metrics("squared", np.full(3, 0.1), np.array(scores))["r2"] == r2


def test_infinite_predictions_have_no_metrics() -> None:
    with pytest.raises(ValueError, match="not finite"):
        number_metrics("poisson", np.ones(2), np.array([0.0, 800.0]))
    with pytest.raises(ValueError, match="at least one row"):
        number_metrics("squared", np.zeros(0), np.zeros(0))


def test_intervals_cover_the_value() -> None:
    rng = np.random.default_rng(1)
    labels = rng.normal(size=80)
    intervals = number_intervals("squared", labels, labels + rng.normal(size=80), resamples=200)
    assert tuple(intervals) == METRICS
    assert all(each.low < each.value < each.high for each in intervals.values())


def test_impossible_sums_are_refused() -> None:
    good = sum_errors("squared", np.ones(4), np.zeros(4))
    assert len(good) == SUMS
    ErrorDigits.of(good).check_rows(np.array([4, 0]))
    with pytest.raises(PayloadError, match="sums over 4 rows, expected 3"):
        ErrorDigits.of(good).check_rows(np.array([3, 0]))
    with pytest.raises(PayloadError, match="below 0"):
        ErrorDigits.of([*good[:3], -1.0, *good[4:]]).check_rows(np.array([4, 0]))
