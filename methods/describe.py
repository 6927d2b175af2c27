"""Description of columns by sums over sites: a site's answers. No model is trained; `methods.table_one` adds them up.

A site answers with integers that the server adds, so secure sums give the same result.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from methods.cohort import LARGEST_NUMBER, Cohort
from payloads.description import LEVELS, BinQuestion, Bins, SiteQuantiles, Totals
from payloads.digit_sums import DIGITS, to_digits
from payloads.record import specs_of
from problems.data import DataError
from problems.data.doubts import find_sentinels
from problems.data.preprocessing import Feature
from problems.data.quantiles import merge, sketch
from problems.protected_counts import suppress

# the dimension of each field of `Totals` that depends on the columns
_SIZES = {name: str(spec.dims[0]) for name, spec in specs_of(Totals).items() if isinstance(spec.dims[0], str)}


def answer_totals(cohort: Cohort) -> Totals:
    """Answer the exchange `TOTALS`."""
    columns, none = cohort.columns, np.zeros(1, dtype=np.int64)
    if cohort.is_withheld:
        sizes = {name: columns.limits()[dims] for name, dims in _SIZES.items()}
        zeros = {name: np.zeros(size, dtype=np.int64) for name, size in sizes.items()}
        return Totals(rows=np.zeros(3, dtype=np.int64), withheld=none + 1, unclassed=none, **zeros)
    numbers = cohort.numbers
    marks, few_marks, pooled = _count_levels(cohort)
    return Totals(
        rows=np.array([rows.sum() for rows in cohort.classes], dtype=np.int64),
        withheld=none,
        unclassed=none + cohort.classes[2].any(),
        gaps=_integers(number.gaps for number in numbers),
        few_gaps=_integers(number.is_hidden for number in numbers),
        cells=_integers(number.weight for number in numbers),
        sums=to_digits(number.sums(0.0)[0] for number in numbers),
        moved=_integers(number.is_changed for number in numbers),
        sentinels=_integers(
            _has_sentinels(number.cells, cohort, columns.inputs[index])
            for number, index in zip(numbers, columns.numbers, strict=True)
        ),
        marks=marks.ravel(),
        few_marks=few_marks,
        pooled=pooled.ravel(),
    )


def _integers(values: Iterable[Any]) -> Int64[np.ndarray, "_"]:
    return np.array(list(values), dtype=np.int64).ravel()


def _has_sentinels(cells: Float64[np.ndarray, "m"], cohort: Cohort, feature: Feature) -> bool:
    found = find_sentinels(cells, dates=feature.kind == "date")
    return any((cells == value).sum() >= cohort.least_cell for value in found)


def _count_levels(
    cohort: Cohort,
) -> tuple[Int64[np.ndarray, "k 3"], Int64[np.ndarray, "k"], Int64[np.ndarray, "t 3"]]:
    """Count the rows of each level, of missing cells and of texts without a level, by class; hide small cells.

    Returns:
        The counts, 0 if hidden; whether a count of any class is hidden; the sum of each column's hidden counts.
    """
    columns = cohort.columns
    counts = np.zeros((columns.limits()["k"], 3), dtype=np.int64)
    few, pooled = np.zeros(len(counts), dtype=np.int64), np.zeros((len(columns.texts), 3), dtype=np.int64)
    for place, (name, levels) in enumerate(columns.texts.items()):
        part = columns.parts[name]
        for number, rows in enumerate(cohort.classes):
            cells = count_cells(cohort, levels, rows)
            hidden = suppress(cells, cohort.least_cell)
            counts[part, number] = np.where(hidden, 0, cells)
            few[part] |= hidden
            pooled[place, number] = cells[hidden].sum()
    return counts, few, pooled


def count_cells(cohort: Cohort, levels: Sequence[int], rows: Bool[np.ndarray, "n"]) -> Int64[np.ndarray, "cells"]:
    """Count the cells of a text column: of each level, missing, and without a level.

    Args:
        cohort: The site's rows.
        levels: The indices of the column's levels among the inputs.
        rows: The rows to count.
    """
    values = cohort.values[rows][:, levels]
    by_level, gaps = np.nan_to_num(values).sum(axis=0).astype(np.int64), int(np.isnan(values[:, 0]).sum())
    return np.array([*by_level, gaps, len(values) - gaps - by_level.sum()], dtype=np.int64)


def answer_bins(cohort: Cohort, question: BinQuestion) -> Bins:
    """Answer an exchange of `BINS`.

    Args:
        cohort: The site's rows.
        question: The borders and the origins.
    """
    borders, with_squares = question.borders.astype(np.float64), len(question.origins) > 0
    origins = question.origins.astype(np.float64)
    if cohort.is_withheld:
        digits = np.zeros(DIGITS * len(origins), dtype=np.int32)
        return Bins(counts=np.zeros(3 * (borders.size + len(borders)), np.int64), offsets=digits, squares=digits)
    if not (np.abs(origins) <= LARGEST_NUMBER).all():
        allowed = f"numbers up to {LARGEST_NUMBER:.0e}"
        raise DataError("origins", got="larger numbers", allowed=allowed, hint="start a new run")
    sums = (
        [number.sums(origin) for number, origin in zip(cohort.numbers, origins.tolist(), strict=True)]
        if with_squares
        else []
    )
    counts = [number.count(row) for number, row in zip(cohort.numbers, borders, strict=True)]
    return Bins(
        counts=_integers(counts),
        offsets=to_digits(first for first, _ in sums),
        squares=to_digits(second for _, second in sums),
    )


def answer_quantiles(cohort: Cohort) -> SiteQuantiles:
    """Answer the exchange `QUANTILES`, by the site's groups of cells."""
    values = np.zeros((len(cohort.columns.numbers), len(LEVELS)))
    known = np.zeros(len(values), dtype=np.int64)
    for index, number in enumerate([] if cohort.is_withheld else cohort.numbers):
        cells = np.concatenate([np.repeat(points, sizes) for points, sizes in number.groups])
        borders = sketch(cells, min_group=cohort.least_cell)
        if len(borders):
            known[index] = 1
            values[index] = merge(np.array([len(cells)]), [borders], LEVELS)
    return SiteQuantiles(values=values, known=known)
