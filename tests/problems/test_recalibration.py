"""The recalibration of counted scores is the logistic regression of the rows, also within the bins' bound."""

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from problems.binned_scores import codes, find_bins, first_edges
from problems.calibration import Platt
from problems.recalibration import recalibrate
from problems.tallies import Tally


def draw(seed: int, rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    scores = rng.normal(-0.5, 1.5, rows)
    return rng.random(rows) < expit(0.3 + 0.7 * scores), scores


def expected(labels: np.ndarray, odds: np.ndarray) -> dict[str, list[float]]:
    """Return the entry of rows, one by one."""
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(odds[:, None], labels)
    design = np.stack((np.ones_like(odds), odds), axis=1)
    shares = model.predict_proba(odds[:, None])[:, 1]
    errors = np.sqrt(np.diag(np.linalg.inv(design.T @ (design * (shares * (1 - shares))[:, None]))))
    observed, likely = labels.sum(), expit(odds).sum()
    factor = np.exp(1.96 * np.sqrt((1 - labels.mean()) / observed))
    values = {"intercept": model.intercept_[0], "slope": model.coef_[0, 0]}
    found = {
        name: [value, value - 1.96 * error, value + 1.96 * error]
        for (name, value), error in zip(values.items(), errors, strict=True)
    }
    return found | {"observed_expected": [observed / likely, observed / likely / factor, observed / likely * factor]}


@pytest.mark.parametrize("calibrated", [False, True])
def test_recalibration_is_the_logistic_regression_of_rows(calibrated: bool) -> None:
    labels, scores = draw(1)
    tally, odds = Tally.of_rows(labels, scores), scores
    if calibrated:
        platt = Platt(1.7, -0.4)
        tally, odds = Tally(*list(vars(tally).values())[:5], platt), logit(platt(scores))
    found = recalibrate(tally)
    assert found is not None
    for name, figure in expected(labels, odds).items():
        assert found[name] == pytest.approx(figure, abs=2e-5)


def test_bins_move_the_recalibration_by_less_than_their_width() -> None:
    labels, scores = draw(2)
    edges = first_edges(2048)
    bins = find_bins(codes(scores), edges)
    negatives, positives = (np.bincount(bins[labels == side], minlength=2048)[None] for side in (False, True))
    found = recalibrate(Tally.of_bins(edges, negatives, positives))
    assert found is not None
    for name, figure in expected(labels, scores).items():
        assert found[name] == pytest.approx(figure, rel=0.02, abs=0.005)  # a bin is a sixteenth of its scores wide


def test_few_or_separated_rows_have_no_recalibration() -> None:
    labels, scores = draw(3)
    few = np.flatnonzero(labels)[:9]
    rest = np.flatnonzero(~labels)
    rows = np.concatenate((few, rest))
    assert recalibrate(Tally.of_rows(labels[rows], scores[rows])) is None
    assert recalibrate(Tally.of_rows(labels, scores), least=int(labels.sum()) + 1) is None
    assert recalibrate(Tally.of_rows(labels, labels + 0.0)) is None
    assert recalibrate(Tally.of_rows(labels, np.zeros(len(labels)))) is None
    assert "observed_expected" not in (recalibrate(Tally.of_rows(labels, scores), probable=False) or {})
