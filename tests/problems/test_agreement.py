"""Tests of column reports and the sites' agreement: as if all sites were one, without revealing a single row."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.preprocessing import KBinsDiscretizer

from problems.data import DataError, Preprocessing
from problems.data.agreement import Statistics, agree, fit, fit_alone, measure
from problems.data.preprocessing import Feature, describe_scales, shape
from problems.data.quantiles import FEWEST_ROWS, GROUPS, LEVELS, merge, sketch
from tests.refusals import refuses, spell


def table(columns: int, **keys: Any) -> Preprocessing:
    return Preprocessing(tuple(Feature(f"x{place}", "number") for place in range(columns)), **keys)


def tell(preprocessing: Preprocessing, parts: list[np.ndarray], fewest: int = FEWEST_ROWS) -> list[Statistics]:
    told = [measure(preprocessing, part, fewest) for part in parts]
    assert all(statistics is None or not statistics.find_fault(preprocessing) for statistics in told)
    return [statistics for statistics in told if statistics is not None]


@st.composite
def sites(draw: st.DrawFn) -> list[np.ndarray]:
    """Return some sites' rows of two columns with gaps; each site has at least one cell of each column."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    cells = st.one_of(st.just(np.nan), st.floats(-1e4, 1e4).map(lambda x: round(x, 2)))
    parts = [draw(arrays(np.float64, (size + 1, 2), elements=cells)) for size in sizes]
    for part in parts:
        part[0] = np.nan_to_num(part[0])
    return parts


@given(sites(), st.sampled_from(["standard", "log"]), st.sampled_from(["mean", "indicator"]))
@example([np.zeros((2, 2)), np.array([[1.0, 2.0], [3.0, np.nan]])], "standard", "indicator")  # only the second site
def test_means_are_over_the_cells_that_are_there(parts: list[np.ndarray], scale: Any, missing: Any) -> None:
    preprocessing, union = table(2, scale=scale, missing=missing), np.concatenate(parts)
    agreed = agree(preprocessing, tell(preprocessing, parts, fewest=1))
    shaped = shape(union, scale) if scale == "log" else union
    tolerance = 1e-7 * (1 + np.abs(union[~np.isnan(union)]).max())
    np.testing.assert_allclose(agreed.means, np.nanmean(shaped, axis=0), atol=tolerance)
    np.testing.assert_allclose(agreed.deviations, np.nanstd(shaped, axis=0), atol=tolerance)
    fitted = fit(preprocessing, agreed)
    gaps = np.isnan(union)
    assert [feature.column for feature in fitted.outputs[2:]] == [
        f"x{place}" for place in range(2) if missing == "indicator" and gaps[:, place].any()
    ]
    # the fill is the mean, and the mean's feature is 0
    assert np.abs(fitted.apply(union)[:, :2][gaps]).max(initial=0) < 1e-4


@given(st.integers(0, 2000), st.integers(0, 3))
def test_a_border_is_ten_rows_away_from_both_ends_and_from_others(count: int, seed: int) -> None:
    cells = np.random.default_rng(seed).permutation(count) * 1.0
    borders = sketch(cells)
    groups = np.diff([0, *(int((cells < border).sum()) for border in borders), count])
    assert len(borders) == max(0, min(GROUPS, 2 * (count // 20)) - 1)
    assert count < 20 or (groups.min() >= FEWEST_ROWS and np.ptp(groups) <= 1)
    assert not set(borders) & set(cells)


@given(st.lists(st.integers(20, 900), min_size=1, max_size=4), st.integers(0, 9), st.sampled_from([0.0, 0.3]))
def test_quantiles_of_the_mixture_are_those_of_the_union(sizes: list[int], seed: int, atom: float) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.lognormal(rng.normal(), 1, size) * (rng.random(size) >= atom) for size in sizes]
    quantiles, union = merge(np.array(sizes), [sketch(part) for part in parts], LEVELS), np.concatenate(parts)
    # a site's distribution function is accurate to one of its groups, the union's to the weighted mean of the groups
    error = sum(math.ceil(size / min(GROUPS, 2 * (size // 20))) for size in sizes) / sum(sizes) + 1e-9
    below, upto = ((union[:, None] < quantiles).mean(axis=0), (union[:, None] <= quantiles).mean(axis=0))
    assert (np.diff(quantiles) >= 0).all()
    assert (below - error <= LEVELS).all()
    assert (upto + error >= LEVELS).all()


def test_quantiles_of_one_large_site_are_its_own() -> None:
    cells = np.random.default_rng(0).normal(size=1280)
    np.testing.assert_allclose(merge(np.array([1280]), [sketch(cells)], LEVELS), sketch(cells))


@pytest.mark.parametrize("size", [20, 58, 290, 1280])
def test_the_median_of_one_table_is_exact(size: int) -> None:
    cells = np.random.default_rng(0).normal(size=size)
    for scale in ("quantile", "standard"):
        preprocessing = table(1, scale=scale, missing="median")
        agreed = agree(preprocessing, tell(preprocessing, [cells[:, None]]))
        assert agreed.fills is not None
        assert agreed.fills[0] == pytest.approx(np.median(cells))


def test_levels_are_uniform_and_the_same_at_every_site() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.lognormal(place, 1, (700 + 100 * place, 1)) for place in range(3)]
    parts = [np.concatenate([part, part > 3, np.full_like(part, 7.0)], axis=1) for part in parts]
    preprocessing = table(3, scale="quantile")
    features = fit(preprocessing, agree(preprocessing, tell(preprocessing, parts))).apply(np.concatenate(parts))
    assert np.abs(features[:, 0].mean()) < 0.02
    assert features[:, 0].std() == pytest.approx(1, abs=0.02)
    assert (np.diff(features[np.argsort(np.concatenate(parts)[:, 0]), 0]) >= 0).all()
    # of two values each has the middle level of its share, so the mean is 0, too; a constant is 0
    assert (len(np.unique(features[:, 1])), np.abs(features[:, 1].mean()) < 0.05) == (2, True)
    assert not features[:, 2].any()


def test_auto_scales_columns_with_long_tails_by_level_and_the_others_by_moments() -> None:
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(2000, 6))
    cells = np.stack(
        [
            normal[:, 0],
            np.exp(1.5 * normal[:, 1]),  # amounts
            np.where(rng.random(2000) < 0.005, 9999, normal[:, 2]),  # codes among numbers
            -np.exp(1.5 * normal[:, 3]),
            rng.poisson(0.3, 2000),  # counts with few values
            np.full(2000, 7.0),
        ],
        axis=1,
    )
    parts = np.split(cells, [500, 900])
    tails = np.array([False, True, True, True, False, False])
    features = {}
    for scale in ("auto", "standard", "quantile"):
        preprocessing = table(6, scale=scale)
        fitted = fit(preprocessing, agree(preprocessing, tell(preprocessing, parts)))
        features[scale] = fitted.apply(cells)
        if scale == "auto":
            assert [feature.transform == "quantile" for feature in fitted.outputs] == tails.tolist()
            assert "(3: 'x1', 'x2', 'x3')" in describe_scales(fitted)[0]
    np.testing.assert_array_equal(features["auto"], np.where(tails, features["quantile"], features["standard"]))


def test_auto_is_standard_for_few_cells() -> None:
    cells = np.exp(2 * np.random.default_rng(0).normal(size=(639, 1)))
    assert fit_alone(table(1, scale="auto"), cells).outputs == fit_alone(table(1, scale="standard"), cells).outputs
    assert fit_alone(table(1, scale="auto"), np.append(cells, cells[:1])[:, None]).outputs[0].transform == "quantile"
    assert fit_alone(table(1, scale="auto"), cells[:5]).outputs[0].transform == "none"


@pytest.mark.parametrize("bins", [2, 8, 32])
def test_bins_are_those_of_scikit_learn(bins: int) -> None:
    cells = np.random.default_rng(0).lognormal(size=(640, 2))
    fitted = fit_alone(table(2, scale="bins", bins=bins), cells)
    reference = KBinsDiscretizer(bins, encode="onehot-dense", strategy="quantile", quantile_method="linear").fit(cells)
    beyond = np.array([[-1.0, 1e9]])  # in the first bin and in the last
    for rows in (cells, beyond):
        np.testing.assert_array_equal(fitted.apply(rows), reference.transform(rows))


@given(st.lists(st.integers(40, 900), min_size=2, max_size=3), st.integers(0, 9), st.sampled_from([0.0, 0.3]))
def test_bins_of_sites_are_those_of_the_union(sizes: list[int], seed: int, atom: float) -> None:
    """Each cell is in one bin, and each bin has its share, up to one group of each site."""
    rng = np.random.default_rng(seed)
    parts = [rng.lognormal(rng.normal(), 1, (size, 1)) * (rng.random((size, 1)) >= atom) for size in sizes]
    preprocessing, union = table(1, scale="bins", bins=8), np.concatenate(parts)
    fitted = fit(preprocessing, agree(preprocessing, tell(preprocessing, parts)))
    features = fitted.apply(union)
    assert (features.sum(axis=1) == 1).all()
    error = 2 * sum(math.ceil(size / min(GROUPS, 2 * (size // 20))) for size in sizes) / sum(sizes)
    assert features[:, 1:].mean(axis=0).max() < 1 / 8 + error
    assert atom or len(fitted.outputs) == 8
    assert [one.high for one in fitted.outputs[:-1]] == [one.low for one in fitted.outputs[1:]]


def test_bins_of_columns_with_few_values() -> None:
    """Columns with many zeros, with flags of which one is rare, a constant, and a code whose largest value is
    frequent."""
    place = np.arange(1280)
    columns = [np.maximum(place - 400, 0), place % 9 > 0, place == 7, np.full(1280, 5.0), np.minimum(place % 9, 4)]
    cells = np.stack(columns, axis=1).astype(np.float64)
    fitted = fit_alone(table(5, scale="bins", bins=4), cells)
    # the quarters of the first column: 400 zeros, then up to 240 and 560
    assert fitted.names[:4] == ("x0 <= 0", "x0 (0, 239.5]", "x0 (239.5, 559.5]", "x0 > 559.5")
    assert fitted.names[4:] == ("x1 <= 0", "x1 > 0", "x2", "x3", "x4 <= 2", "x4 (2, 3]", "x4 > 3")
    features = fitted.apply(cells)
    np.testing.assert_array_equal(features[:, 0], cells[:, 0] == 0)
    assert features[7, 6] > 1 > np.ptp(np.delete(features[:, 6], 7)) == 0
    assert not features[:, 7].any()


@pytest.mark.parametrize(("missing", "wanted"), [("mean", [0, 1]), ("median", [1, 0]), ("indicator", [0, 0, 1])])
def test_missing_numbers_are_in_the_bin_of_the_fill_or_in_none(missing: Any, wanted: list[int]) -> None:
    cells = np.append(np.arange(99.0) ** 4, np.nan)[:, None]
    preprocessing = table(1, scale="bins", bins=2, missing=missing)
    assert fit_alone(preprocessing, cells).apply(cells)[-1].tolist() == wanted


def test_marks_are_neither_scaled_nor_told() -> None:
    preprocessing = Preprocessing((Feature("t", "category", "a"), Feature("x", "number")), missing="indicator")
    values = np.stack([np.arange(20) % 2, np.arange(20)], axis=1) * 1.0
    values[3, 0] = np.nan
    (told,) = tell(preprocessing, [values])
    assert told.means is not None
    assert told.variances is not None
    assert (told.means[0], told.variances[0], told.counts.tolist()) == (0.0, 1.0, [19, 20])
    fitted = fit(preprocessing, agree(preprocessing, [told]))
    assert fitted.names == ("t=a", "x", "t missing")
    np.testing.assert_array_equal(fitted.apply(values)[:4, [0, 2]], [[0, 0], [1, 0], [0, 0], [0, 1]])


@pytest.mark.parametrize(
    ("keys", "cells", "told"),
    [
        (
            {"missing": "mean"},
            9,
            "columns: got 'x0' with fewer than 10 cells that are not missing, allowed: 10 cells at one",
        ),
        ({"missing": "median"}, 19, "'x0' with fewer than 20 cells that are not missing"),
    ],
)
def test_too_few_cells_to_tell_of(keys: dict[str, Any], cells: int, told: str) -> None:
    preprocessing = table(2, scale="none", **keys)
    values = np.random.default_rng(0).normal(size=(40, 2))
    few = values.copy()
    few[cells:, 0] = np.nan
    with pytest.raises(DataError) as caught:
        agree(preprocessing, tell(preprocessing, [few, few]))
    assert told in spell(caught.value)
    # if another site has enough rows, that site alone decides
    alone, both = (agree(preprocessing, tell(preprocessing, parts)) for parts in ([values], [values, few]))
    assert alone.fills is not None
    assert both.fills is not None
    assert alone.fills[0] == both.fills[0]


def test_numbers_whose_variance_overflows() -> None:
    with refuses(DataError, "column 'x0': got numbers so large that their variance is not finite"):
        measure(table(1), np.geomspace(1, 1e200, 30)[:, None])


def test_nothing_is_told_where_nothing_is_needed() -> None:
    assert measure(table(1, scale="none"), np.zeros((30, 1))) is None
    (told,) = tell(table(1, scale="quantile"), [np.arange(40.0)[:, None]])
    assert (told.means, told.variances) == (None, None)
    assert told.quantiles is not None
    assert told.quantiles.tolist() == [9.5, 19.5, 29.5]
