"""Tests of rows grouped by score: their sizes, and the curves that follow from them."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from problems.intervals import share_interval
from problems.score_groups import MAX_GROUPS, ScoreGroups
from problems.tallies import Tally

RNG = np.random.default_rng(0)
LABELS = (RNG.random(3000) < 0.1).astype(np.int8)
SCORES = RNG.normal(size=3000) + LABELS - 2
TALLY = Tally.of_rows(LABELS, SCORES)


@pytest.mark.parametrize("least", [1, 5, 40])
def test_groups_count_all_rows_and_none_is_small(least: int) -> None:
    groups = ScoreGroups.of(TALLY, least)
    assert 5 < len(groups.scores) <= MAX_GROUPS + 1
    assert (groups.negatives.sum(), groups.positives.sum()) == (3000 - LABELS.sum(), LABELS.sum())
    assert (groups.negatives + groups.positives >= 5).all()
    for counts in (groups.negatives, groups.positives):
        assert not ((counts > 0) & (counts < least)).any()
    again = ScoreGroups.from_json(groups.to_json())
    assert all(np.array_equal(value, getattr(groups, name)) for name, value in vars(again).items())


def test_curves_are_those_of_the_rows() -> None:
    groups = ScoreGroups.of(TALLY)
    false, true = groups.roc()
    assert np.trapezoid(true, false) == pytest.approx(roc_auc_score(LABELS, SCORES), abs=2e-3)
    likely = 1 / (1 + np.exp(-SCORES))
    for threshold, model, everyone in np.stack(groups.decision(), axis=1):
        odds, called = threshold / (1 - threshold), likely >= threshold
        assert model == pytest.approx((LABELS[called].sum() - (1 - LABELS[called]).sum() * odds) / 3000)
        assert everyone == pytest.approx((LABELS.sum() - (1 - LABELS).sum() * odds) / 3000)


def test_a_withheld_threshold_starts_no_group() -> None:
    ordered, starts = np.sort(SCORES), ScoreGroups.of(TALLY).scores
    between = ordered[np.searchsorted(ordered, starts[1:20:5]) + 10]
    for threshold in (*starts[1:20:5], *between):
        assert threshold in ScoreGroups.of(TALLY, threshold=threshold).scores
        assert threshold not in ScoreGroups.of(TALLY, threshold=threshold, hidden=True).scores


def test_few_rows_make_one_group() -> None:
    groups = ScoreGroups.of(Tally.of_rows([0, 1, 1], [0.5, 0.5, 2.0]))
    assert groups.to_json() == {
        "from_score": [0.5], "from_probability": [pytest.approx(0.62246, abs=1e-5)], "negatives": [1], "positives": [2]
    }  # fmt: skip


def test_the_interval_of_a_share_covers_it() -> None:
    hits = np.random.default_rng(1).binomial(40, 0.9, 2000)
    ends = np.array([share_interval(int(hit), 40) for hit in hits])
    assert 0.93 < ((ends[:, 0] <= 0.9) & (ends[:, 1] >= 0.9)).mean() < 0.99
