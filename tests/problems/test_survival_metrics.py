"""Tests of survival metrics from counts, against lifelines, statsmodels and scikit-survival on the counted rows."""

import itertools

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from lifelines.utils import concordance_index
from scipy.stats import t
from statsmodels.api import SurvfuncRight

from problems.binned_scores import codes, find_bins, find_wide_bins, first_edges
from problems.survival.brier import brier_scores, integrate_scores
from problems.survival.concordance import FEWEST_EVENTS, harrell, harrell_interval, uno
from problems.survival.dynamic_auc import dynamic_auc
from problems.survival.intervals import measure_cells
from problems.survival.kaplan_meier import SurvivalCurve, censoring_survival, kaplan_meier, weigh_events
from problems.survival.paired import bin_rows, count_entries, derive_rows
from problems.survival.risk_groups import calibrate_risk, split_by_risk

GRID, BINS = 9, 7
KINDS = (
    "ties",
    "heavy censoring",
    "few rows",
    "single event",
    "censored at the end",
    "events at the end",
    "no censoring",
)
NO_EVENT = np.random.default_rng(1).poisson(0.5, (GRID, 2, BINS)) * np.array([1, 0])[:, None]
CLOSE = {"rtol": 0, "atol": 1e-12}


def draw(kind: str) -> np.ndarray:
    rng = np.random.default_rng(KINDS.index(kind))
    rate = {"heavy censoring": (2.0, 0.1), "few rows": (0.1, 0.1), "no censoring": (0.0, 0.5)}.get(kind, (0.7, 0.7))
    cells = rng.poisson(np.array(rate)[:, None], (GRID, 2, BINS))
    if kind == "single event":
        cells[:, 1] = 0
        cells[4, 1, 3] = 1
    if kind.endswith("at the end"):
        cells[-2] = 0
        cells[-1, 0 if kind.startswith("events") else 1] = 0
    return cells


def expand(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return grid time, event and bin of each row."""
    time, event, score = np.repeat(np.argwhere(cells), cells[cells > 0], axis=0).T
    return time, event, score


def count(time: np.ndarray, event: np.ndarray, score: np.ndarray, bins: int) -> np.ndarray:
    cells = np.zeros((time.max() + 1, 2, bins), np.int64)
    np.add.at(cells, (time, event, score), 1)
    return cells


def check_curve(curve: SurvivalCurve, time: np.ndarray, event: np.ndarray, entry: np.ndarray | None = None) -> None:
    """Compare one group's curve with the two libraries, which put a row at risk strictly after its entry."""
    entry = None if entry is None else entry - 0.5
    with np.errstate():  # lifelines changes NumPy's settings
        fitted = KaplanMeierFitter().fit(time, event, entry=entry, timeline=np.arange(GRID))
        other = SurvfuncRight(time, event, entry=entry)
    inside = np.arange(GRID) <= time.max()
    expected = np.column_stack((fitted.survival_function_, fitted.confidence_interval_))
    got = np.column_stack((curve.survival, curve.low, curve.high))
    dead = curve.survival == 0
    np.testing.assert_allclose(got[inside & ~dead], expected[inside & ~dead], **CLOSE)
    np.testing.assert_allclose(expected[dead, 0], 0, **CLOSE)
    assert np.isnan(got[dead, 1:]).all()
    assert np.isnan(got[~inside & ~dead]).all()
    known = np.isin(np.arange(GRID), other.surv_times) & ~dead
    np.testing.assert_allclose(curve.deviation[known], other.surv_prob_se[other.surv_prob > 0], **CLOSE)
    at_risk = [((time >= k) & (True if entry is None else entry < k)).sum() for k in range(GRID)]
    np.testing.assert_array_equal(curve.at_risk, at_risk)


@pytest.mark.parametrize("kind", KINDS)
def test_curves_equal_the_libraries_curves(kind: str) -> None:
    cells = draw(kind)
    time, event, score = expand(cells)
    check_curve(kaplan_meier(cells.sum(axis=-1)), time, event)
    grouped = kaplan_meier(np.moveaxis(cells, -1, 0))
    for number in np.unique(score):
        one = score == number
        if event[one].any():
            check_curve(SurvivalCurve(*(each[number] for each in vars(grouped).values())), time[one], event[one])


def test_rows_are_at_risk_from_their_entry() -> None:
    time, event, _ = expand(draw("ties"))
    entry = np.random.default_rng(0).integers(0, time + 1) // 2
    counts = count(time, event, np.zeros_like(time), 1)[..., 0]
    check_curve(kaplan_meier(counts, np.bincount(entry, minlength=GRID)), time, event, entry)
    with pytest.raises(ValueError, match="more rows leave"):
        kaplan_meier(counts, np.bincount(entry + 2, minlength=GRID)[:GRID])


@pytest.mark.parametrize("kind", KINDS)
def test_censoring_mirrors_survival_with_later_ties(kind: str) -> None:
    counts = draw(kind).sum(axis=-1)
    censoring, curve = censoring_survival(counts), kaplan_meier(counts)
    time, *_ = expand(counts[..., None])
    after = [(time > k).mean() for k in range(GRID)]
    np.testing.assert_allclose(np.nan_to_num(curve.survival) * censoring, after, **CLOSE)
    inside = np.arange(GRID) <= time.max()
    seen = np.cumsum(counts[:, 1] * weigh_events(censoring)) / len(time)
    np.testing.assert_allclose(seen[inside], 1 - curve.survival[inside], **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_harrell_equals_lifelines(kind: str) -> None:
    time, event, score = expand(cells := draw(kind))
    assert harrell(cells).value == pytest.approx(concordance_index(time, -score, event), abs=1e-12)


def survival_rows(time: np.ndarray, event: np.ndarray) -> np.ndarray:
    """Return rows for scikit-survival on a grid with twice as many times: events at 2 k + 1, censorings at 2 k + 2.

    scikit-survival weighs an event by 1 / G(k), which includes the censorings at k. Without ties of events and
    censorings this is 1 / G(k-).
    """
    return np.array(list(zip(event == 1, 2 * time + 2 - event, strict=True)), dtype=[("event", bool), ("time", float)])


@pytest.mark.parametrize("kind", KINDS)
def test_weighted_metrics_equal_scikit_survival(kind: str) -> None:
    library = pytest.importorskip("sksurv.metrics")
    time, event, score = expand(cells := draw(kind))
    rows, predicted = survival_rows(time, event), np.random.default_rng(0).random((BINS, GRID))
    for tau in (None, 3, 6):
        limit = None if tau is None else 2 * tau + 1
        if (event[time < (limit or np.inf)] == 1).any() and event[time < (tau or GRID)].any():
            expected = library.concordance_index_ipcw(rows, rows, score.astype(float), limit)[0]
            assert uno(cells, tau).value == pytest.approx(expected, abs=1e-12)
    first, last = time[event == 1].min(), time.max() - (cells[time.max(), 0].sum() == 0)
    times = np.arange(first, last)
    expected, _ = library.cumulative_dynamic_auc(rows, rows, score.astype(float), 2.0 * times + 2)
    np.testing.assert_allclose(dynamic_auc(cells, times)[0], expected, **CLOSE)
    scores = brier_scores(cells, predicted[:, times], times)
    _, expected = library.brier_score(rows, rows, predicted[score][:, times], 2.0 * times + 2)
    np.testing.assert_allclose(scores.model, expected, **CLOSE)
    constant = np.tile(kaplan_meier(cells.sum(axis=-1)).survival[times], (len(time), 1))
    _, expected = library.brier_score(rows, rows, constant, 2.0 * times + 2)
    np.testing.assert_allclose(scores.constant, expected, **CLOSE)
    if len(times) > 1:
        expected = library.integrated_brier_score(rows, rows, predicted[score][:, times], 2.0 * times + 2)
        assert integrate_scores(scores.model, times.astype(float)) == pytest.approx(expected, abs=1e-12)


def test_bounds_contain_the_metrics_of_the_exact_scores() -> None:
    library = pytest.importorskip("sksurv.metrics")
    rng, edges, tighter = np.random.default_rng(0), first_edges(2048), 0
    for _ in range(30):
        time, event = rng.integers(0, GRID, 40), rng.integers(0, 2, 40)
        exact = np.where(rng.random(40) < 0.5, 0, rng.uniform(1, 1.3, 40)).astype(np.float32).astype(float)
        cells, rows = count(time, event, find_bins(codes(exact), edges), 2048), survival_rows(time, event)
        times = np.arange(time[event == 1].min(), time.max())
        wide = find_wide_bins(edges)
        truths = concordance_index(time, -exact, event), library.concordance_index_ipcw(rows, rows, exact, 13)[0]
        looser = harrell(cells), uno(cells, 6)
        for truth, loose, got in zip(truths, looser, (harrell(cells, wide), uno(cells, 6, wide)), strict=True):
            assert abs(got.value - truth) <= got.bound + 1e-12
            tighter += got.bound < loose.bound
        values, bounds = dynamic_auc(cells, times, wide)
        truth, _ = library.cumulative_dynamic_auc(rows, rows, exact, 2.0 * times + 2)
        assert (np.abs(values - truth) <= bounds + 1e-12).all()
        tighter += (bounds < dynamic_auc(cells, times)[1]).any()
    assert tighter == 90
    pair = count(np.array([0, 1]), np.array([1, 0]), np.array([0, 0]), 1)
    assert vars(harrell(pair)) == vars(uno(pair)) == {"value": 0.5, "bound": 0.5}


def test_the_interval_has_the_derivatives_variance() -> None:
    time, event, score = expand(cells := draw("ties"))
    first = (event == 1)[:, None] & ((time[:, None] < time) | ((time[:, None] == time) & (event == 0)))
    right = first * ((score[:, None] > score) + (score[:, None] == score) / 2)

    def concordance(weights: np.ndarray) -> float:
        return float(weights @ right @ weights / (weights @ first @ weights))

    steps = 1e-4 * np.eye(len(time))
    derivatives = np.array([concordance(1 + step) - concordance(1 - step) for step in steps]) / 2e-4
    d, value = event.sum(), concordance(np.ones(len(time)))
    half = t.ppf(0.975, d - 1) * np.sqrt(d / (d - 1) * (derivatives**2).sum()) / (value * (1 - value))
    ends = 1 / (1 + (1 - value) / value * np.exp([half, -half]))
    np.testing.assert_allclose(harrell_interval(cells), ends, rtol=1e-6)


def test_the_interval_covers_the_concordance() -> None:
    rng, slope = np.random.default_rng(0), np.arange(BINS) - BINS / 2
    hazard = 0.02 * np.exp(0.4 * slope) * np.ones((GRID, 1))
    left = np.cumprod(np.vstack((np.ones(BINS), (0.8 * (1 - hazard))[:-1])), axis=0)
    share = np.stack((left * (1 - hazard) * 0.2, left * hazard), axis=1)
    share[-1, 0] += left[-1] * (1 - hazard[-1]) * 0.8
    truth = harrell(np.round(share * 1e6).astype(np.int64)).value
    draws = rng.multinomial(150, share.ravel() / share.sum(), 2000).reshape(-1, GRID, 2, BINS)
    ends = np.array([harrell_interval(cells) for cells in draws])
    ends = ends[~np.isnan(ends[:, 0])]
    assert len(ends) > 1000
    assert 0.93 < ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean() < 0.97


def test_groups_have_nearly_equal_sizes_and_their_own_curves() -> None:
    rng = np.random.default_rng(0)
    cells = rng.poisson(0.3, (GRID, 2, 60))
    cells[:, :, :5] = 0
    time, event, score = expand(cells)
    size, predicted = np.bincount(score, minlength=60), rng.random(60)
    groups = split_by_risk(cells, 3)
    assert (np.abs(groups.sum(axis=(1, 2)) - len(time) / 3) <= size.max()).all()
    borders = np.cumsum(groups.sum(axis=(1, 2)))
    table = calibrate_risk(cells, predicted, 5, 3)
    order = np.argsort(score, kind="stable")
    for number, rows in enumerate(np.split(order, borders[:-1])):
        assert not set(score[rows]) & set(np.delete(score, rows))
        np.testing.assert_array_equal(groups[number], count(time[rows], event[rows], score[rows] * 0, 1)[..., 0])
        fitted = KaplanMeierFitter().fit(time[rows], event[rows])
        low, high = fitted.confidence_interval_.loc[5]
        expected = [len(rows), 1 - predicted[score[rows]].mean(), 1 - fitted.predict(5), 1 - high, 1 - low]
        np.testing.assert_allclose([each[number] for each in vars(table).values()], expected, **CLOSE)


def test_a_heavy_bin_is_one_group() -> None:
    cells = np.zeros((3, 2, 4), np.int64)
    cells[1, 1] = [1, 0, 20, 1]
    np.testing.assert_array_equal(split_by_risk(cells, 3).sum(axis=(1, 2)), [1, 20, 1])
    cells[1, 1] = [0, 0, 20, 0]
    table = calibrate_risk(cells, np.full(4, 0.25), 1, 3)
    np.testing.assert_array_equal(table.rows, [0, 20, 0])
    np.testing.assert_array_equal(table.predicted, [np.nan, 0.75, np.nan])
    np.testing.assert_array_equal(table.observed, [np.nan, 1, np.nan])
    assert np.isnan([table.low, table.high]).all()


@pytest.mark.parametrize("cells", [NO_EVENT, np.zeros_like(NO_EVENT)], ids=["no event", "no row"])
def test_metrics_without_events_are_nan(cells: np.ndarray) -> None:
    assert np.isnan([harrell(cells).value, uno(cells).value, *harrell_interval(cells)]).all()
    assert harrell(cells).bound == uno(cells).bound == 0
    values, bounds = dynamic_auc(cells, np.arange(GRID))
    assert np.isnan(values).all()
    assert not bounds.any()
    scores = brier_scores(cells, np.full((BINS, GRID), 0.5), np.arange(GRID))
    assert np.isnan([scores.model[-1], scores.constant[-1]]).all()
    if cells.any():  # the weights of the remaining rows add up to the number of all rows
        np.testing.assert_allclose(scores.model[:-1], 0.25, **CLOSE)
        np.testing.assert_allclose(scores.constant[:-1], 0, **CLOSE)


def test_times_without_controls_or_weights() -> None:
    cells = draw("events at the end")
    scores = brier_scores(cells, np.full((BINS, 1), 0.3), np.array([GRID - 1]))
    assert scores.model[0] == pytest.approx(0.09)  # all survival has ended, and the weights are those of the events
    assert scores.constant[0] == pytest.approx(0, abs=1e-12)
    assert np.isnan(dynamic_auc(cells, np.array([GRID - 1]))[0]).all()
    cells = draw("censored at the end")
    scores = brier_scores(cells, np.full((BINS, 2), 0.3), np.array([GRID - 2, GRID - 1]))
    assert np.isnan(scores.model).tolist() == np.isnan(scores.constant).tolist() == [False, True]
    assert np.isnan(integrate_scores(scores.model, np.array([1.0, 2.0])))
    with pytest.raises(ValueError, match="at least two ascending times"):
        integrate_scores(np.ones(1), np.ones(1))


def test_few_or_perfectly_ranked_events_have_no_interval() -> None:
    cells = np.zeros((FEWEST_EVENTS + 1, 2, FEWEST_EVENTS + 1), np.int64)
    cells[np.arange(FEWEST_EVENTS + 1), 1, np.arange(FEWEST_EVENTS + 1)[::-1]] = 1
    assert harrell(cells).value == 1
    assert np.isnan(harrell_interval(cells)).all()
    cells[:2] = cells[1::-1]
    assert not np.isnan(harrell_interval(cells)).any()
    cells[2:, 0], cells[2:, 1] = cells[2:, 1], 0
    assert np.isnan(harrell_interval(cells)).all()


def test_events_are_compared_with_rows_that_have_entered() -> None:
    """The concordance over all pairs, and its derivative by a row's weight from differences of two more copies."""
    rng = np.random.default_rng(3)
    exits, labels = rng.integers(0, 8, 40), rng.integers(0, 2, 40)
    entries, scores = rng.integers(0, exits + 1), rng.integers(0, 12, 40).astype(float)

    def over_pairs(weights: np.ndarray) -> float:
        right = pairs = 0.0
        for i, j in itertools.permutations(range(40), 2):
            later = exits[j] > exits[i] or (exits[j] == exits[i] and not labels[j])
            if labels[i] and later and entries[j] <= exits[i]:
                pairs += weights[i] * weights[j]
                right += weights[i] * weights[j] * ((scores[i] > scores[j]) + (scores[i] == scores[j]) / 2)
        return right / pairs

    value, derivative = derive_rows(exits, labels, scores, entries)
    assert value == pytest.approx(over_pairs(np.ones(40)), abs=1e-12)
    for row in range(40):
        up, down = (over_pairs(np.ones(40) + step * np.eye(40)[row]) for step in (1e-5, -1e-5))
        assert derivative[row] == pytest.approx((up - down) / 2e-5, abs=1e-8)
    cells, bins = bin_rows(exits, labels, scores, 8)
    counted = count_entries(entries, bins, cells)
    assert measure_cells(cells, 3, None, counted) == {"concordance": pytest.approx(value)}
