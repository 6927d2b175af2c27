"""Tests that DeLong's variance equals its definition, and that the intervals cover the true values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from problems.delong import PairedDifference, auc_interval, few_rows, paired_difference

SCORES = st.lists(st.integers(-3, 3), min_size=12, max_size=12).map(np.array)
LABELS = np.arange(12) % 3 == 0


def counts_of(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts of the negatives and of the positives by score."""
    places = np.unique(scores, return_inverse=True)[1]
    counts = [np.bincount(places[labels == label], minlength=places.max() + 1) for label in (0, 1)]
    return counts[0], counts[1]


def by_definition(labels: np.ndarray, scores: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    """Return the difference of two AUCs and its variance, from all pairs of rows."""
    kernels = []
    for each in (scores, reference):
        gaps = each[labels == 1][:, None] - each[labels == 0]
        kernels.append((gaps > 0) + 0.5 * (gaps == 0))
    gap = kernels[0] - kernels[1]
    spreads = [gap.mean(axis=axis).var(ddof=1) / len(gap.mean(axis=axis)) for axis in (0, 1)]
    return float(gap.mean()), float(sum(spreads))


@given(SCORES, SCORES)
def test_difference_follows_the_definition(scores: np.ndarray, reference: np.ndarray) -> None:
    labels = LABELS.astype(int)
    found = paired_difference(labels, scores, reference)
    value, variance = by_definition(labels, scores, reference)
    assert found.value == pytest.approx(roc_auc_score(labels, scores) - roc_auc_score(labels, reference), abs=1e-12)
    assert found.low is not None
    assert found.high is not None
    assert found.value == pytest.approx(value, abs=1e-12)
    assert found.high - found.low == pytest.approx(2 * 3.182446 * np.sqrt(variance), rel=1e-5, abs=1e-9)
    swapped = paired_difference(labels, np.exp(reference), scores)
    assert (swapped.value, swapped.low) == pytest.approx((-found.value, -found.high), abs=1e-12)


@given(SCORES, st.floats(0.5, 0.99))
def test_interval_contains_the_auc_and_grows_with_the_confidence(scores: np.ndarray, confidence: float) -> None:
    labels = LABELS.astype(int)
    auc = roc_auc_score(labels, scores)
    low, high = auc_interval(*counts_of(labels, scores), confidence)
    wider = auc_interval(*counts_of(labels, scores), 0.995)
    assert 0 <= wider[0] <= low <= auc <= high <= wider[1] <= 1
    assert wider[1] - wider[0] > high - low > 0.01


def test_a_sign_needs_an_interval_without_zero() -> None:
    differences = [(0.1, 0.01, 0.2), (0.1, -0.01, 0.2), (-0.1, -0.2, -0.01), (0.1, None, None), (0.0, 0.0, 0.0)]
    assert [PairedDifference(*each).sign for each in differences] == [1, 0, -1, 0, 0]
    single = paired_difference(np.array([1, 0, 0]), np.array([2, 1, 0]), np.array([0, 1, 2]))
    assert single == PairedDifference(1.0, None, None)
    with pytest.raises(ValueError, match="both classes"):
        paired_difference(np.ones(3, int), np.arange(3), np.arange(3))
    assert [few_rows(*each) for each in ((10, 99), (99, 10), (11, 11), (0, 5))] == [True, True, False, False]


@pytest.mark.parametrize("positives", [1, 5, 10])
@pytest.mark.parametrize("auc", [0.7, 0.95])
def test_intervals_of_few_positives_cover_the_auc(positives: int, auc: float) -> None:
    """Normal scores with this AUC; percentiles of bootstrap draws cover it in 72 to 92 % of the cases."""
    rng, covered = np.random.default_rng(0), 0
    labels = (np.arange(200) < positives).astype(int)
    for _ in range(500):
        scores = rng.normal(size=200) + np.sqrt(2) * norm.ppf(auc) * labels
        low, high = auc_interval(*counts_of(labels, scores))
        covered += low <= auc <= high
    assert 0.92 <= covered / 500 <= 0.995


def test_differences_of_level_models_are_rarely_verdicts() -> None:
    rng, signs = np.random.default_rng(0), []
    labels = (np.arange(300) < 60).astype(int)
    for _ in range(500):
        signal, noise = rng.normal(size=300) + labels, rng.normal(size=(2, 300))
        signs.append(paired_difference(labels, signal + noise[0], signal + noise[1]).sign)
    assert 0.02 <= np.mean(np.abs(signs)) <= 0.08
