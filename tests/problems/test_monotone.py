"""Tests of monotone bins: pooled shares equal isotonic regression's, and merged bins have enough rows."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import xlogy
from sklearn.isotonic import IsotonicRegression

from problems.data.monotone import merge_borders

counts = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=7)


def groups_of(kept: tuple[float, ...], table: np.ndarray) -> np.ndarray:
    """Return the (2, groups) counts between the kept borders; the border after bin i is i."""
    return np.add.reduceat(table, [0, *(int(border) + 1 for border in kept)], axis=1)


def likelihood(table: np.ndarray) -> float:
    return float(xlogy(table, table / np.maximum(table.sum(axis=0), 1)).sum())


@given(counts, st.booleans())
def test_shares_equal_isotonic_regression(cells: list[tuple[int, int]], rising: bool) -> None:
    table = np.array([cell for cell in cells if sum(cell)] or [(1, 1)], dtype=float).T
    kept = merge_borders(range(table.shape[1] - 1), *table, min_rows=0, rising=rising)
    grouped, rows = groups_of(kept, table), table.sum(axis=0)
    fitted = IsotonicRegression(increasing=rising).fit_transform(range(len(rows)), table[1] / rows, sample_weight=rows)
    shares = grouped[1] / grouped.sum(axis=0)
    sizes = np.diff([0, *(int(border) + 1 for border in kept), len(rows)])
    np.testing.assert_allclose(np.repeat(shares, sizes), fitted, rtol=1e-9, atol=1e-12)
    assert (np.diff(shares) > 0).all() if rising else (np.diff(shares) < 0).all()


@given(counts)
def test_no_monotone_bins_have_a_larger_likelihood(cells: list[tuple[int, int]]) -> None:
    table = np.array([cell for cell in cells if sum(cell)] or [(1, 1)], dtype=float).T
    inner = range(table.shape[1] - 1)
    best = -np.inf
    for size in range(len(inner) + 1):
        for chosen in combinations(inner, size):
            grouped = groups_of(chosen, table)
            steps = np.diff(grouped[1] / grouped.sum(axis=0))
            if (steps > 0).all() or (steps < 0).all():
                best = max(best, likelihood(grouped))
    assert likelihood(groups_of(merge_borders(inner, *table, min_rows=0), table)) == pytest.approx(best, abs=1e-9)


@given(counts, st.integers(1, 20))
def test_merged_bins_have_enough_rows_of_each_class(cells: list[tuple[int, int]], min_rows: int) -> None:
    table = np.array(cells, dtype=float).T
    kept = merge_borders(range(table.shape[1] - 1), *table, min_rows=min_rows)
    grouped = groups_of(kept, table)
    assert not kept or (grouped >= min_rows).all()
    if kept:
        steps = np.diff(np.log(grouped[1] / grouped[0]))
        assert (steps > 0).all() or (steps < 0).all()


@pytest.mark.parametrize(("negatives", "positives"), [([1], [1]), ([1, -1], [1, 1]), ([1, 2, 3], [1, 2, 3])])
def test_counts_that_do_not_fit_are_refused(negatives: list[int], positives: list[int]) -> None:
    with pytest.raises(ValueError, match="for 1 borders, expected counts"):
        merge_borders([10], negatives, positives)
