"""A description of columns by counts with Gaussian noise, which limits how much a table reveals about any one row.

A site's answers are counts of rows: by class; for each text column, by class and level; for each number, by class in
bins of powers of 2, and by class in bins that follow these counts, or missing. A row changes a single count of each of
these groups by 1. The noise has the same standard deviation s in all counts, except 2 s in the bins of powers of 2. So
with c numbers and t text columns all answers are together as private as a single count with noise of deviation
s / sqrt(K), K = 1 + t + c (1 + 1/4); see `privacy.budget`. Neighbouring files differ in the presence of one row.

All other figures follow from the noisy counts, and spend no budget.
"""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float64, Int64

from methods.cohort import Cohort, Columns
from methods.describe import count_cells
from payloads.description import BINS, CLASSES, BinQuestion, Bins, Totals
from payloads.digit_sums import DIGITS, to_digits
from payloads.settings import PrivacySettings
from privacy.budget import noise_for
from problems.randomness import secret_normal

NOISE_OF = {BINS[0]: 2.0, BINS[1]: 1.0}
"""The questions for bins, powers of 2 and then bins that follow the first counts, with the factor of their noise."""
_SURE, _USEFUL, _MOST_BINS, _MOST_ERROR = 4, 8, 24, 0.05
# a count of so many standard deviations shows that its bin has rows; a bin of the second question has about so many
# standard deviations of rows, but at least 1/24 of all rows

Counts = Int64[np.ndarray, "..."]


def deviation_of(privacy: PrivacySettings, columns: Columns, summed: int) -> float:
    """Return s, the standard deviation of the noise that a site adds to each count.

    s is at least 1, since rounding to whole numbers would remove much smaller noise.

    Args:
        privacy: The budget.
        columns: The columns.
        summed: The smallest number of sites in a secure sum, in which their noise adds up; 1 without secure sums.
    """
    groups = 1 + len(columns.texts) + len(columns.numbers) * sum(factor**-2 for factor in NOISE_OF.values())
    return max(noise_for(privacy.epsilon, privacy.delta, 1) * math.sqrt(groups / summed), 1.0)


def answer_totals(cohort: Cohort, deviation: float) -> Totals:
    """Answer the exchange `TOTALS` with noisy counts; the sums, and all marks of hidden counts, are 0.

    Args:
        cohort: The site's rows.
        deviation: The standard deviation of the noise in each count.
    """
    columns, classes = cohort.columns, _classes(cohort)
    missing = np.isnan(cohort.values)
    gaps = [[(missing[:, index] & rows).sum() for rows in classes] for index in columns.numbers]
    marks = [count_cells(cohort, levels, rows) for levels in columns.texts.values() for rows in classes]
    by_class = [np.stack(marks[start : start + 3], axis=1).ravel() for start in range(0, len(marks), 3)]
    limits = columns.limits()
    numbers, levels = np.zeros(limits["c"], dtype=np.int64), np.zeros(limits["k"], dtype=np.int64)
    none = np.zeros(1, dtype=np.int64)
    return Totals(
        rows=_blur(np.array([rows.sum() for rows in classes]), deviation),
        withheld=none,
        unclassed=none,
        gaps=_blur(np.array(gaps, dtype=np.int64).ravel(), deviation),
        few_gaps=numbers,
        cells=numbers,
        sums=np.zeros(limits["l"], dtype=np.int32),
        moved=numbers,
        sentinels=numbers,
        marks=_blur(np.concatenate([*by_class, none[:0]]), deviation),
        few_marks=levels,
        pooled=np.zeros(limits["p"], dtype=np.int64),
    )


def answer_bins(cohort: Cohort, question: BinQuestion, deviation: float) -> Bins:
    """Answer a question for bins with noisy counts.

    Args:
        cohort: The site's rows.
        question: The borders. It has no origins, since there are no sums.
        deviation: The standard deviation of the noise in each count.
    """
    counts = []
    for index, row in zip(cohort.columns.numbers, question.borders.astype(np.float64), strict=True):
        for rows in _classes(cohort):
            cells = cohort.values[rows, index]
            places = np.searchsorted(row[np.isfinite(row)], cells[~np.isnan(cells)], "right")
            counts.append(np.bincount(places, minlength=len(row) + 1))
    digits = np.zeros(DIGITS * len(question.origins), dtype=np.int32)
    return Bins(counts=_blur(np.array(counts, dtype=np.int64).ravel(), deviation), offsets=digits, squares=digits)


def _classes(cohort: Cohort) -> tuple[np.ndarray, ...]:
    """Return the rows of each of `CLASSES`. None is of an unknown class, since noise protects small classes."""
    positive = cohort.labels == 1
    return ~positive, positive, np.zeros(len(cohort), dtype=bool)


def _blur(counts: Counts, deviation: float) -> Counts:
    return counts + np.rint(deviation * secret_normal(counts.size)).astype(np.int64)


# The server's part.


def fit_counts(noisy: Int64[np.ndarray, "n"], total: int) -> Int64[np.ndarray, "n"]:
    """Return the counts of 0 or more with a given sum that are nearest to noisy counts (least squares, then rounded).

    Example:
        >>> fit_counts(np.array([-3, 1, 60, 46, -2]), total=100).tolist()
        [0, 0, 57, 43, 0]
    """
    descending = np.sort(noisy)[::-1].astype(np.float64)
    shifts = (np.cumsum(descending) - total) / np.arange(1, len(noisy) + 1)
    shift = shifts[np.flatnonzero(descending > shifts)[-1]] if total > 0 else np.inf
    sums = np.rint(np.cumsum(np.maximum(noisy - shift, 0.0)))
    fitted: np.ndarray = np.diff(sums, prepend=0.0).astype(np.int64)
    return fitted


def find_useful_size(counts: Int64[np.ndarray, "c 3 bins"], deviation: float) -> tuple[Counts, float]:
    """Return the counts of the first question without bins of noise alone, and the size of the second question's bins.

    Args:
        counts: The noisy counts over all sites.
        deviation: The standard deviation of a count of the second question.

    Returns:
        The counts; those of a bin with fewer than 4 standard deviations of rows are 0. The smallest useful number of
        rows in a bin.
    """
    noise = deviation * NOISE_OF[BINS[0]] * math.sqrt(2)  # of two classes
    sure = counts[:, :2].sum(axis=1, keepdims=True) > _SURE * noise
    rows = counts[:, :2].sum(axis=(1, 2)).max(initial=0)
    return np.where(sure, np.maximum(counts, 0), 0), max(_USEFUL * deviation, rows / _MOST_BINS)


def is_known(
    sure: Int64[np.ndarray, "c 3 first"],
    counts: Int64[np.ndarray, "c 3 bins"],
    borders: Float64[np.ndarray, "c b"],
    deviation: float,
) -> Bool[np.ndarray, "c"]:
    """Return for each number whether noise moves the ranks of its cells by at most 5 % of the cells.

    Args:
        sure: The counts of the first question, from `find_useful_size`. Cells outside these bins count in the nearest.
        counts: The counts of the second question, from `fit_bins`.
        borders: The borders of the second question.
        deviation: The standard deviation of a count.
    """
    cells, bins = counts.sum(axis=(1, 2)), np.isfinite(borders).sum(axis=1) + 1
    noise, moved = deviation * np.sqrt(2 * bins), cells - sure.sum(axis=(1, 2))
    known: np.ndarray = (cells > 0) & (np.maximum(noise, moved) <= _MOST_ERROR * cells)
    return known


def fit_totals(totals: dict[str, Counts], columns: Columns) -> dict[str, Counts]:
    """Return `Totals` that agree with each other: no count is below 0, and the levels of a column add up to its rows.

    Args:
        totals: The sums over all sites.
        columns: The columns.
    """
    rows = np.maximum(totals["rows"], 0) * [1, 1, 0]
    gaps = np.clip(totals["gaps"].reshape(-1, 3), 0, rows)
    marks = totals["marks"].reshape(-1, 3).copy()
    for part in columns.parts.values():
        for number in range(len(CLASSES)):
            marks[part, number] = fit_counts(marks[part, number], int(rows[number]))
    return {**totals, "rows": rows, "gaps": gaps.ravel(), "marks": marks.ravel()}


def fit_bins(counts: Int64[np.ndarray, "c 3 bins"], totals: dict[str, Counts]) -> Int64[np.ndarray, "c 3 bins"]:
    """Return counts by class and bin that add up to the rows of the class without its missing cells.

    Args:
        counts: The noisy counts over all sites.
        totals: The result of `fit_totals`.
    """
    wanted = totals["rows"] - totals["gaps"].reshape(-1, 3)
    return np.array(
        [
            [fit_counts(*pair) for pair in zip(*column, strict=True)]
            for column in zip(counts, wanted.tolist(), strict=True)
        ]
    ).reshape(counts.shape)


def estimate_sums(
    borders: Float64[np.ndarray, "c b"], counts: Int64[np.ndarray, "c 3 bins"]
) -> tuple[dict[str, Counts], tuple[Fraction, ...], tuple[Fraction, ...]]:
    """Return the sums of each number, as if each cell were the middle of its bin.

    An outer bin counts as its border.

    Returns:
        The entries "cells" and "sums" of `Totals`; the sums of the cells, and of their squares.
    """
    cells, firsts, seconds = [], [], []
    for row, by_class in zip(borders, counts, strict=True):
        finite, bins = row[np.isfinite(row)], by_class.sum(axis=0)
        middles = [finite[0], *(low / 2 + high / 2 for low, high in pairwise(finite)), finite[-1]]
        values = [(Fraction(float(middle)), int(count)) for middle, count in zip(middles, bins, strict=False)]
        cells.append(int(bins.sum()))
        firsts.append(sum((value * count for value, count in values), Fraction(0)))
        seconds.append(sum((value**2 * count for value, count in values), Fraction(0)))
    found = {"cells": np.array(cells, dtype=np.int64), "sums": to_digits(firsts).astype(np.int64)}
    return found, tuple(firsts), tuple(seconds)
