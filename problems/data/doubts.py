"""Warnings about suspicious columns: values that may mean "missing", leaks of the label, and extreme cells.

The find_ functions return texts; `warn_of_rows` logs warnings. Thresholds are wide: real data should cause none.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from math import lgamma, log

import numpy as np
from jaxtyping import Bool, Float64, Int8, Int64
from numpy.typing import NDArray

from problems.data.agreement import Encoded, measure
from problems.data.preprocessing import MARKS, Preprocessing
from problems.data.quantiles import FEWEST_ROWS, GROUPS
from problems.data.units import FAR, find_strange_sites

_MAX_NAMES = 8
_MAX_SIZE = 2 * 10**7
"""Larger arrays are not checked, since they may be memory-mapped files that do not fit into memory."""
_CHANCE = 1e-6
"""The largest probability of a false warning: that any column separates randomly drawn labels."""
# numbers that often mean "missing", above and below the real values
_TOPS = {
    *(7.0, 8.0, 9.0, 77.0, 88.0, 777.0, 888.0, 7777.0, 8888.0),
    *(10.0**digits - step for digits in (2, 3, 4, 5, 6, 7, 8) for step in (1, 2, 3, 4)),
    *(99.9, 999.9, 9999.9, 99.99, 999.99),
}
_BOTTOMS = {-9.0, *(-(10.0**digits) + step for digits in (2, 3, 4, 5, 6) for step in (1, 2, 3)), -99.9, -999.9}
# 1900-01-01, 1970-01-01 and the last days of 2099, 2999 and 9999
_DATES = {-25567.0, 0.0, 47481.0, 376199.0, 2932896.0}

LEAKS = (
    "columns that alone separate positive from negative labels, and may contain the answer: %s; drop these columns "
    "unless their cells are known before the outcome"
)
TAILS = "columns in which a few extreme cells decide the scale: %s; correct these cells, or use another scale"
OTHER_UNITS = "sites whose numbers are far from the numbers of all other sites, perhaps in another unit: %s"

_silent: ContextVar[bool] = ContextVar("silent", default=False)
_log = logging.getLogger(__name__)


def find_sentinels(cells: Float64[np.ndarray, "n"], *, dates: bool = False) -> list[float]:
    """Return the values of a column that may mean "missing", such as 99, 999 and -999.

    They are farther from all other cells than the other cells are from each other.

    Args:
        cells: The numbers of a column, without NaN.
        dates: Whether the numbers are days since 1970-01-01.

    Returns:
        The values that occur at least twice, ascending.
    """
    values, counts = np.unique(cells, return_counts=True)
    tops, bottoms = (_DATES, _DATES) if dates else (_TOPS, _BOTTOMS)
    far = _find_far(values, tops)
    below = _find_far(-values[: len(values) - far][::-1], {-value for value in bottoms})
    chosen = np.arange(len(values))
    sentinels: list[float] = values[((chosen < below) | (chosen >= len(values) - far)) & (counts > 1)].tolist()
    return sentinels


def _find_far(values: Float64[np.ndarray, "v"], sentinels: Set[float]) -> int:
    """Count the sentinels at the upper end that are farther from all other values than these are from each other."""
    number = 0
    for size in range(1, len(values) - 1):
        if values[-size] not in sentinels:
            break
        inner = values[:-size]
        if values[-size] - inner[-1] > inner[-1] - inner[0]:
            number = size
    # numbers below 10 may be codes or measurements; only 9 among whole numbers counts as a sentinel
    codes = number and values[-1] < 10 and not (values[-1] == 9 and (values == np.round(values)).all())
    return 0 if codes else number


def find_leaks(
    names: Sequence[str], values: NDArray[np.floating], labels: Int8[np.ndarray, "n"], classes: Int64[np.ndarray, "n"]
) -> list[str]:
    """Return the columns that alone separate positive from negative labels, each with figures.

    Args:
        names: The names of the columns (c,). Features of the same raw column have equal names.
        values: The cells (n, c); NaN for a missing cell.
        labels: 1 for positive rows, 0 for negative rows.
        classes: The number of each row's original label.
    """
    positive = labels == 1
    count, positives = len(labels), int(positive.sum())
    if not 0 < positives < count or not names:
        return []
    rare = log(_CHANCE / len(names))
    leaks = dict[str, str]()
    with np.errstate(invalid="ignore"):
        sides = [(np.fmin.reduce(values[side]), np.fmax.reduce(values[side])) for side in (~positive, positive)]
    (lows, highs), (positive_lows, positive_highs) = sides
    above, below = highs < positive_lows, positive_highs < lows
    gone = np.isnan(lows) | np.isnan(positive_lows)
    for index in np.flatnonzero(above | below | gone | _follows(values, labels, classes)).tolist():
        there = ~np.isnan(values[:, index])
        cells, cells_positive = int(there.sum()), int((there & positive).sum())
        if gone[index]:
            share = positives / count if cells_positive else 1 - positives / count
            if cells and cells * log(share) < rare:
                side = "positive" if cells_positive else "negative"
                leaks.setdefault(names[index], f"{cells:,} cells, in {side} rows only")
        elif log(2) - _log_choices(cells, cells_positive) < rare:
            text = "one value for each label"
            if above[index]:
                text = f"negative rows up to {highs[index] + 0:g}, positive rows from {positive_lows[index] + 0:g}"
            elif below[index]:
                text = f"positive rows up to {positive_highs[index] + 0:g}, negative rows from {lows[index] + 0:g}"
            leaks.setdefault(names[index], text)
    return [f"{name!r} ({text})" for name, text in leaks.items()]


def _log_choices(count: int, chosen: int) -> float:
    """Return the logarithm of the binomial coefficient, count over chosen."""
    return lgamma(count + 1) - lgamma(chosen + 1) - lgamma(count - chosen + 1)


def _follows(
    values: NDArray[np.floating], labels: Int8[np.ndarray, "n"], classes: Int64[np.ndarray, "n"]
) -> Bool[np.ndarray, "c"]:
    """Find the columns with a single value for each class, and different values for positive and negative classes."""
    codes, first = np.unique(classes, return_index=True)
    value_of = values[first]  # (classes, c)
    same = np.ones(values.shape[1], dtype=bool)
    if len(codes) < 3:
        return ~same  # two classes are separated by a bound
    for code, row in zip(codes, value_of, strict=True):
        candidates = np.flatnonzero(same)
        if not len(candidates):
            return same
        same[candidates] = (values[classes == code][:, candidates] == row[candidates]).all(axis=0)
    sides = [np.flatnonzero(labels[first] == side) for side in (0, 1)]
    for index in np.flatnonzero(same):
        same[index] = not np.intersect1d(value_of[sides[0], index], value_of[sides[1], index]).size
    return same


def find_tails(preprocessing: Preprocessing, values: Float64[np.ndarray, "n c"]) -> list[str]:
    """Return the columns whose deviation comes from a few extreme cells, each with figures.

    Args:
        preprocessing: The preprocessing, not yet fitted. Only columns of the scales "standard" and "range", and columns
            that are too short for "auto" to find their tails, are checked: extreme cells do not disturb other scales.
        values: The training rows, encoded.
    """
    if preprocessing.scale not in ("auto", "standard", "range"):
        return []
    end = GROUPS * FEWEST_ROWS if preprocessing.scale == "auto" else np.inf
    tails = list[str]()
    for feature, cells in zip(preprocessing.inputs, values.T, strict=True):
        cells = cells[~np.isnan(cells)]
        if feature.kind in MARKS or not GROUPS <= len(cells) < end:
            continue
        low, high = np.quantile(cells, [1 / GROUPS, 1 - 1 / GROUPS])
        with np.errstate(over="ignore", invalid="ignore"):
            deviation = cells.std()
        if high > low and deviation > FAR * (high - low):
            tails.append(f"{feature.column!r} (deviation {deviation:.3g}, 97 % of cells from {low:.3g} to {high:.3g})")
    return tails


@contextmanager
def silence() -> Iterator[None]:
    """Suppress the warnings in a context, for rows that are read a second time."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def warn_of_rows(
    encoded: Encoded | NDArray[np.floating] | tuple[NDArray[np.floating], Preprocessing],
    labels: Int8[np.ndarray, "n"],
    classes: Int64[np.ndarray, "n"],
    rows: Int64[np.ndarray, "train"],
    sites: Int64[np.ndarray, "n"] | None = None,
) -> None:
    """Warn of leaks of the label, extreme cells and sites with other units in the training rows.

    Args:
        encoded: A table's rows, or features (n, ...), perhaps with their preprocessing. Images are not checked.
        labels: 1 for positive rows, 0 for negative rows.
        classes: The number of each row's original label.
        rows: The indices of the training rows.
        sites: The site of each row. None: no sites.
    """
    if _silent.get():
        return
    table = encoded.preprocessing if isinstance(encoded, Encoded) else None
    values = encoded.values if isinstance(encoded, Encoded) else encoded
    names = list[str]()
    if isinstance(values, tuple):
        names = [feature.column for feature in values[1].outputs]
        values = values[0]
    if values.ndim != 2 or values.dtype.kind != "f" or (table is None and values.size > _MAX_SIZE):
        return
    if table is not None:
        names = [feature.column for feature in table.inputs]
    values, names = values[rows], names or [f"feature {number}" for number in range(values.shape[1])]
    if leaks := find_leaks(names, values, labels[rows], classes[rows]):
        _log.warning(LEAKS, join_doubts(leaks))
    if table is None:
        return
    if tails := find_tails(table, values):
        _log.warning(TAILS, join_doubts(tails))
    if sites is None:
        return
    numbers, train_sites = np.unique(sites[rows]), sites[rows]
    measured = [measure(table, values[train_sites == site]) for site in numbers]
    if strange := find_strange_sites(table, [statistics for statistics in measured if statistics is not None]):
        _log.warning(OTHER_UNITS, join_doubts(f"site {numbers[index]}: {text}" for index, text in strange))


def join_doubts(texts: Iterable[str]) -> str:
    """Join the first texts in a line, and count the remaining texts."""
    doubts = list(texts)
    more = f"; and {len(doubts) - _MAX_NAMES} more" if len(doubts) > _MAX_NAMES else ""
    return ", ".join(doubts[:_MAX_NAMES]) + more
