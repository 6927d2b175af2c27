"""Tests that figures from counts equal scikit-learn's figures of the rows, and that their intervals have full
coverage."""

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.calibration import calibration_curve
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from problems.binned_scores import bounds, codes, find_bins, first_edges, floors
from problems.intervals import BRIER, ECE, FIGURES, RANKING, RELIABILITY_BINS, describe, measure
from problems.randomness import stream
from problems.tallies import Tally
from tests.problems.test_tallies import tally_of_bins


def draw(rng: np.random.Generator, rows: int, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and logits, calibrated at sharpness 1, with few different values, so many rows give few bins."""
    labels = rng.random(rows) < 0.3
    score = rng.standard_normal(rows) + 1.5 * labels
    return labels.astype(np.int8), np.round(sharpness * (1.5 * score - 1.125 + logit(0.3)) * 4) / 4


def expected(labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """Return the figures by scikit-learn."""
    probabilities = expit(logits)
    observed, predicted = calibration_curve(labels, probabilities, n_bins=RELIABILITY_BINS)
    inner = np.linspace(0, 1, RELIABILITY_BINS + 1)[1:-1]
    counts = np.bincount(np.searchsorted(inner, probabilities), minlength=RELIABILITY_BINS)
    return {
        "auc": roc_auc_score(labels, logits),
        "pauc_fpr30": roc_auc_score(labels, logits, max_fpr=0.3),
        "pauc_fpr50": roc_auc_score(labels, logits, max_fpr=0.5),
        "average_precision": average_precision_score(labels, logits),
        BRIER: brier_score_loss(labels, probabilities),
        ECE: float(counts[counts > 0] @ np.abs(observed - predicted)) / len(labels),
    }


@pytest.mark.parametrize("seed", range(5))
def test_figures_are_scikit_learns(seed: int) -> None:
    labels, logits = draw(np.random.default_rng(seed), 150, 1 + seed / 2)
    logits += 1e-3 * seed * np.arange(150)
    found = describe(Tally.of_rows(labels, logits), stream(0, "test"), draws=20)
    assert {name: found[name][0] for name in FIGURES} == pytest.approx(expected(labels, logits), abs=1e-12)
    assert found[ECE][1] <= found[ECE][0] <= found[ECE][2]
    observed, predicted = calibration_curve(labels, expit(logits), n_bins=RELIABILITY_BINS)
    assert [one["predicted"] for one in found["reliability"]] == pytest.approx(predicted.tolist())
    assert [one["observed"][0] for one in found["reliability"]] == pytest.approx(observed.tolist())
    assert sum(one["rows"] for one in found["reliability"]) == 150


@pytest.mark.parametrize("seed", range(5))
def test_figures_of_bins_are_scikit_learns_within_the_bins_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, logits = draw(rng, 400, 2)
    logits += 0.1 * rng.standard_normal(400)
    code, edges = codes(logits), first_edges(2048)
    counts = [np.bincount(find_bins(code, edges)[labels == label], minlength=2048) for label in (0, 1)]
    tally = Tally.of_bins(edges, counts[0][None], counts[1][None])
    found = describe(tally, stream(0, "test"), draws=20)
    exact, (auc, precision) = expected(labels, logits), bounds(edges, *counts)
    assert found["auc"][0] == pytest.approx(exact["auc"], abs=auc + 1e-12)
    assert found["average_precision"][0] == pytest.approx(exact["average_precision"], abs=precision + 1e-12)
    # a probability is off by less than its bin's width, and its square by less than twice that
    ends = expit(np.append(floors(edges), np.inf))
    width = float(sum(counts) @ np.diff(ends)) / 400
    assert found[BRIER][0] == pytest.approx(exact[BRIER], abs=2 * width)
    assert width < 0.02


def test_samples_at_once_are_samples_one_by_one() -> None:
    rng = np.random.default_rng(3)
    negatives, positives = rng.integers(0, 4, (2, 6, 30))
    positives[0] = negatives[1] = 0
    probabilities = np.sort(rng.random(30))
    together = measure(probabilities, negatives, positives)[0]
    for number in range(6):
        alone = measure(probabilities, negatives[number], positives[number])[0]
        for name in FIGURES:
            assert together[name][number] == pytest.approx(float(alone[name]), nan_ok=True)
        assert np.isnan([float(alone[name]) for name in RANKING]).all() == (number < 2)


@pytest.mark.slow
@pytest.mark.gate
def test_intervals_cover_what_they_should() -> None:
    """Take 500 draws of 400 rows from a known distribution."""
    rng = np.random.default_rng(0)
    population = Tally.of_rows(*draw(rng, 2_000_000, 2)).total()
    truth = measure(expit(population.scores), population.negatives[0], population.positives[0])[0]
    assert truth[ECE] > 0.05
    covered = dict.fromkeys(FIGURES, 0)
    for _ in range(500):
        found = describe(Tally.of_rows(*draw(rng, 400, 2)), rng, draws=250)
        for name in FIGURES:
            covered[name] += found[name][1] <= truth[name] <= found[name][2]
    assert {name: count for name, count in covered.items() if not 0.92 * 500 <= count <= 0.98 * 500} == {}


def test_a_calibrated_model_may_have_no_error() -> None:
    """Its rows have an error by chance, and their plain bootstrap draws a larger error, never 0."""
    rng = np.random.default_rng(0)
    found = [describe(Tally.of_rows(*draw(rng, 300, 1)), rng, draws=200)[ECE] for _ in range(100)]
    assert 0.92 <= np.mean([low == 0 for _, low, _ in found]) <= 0.99
    assert min(value for value, _, _ in found) > 0
    sharp = [describe(Tally.of_rows(*draw(rng, 300, 4)), rng, draws=200)[ECE] for _ in range(20)]
    assert min(low for _, low, _ in sharp) > 0.02


@pytest.mark.parametrize(("rows", "sharpness"), [(24_000, 1), (24_000, 3), (200_000, 3)])
def test_calibration_error_of_many_rows_has_an_interval(rows: int, sharpness: float) -> None:
    rng = np.random.default_rng(0)
    value, low, high = describe(Tally.of_rows(*draw(rng, rows, sharpness)), rng, draws=200)[ECE]
    assert low < value <= high
    assert 1 < (high - low) * np.sqrt(rows) < 4  # as wide as the sampling error of a share of positives
    if sharpness > 1:
        assert low < value < high


def test_few_positives_have_the_interval_of_the_logit_scale() -> None:
    rng = np.random.default_rng(0)
    for positives, few in ((10, True), (11, False)):
        labels, scores = np.arange(100) < positives, rng.normal(size=100)
        scores[labels] += 9  # perfect ranking, so every bootstrap sample has the same AUC
        interval = describe(Tally.of_rows(labels, scores), rng, draws=20)["auc"]
        assert interval == ([1.0, interval[1], 1.0] if few else [1.0, 1.0, 1.0])
        assert not few or 0.6 < interval[1] < 0.95


def test_one_class_has_no_ranking() -> None:
    found = describe(Tally.of_rows([1, 1, 1], [0.5, 1.0, 9.0]), stream(0, "test"), draws=20)
    assert [found[name] for name in RANKING] == [None] * 4
    assert found[BRIER][0] == pytest.approx(np.mean((1 - expit([0.5, 1.0, 9.0])) ** 2))
    assert [one["observed"] for one in found["reliability"]] == [[1.0, 1.0, 1.0]] * 3


def test_the_same_rows_have_the_same_intervals_however_many_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, logits = draw(np.random.default_rng(0), 300, 1)
    tally = tally_of_bins(labels, logits)
    whole = describe(tally, stream(0, "test"), draws=50)
    monkeypatch.setattr("problems.intervals._CELLS", 500)
    assert describe(tally, stream(0, "test"), draws=50) == whole
