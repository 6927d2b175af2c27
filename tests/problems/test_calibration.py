"""Tests of maps from scores to probabilities: monotone, optimal among such maps, and without steps of few rows."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit, log_expit
from sklearn.isotonic import IsotonicRegression

from problems.calibration import ISOTONIC, PLATT, Isotonic, Platt, fit_calibration, read_calibration
from problems.tallies import Tally
from tests.problems.test_tallies import drawn

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


def sample(count: int, slope: float, intercept: float) -> Tally:
    """Return rows with known true probabilities."""
    rng = np.random.default_rng(0)
    scores = rng.normal(scale=2, size=count)
    return Tally.of_rows(rng.random(count) < expit(slope * scores + intercept), scores)


def test_platt_finds_the_true_map() -> None:
    found = Platt.fit(sample(200_000, 0.5, -1.0))
    assert (found.slope, found.intercept) == pytest.approx((0.5, -1.0), abs=0.02)


@given(drawn())
def test_platt_is_the_maximum_of_its_likelihood(rows: Rows) -> None:
    labels, scores, _ = rows
    tally = Tally.of_rows(labels, scores)
    found = Platt.fit(tally)
    assume(found.slope > 0)
    negatives, positives = tally.count()
    targets = np.where(labels, (positives + 1) / (positives + 2), 1 / (negatives + 2))

    def cost(ab: np.ndarray) -> float:
        logits = ab[0] * scores + ab[1]
        return -float(targets @ log_expit(logits) + (1 - targets) @ log_expit(-logits))

    best = minimize(cost, [found.slope, found.intercept], method="BFGS").fun
    assert cost(np.array([found.slope, found.intercept])) <= best + 1e-6


@given(drawn(), st.floats(0.01, 100), st.floats(-10, 10))
def test_platt_does_not_depend_on_the_scale_of_scores(rows: Rows, factor: float, shift: float) -> None:
    labels, scores, _ = rows
    one = Platt.fit(Tally.of_rows(labels, scores))
    other = Platt.fit(Tally.of_rows(labels, scores * factor + shift))
    np.testing.assert_allclose(one(scores), other(scores * factor + shift), atol=1e-4)


@given(drawn())
def test_isotonic_of_single_rows_is_the_least_squares_fit(rows: Rows) -> None:
    labels, scores, _ = rows
    found = Isotonic.fit(Tally.of_rows(labels, scores), 1)
    best = IsotonicRegression().fit_transform(scores, labels)
    np.testing.assert_allclose(np.unique(np.round(found.probabilities, 9)), np.unique(best.round(9)), atol=1e-9)
    assert np.all(np.diff(found(np.sort(scores))) >= 0)


@given(drawn(), st.integers(2, 12), st.sampled_from([PLATT, ISOTONIC]))
def test_a_step_has_enough_rows_and_a_map_survives_json(rows: Rows, least: int, method: str) -> None:
    labels, scores, _ = rows
    found = fit_calibration(method, Tally.of_rows(labels, scores), least)
    if isinstance(found, Isotonic):
        assert len(found.scores) <= max(len(labels) // least, 1)
    assert read_calibration(found.to_json()) == found
    with pytest.raises(ValueError, match="needs rows of both classes"):
        fit_calibration(method, Tally.of_rows(np.ones(3), np.arange(3)), least)


def test_a_model_worse_than_chance_gets_one_probability() -> None:
    found = Platt.fit(sample(1000, -1.0, 0.0))
    assert found.slope == 0
    assert found([5.0]) == pytest.approx(np.mean(expit(-np.random.default_rng(0).normal(scale=2, size=1000))), abs=0.05)
