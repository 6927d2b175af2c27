"""Tests of ranking metrics against scikit-learn, and of the metrics' identities."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from problems.metrics import accuracy, binary_metrics, scored_metrics

KEYS = {"auc", "pauc_fpr30", "pauc_fpr30_raw", "pauc_fpr50", "pauc_fpr50_raw", "average_precision"}


def raw_from_mcclish(standardised: float, limit: float) -> float:
    chance = limit**2 / 2
    return ((2 * standardised - 1) * (limit - chance) + chance) / limit


@pytest.mark.parametrize("distinct", [2, 3, 7, 50, 100_000])
@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_scikit_learn(distinct: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 500))
    labels = np.concatenate(([0, 1], rng.random(n) < rng.uniform(0.05, 0.95))).astype(np.int8)
    scores = rng.integers(0, distinct, size=n + 2) / distinct + 0.2 * (distinct > 10) * labels
    metrics = binary_metrics(labels, scores)
    assert set(metrics) == KEYS
    assert all(type(value) is float for value in metrics.values())
    assert metrics["auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert metrics["average_precision"] == pytest.approx(average_precision_score(labels, scores), abs=1e-12)
    for name, limit in (("pauc_fpr30", 0.3), ("pauc_fpr50", 0.5)):
        expected = roc_auc_score(labels, scores, max_fpr=limit)
        assert metrics[name] == pytest.approx(expected, abs=1e-12)
        assert metrics[f"{name}_raw"] == pytest.approx(raw_from_mcclish(expected, limit), abs=1e-12)


def test_perfect_reversed_and_constant_scores() -> None:
    labels = np.repeat([0, 1], 10)
    assert binary_metrics(labels, labels) == dict.fromkeys(KEYS, 1.0)
    assert binary_metrics(labels, -labels)["pauc_fpr30_raw"] == 0.0
    constant = binary_metrics(labels, np.zeros(20))
    assert constant["auc"] == constant["pauc_fpr30"] == constant["average_precision"] == 0.5
    assert constant["pauc_fpr30_raw"] == pytest.approx(0.15)


@st.composite
def labelled_scores(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    n = draw(st.integers(2, 60))
    labels = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n).filter(lambda drawn: 0 < sum(drawn) < len(drawn)))
    scores = draw(st.lists(st.integers(-20, 20), min_size=n, max_size=n))
    return np.array(labels), np.array(scores, dtype=float)


@given(labelled_scores(), st.randoms(use_true_random=False))
def test_only_the_order_of_the_scores_matters(drawn: tuple[np.ndarray, np.ndarray], random) -> None:
    labels, scores = drawn
    expected = binary_metrics(labels, scores)
    assert binary_metrics(labels, scores**3) == expected
    assert binary_metrics(labels, 1 / (1 + np.exp(-scores / 4))) == expected
    order = list(range(len(labels)))
    random.shuffle(order)
    assert binary_metrics(labels[order], scores[order]) == expected


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="2 of 3 scores are NaN"):
        binary_metrics([0, 1, 1], [np.nan, np.nan, 1.0])
    with pytest.raises(ValueError, match="3 positives and 0 negatives"):
        binary_metrics([1, 1, 1], [0.0, 1.0, 2.0])
    with pytest.raises(ValueError, match="0 positives and 0 negatives"):
        binary_metrics([], [])
    with pytest.raises(ValueError, match=r"got \(2,\) and \(3,\)"):
        binary_metrics([0, 1], [0.0, 1.0, 2.0])
    with pytest.raises(ValueError, match=r"labels must be 0 or 1, got \[-1, 1\]"):
        binary_metrics([-1, 1], [0.0, 1.0])


def test_accuracy_counts_the_threshold_as_positive() -> None:
    labels, scores = [0, 0, 1, 1], [0.1, 0.2, 0.5, 0.9]
    assert accuracy(labels, scores, 0.5) == 1.0
    assert accuracy(labels, scores, 0.6) == 0.75
    assert accuracy(labels, scores, 2.0) == 0.5
    with pytest.raises(ValueError, match="1 of 1 scores are NaN"):
        accuracy([0], [np.nan], 0.5)
    with pytest.raises(ValueError, match="at least one sample"):
        accuracy([], [], 0.5)


def test_a_bootstrap_is_the_metrics_of_resamples() -> None:
    """Its interval equals the interval of resamples that are drawn and measured one by one, including ties."""
    rng = np.random.default_rng(0)
    labels, scores = rng.random(90) < 0.3, rng.integers(0, 12, 90) / 4
    probabilities, predictions = 1 / (1 + np.exp(-scores)), scores > 1
    found = scored_metrics(labels, scores, probabilities, predictions, resamples=40, confidence=0.8, seed=3)
    assert {name: one.value for name, one in found.items() if name in KEYS} == binary_metrics(labels, scores)
    assert found["accuracy"].value == np.mean(predictions == labels)
    assert found["brier"].value == pytest.approx(brier_score_loss(labels, probabilities), abs=1e-15)
    rng = np.random.default_rng(3)
    draws: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(40):
        rows = rng.integers(90, size=90)
        measured = binary_metrics(labels[rows], scores[rows])
        measured["accuracy"] = float(np.mean(predictions[rows] == labels[rows]))
        measured["brier"] = float(np.mean((probabilities[rows] - labels[rows]) ** 2))
        for name, value in measured.items():
            draws[name].append(value)
    for name, one in found.items():
        assert (one.low, one.high) == pytest.approx(tuple(np.quantile(draws[name], (0.1, 0.9))), abs=1e-12)


def test_resamples_of_one_class_have_no_ranking() -> None:
    """Intervals leave out resamples of one class; if the only resample has one class, the bounds are nan."""
    found = scored_metrics([1, 0, 0], [0.0, 1.0, 1.0], [0.5] * 3, [1, 1, 1], resamples=100)
    assert (found["pauc_fpr30"].low, found["pauc_fpr30"].high) == (found["pauc_fpr30"].value,) * 2
    # the AUC's interval needs no resamples
    assert found["auc"].value == found["auc"].low == 0.0 < found["auc"].high < 1.0
    alone = next(
        one
        for seed in range(20)
        if np.isnan(
            (one := scored_metrics([1, 0, 0], [0, 1, 1], [0.5] * 3, [1] * 3, resamples=1, seed=seed))["pauc_fpr30"].low
        )
    )
    assert (alone["brier"].low, np.isnan(alone["average_precision"].high)) == (0.25, True)
