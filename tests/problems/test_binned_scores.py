"""Tests of metrics of scores that are known only up to a bin, against the metrics of the scores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from payloads.held_out import BINS
from problems.binned_scores import bounds, centres, codes, find_bins, first_edges, refine, scores_of
from problems.metrics import accuracy, binary_metrics
from strategies.score_counts import EXCHANGES

Bins = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # edges, counts of the classes, bin indices
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def binned(labels: np.ndarray, scores: np.ndarray, exchanges: int) -> Bins:
    code, edges = codes(scores), first_edges(BINS)
    for exchange in range(exchanges):
        place = find_bins(code, edges)
        counts = [np.bincount(place[labels == label], minlength=BINS) for label in (False, True)]
        if exchange < exchanges - 1:
            edges = refine(edges, *counts)
    return edges, counts[0], counts[1], place


@given(hnp.arrays(np.float32, st.integers(1, 60), elements=FINITE), st.data())
def test_metrics_are_within_their_bounds(scores: np.ndarray, data: st.DataObject) -> None:
    labels = data.draw(hnp.arrays(bool, len(scores)))
    edges, negatives, positives, place = binned(labels, scores, data.draw(st.integers(1, EXCHANGES)))
    moved = centres(edges)[place]
    np.testing.assert_array_equal(find_bins(codes(moved), edges), place)
    np.testing.assert_array_equal(moved >= 0, scores >= 0)
    assert edges.shape == (BINS - 1,)
    assert (np.diff(edges.astype(np.int64)) >= 0).all()
    unknown = bounds(edges, negatives, positives)
    if labels.all() or not labels.any():
        assert unknown == (0, 0)
        return
    exact, told = binary_metrics(labels, scores), binary_metrics(labels, moved)
    assert abs(told["auc"] - exact["auc"]) <= unknown[0] + 1e-12
    assert abs(told["average_precision"] - exact["average_precision"]) <= unknown[1] + 1e-12


def test_two_scores_of_one_bin_may_be_in_either_order() -> None:
    edges, negatives, positives, place = binned(np.array([False, True]), np.float32([1, 1.01]), exchanges=1)
    assert place[0] == place[1]
    assert bounds(edges, negatives, positives)[0] == 0.5  # the reported AUC is one half, and the true AUC may be 0 or 1


@given(hnp.arrays(np.float32, st.integers(2, 60), elements=FINITE))
def test_codes_have_the_order_of_the_scores(scores: np.ndarray) -> None:
    code = codes(scores)
    np.testing.assert_array_equal(scores_of(code), scores)
    np.testing.assert_array_equal(code[:, None] < code, scores[:, None] < scores)


def outlier(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.where(np.arange(len(scores)) == 7, 1e6, scores)


CASES: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "normal": lambda scores, rng: scores,
    "outlier": outlier,
    "far clusters": lambda scores, rng: scores + np.where(rng.random(len(scores)) < 0.5, 1e5, -1e3),
    "narrow": lambda scores, rng: 100 + 0.01 * scores,
    "cauchy": lambda scores, rng: scores + rng.standard_cauchy(len(scores)),
    "small": lambda scores, rng: 1e-30 * scores,
    "ties": lambda scores, rng: np.round(scores),
    "equal": lambda scores, rng: np.full(len(scores), 0.3),
    "zero": lambda scores, rng: np.zeros(len(scores)),
}


@pytest.mark.parametrize("prevalence", [0.02, 0.3])
@pytest.mark.parametrize("rows", [40, 2000])
@pytest.mark.parametrize("case", CASES)
def test_metrics_of_any_scores(case: str, rows: int, prevalence: float) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(rows) < prevalence * rows
    scores = CASES[case](rng.standard_normal(rows) + labels, rng).astype(np.float32)
    edges, *_, place = binned(labels, scores, EXCHANGES)
    moved = centres(edges)[place]
    exact = binary_metrics(labels, scores)
    assert binary_metrics(labels, moved) == pytest.approx(exact, abs=2e-3)
    assert accuracy(labels, moved, 0) == accuracy(labels, scores, 0)
    assert (np.abs(moved - scores) <= np.maximum(np.abs(scores), 2.0**-24)).all()


def test_equal_scores_leave_nothing_unknown() -> None:
    labels = np.arange(100) < 30
    for score, exchanges in ((0.0, 1), (0.3, 3), (1e6, 3)):
        edges, *counts, _ = binned(labels, np.full(100, score), exchanges)
        assert bounds(edges, *counts) == (0, 0)


def test_scores_without_a_code() -> None:
    with pytest.raises(ValueError, match="2 of 3 scores are not finite"):
        codes([1.0, 1e39, np.nan])
