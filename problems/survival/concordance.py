"""Concordance of scores and event times, from counts.

F. E. Harrell and others, "Evaluating the Yield of Medical Tests", JAMA 247, 1982: the share of comparable pairs of rows
whose scores have the right order. A pair is comparable if one row has an event, and the other row leaves later, or is
censored at the same time. Two events at the same time are not comparable. The order is right if the row with the
earlier event has the larger score. Equal scores count one half.

H. Uno and others, "On the C-statistics for evaluating overall adequacy of risk prediction procedures with censored
survival data", Statistics in Medicine 30, 2011: each pair has the weight 1 / G(k-)^2, where k is the time of its
earlier event and G the distribution of the censoring times. Pairs with k >= tau do not count.

If rows come under observation late (left truncation), an event is compared only with rows that have entered by then.

Rows of one bin count as equal scores, so both values differ from the concordance of the exact scores by at most half
the (weighted) share of comparable pairs in a shared bin of more than one score.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.special import expit, logit, stdtrit

from problems.survival.kaplan_meier import censoring_survival, weigh_events

# With fewer events the interval of Harrell's concordance is nan.
FEWEST_EVENTS = 5


@dataclass(frozen=True)
class Concordance:
    """A concordance, and the largest error due to the bins. Without comparable pairs the value is nan, the bound 0.

    Attributes:
        value: The concordance.
        bound: The bound of its difference from the concordance of the exact scores.
    """

    value: float
    bound: float


def harrell(
    cells: Int64[np.ndarray, "grid 2 bins"],
    wide: Bool[np.ndarray, "bins"] | None = None,
    entries: Int64[np.ndarray, "grid bins"] | None = None,
) -> Concordance:
    """Return Harrell's concordance.

    Args:
        cells: The counts of rows.
        wide: Whether each bin may contain different scores (`problems.binned_scores.find_wide_bins`). None: all may.
        entries: The number of rows that come under observation at each grid time. None: all at grid time 0.
    """
    return _compare(cells, np.ones(len(cells)), wide, entries)


def uno(
    cells: Int64[np.ndarray, "grid 2 bins"], tau: int | None = None, wide: Bool[np.ndarray, "bins"] | None = None
) -> Concordance:
    """Return Uno's concordance.

    Args:
        cells: The counts of rows, which also estimate G.
        tau: The first grid time whose events do not count. None: all count.
        wide: As in `harrell`.
    """
    weights = weigh_events(censoring_survival(cells.sum(axis=-1))) ** 2
    weights[tau if tau is not None else len(cells) :] = 0
    return _compare(cells, weights, wide)


def harrell_interval(cells: Int64[np.ndarray, "grid 2 bins"]) -> tuple[float, float]:
    """Return the 95 % interval of Harrell's concordance of the binned scores.

    The variance is the infinitesimal jackknife's (L. A. Jaeckel, Bell Laboratories Memorandum, 1972): the sum over rows
    of the squared derivative of the concordance with respect to the row's weight. With C = A / P, where A counts the
    pairs in the right order and P all comparable pairs, the derivative is (A_i - C P_i) / P, and A_i and P_i count
    the pairs of row i. All rows of a cell have the same derivative. With d events the variance is multiplied by
    d / (d - 1), and the interval is symmetric on the logit scale, with Student's t of d - 1 degrees of freedom.

    Returns:
        The ends. nan with fewer than `FEWEST_EVENTS` events, or if the concordance is 0 or 1.
    """
    value, derivative, _ = derive_harrell(cells)
    return spread(value, float((cells * derivative**2).sum()), int(cells[:, 1].sum()))


def spread(value: float, squares: float, events: int) -> tuple[float, float]:
    """Return the 95 % interval of a concordance from its jackknife, see `harrell_interval`.

    Args:
        value: The concordance.
        squares: The sum of the squared derivatives over all rows.
        events: The number of rows with an event.

    Returns:
        The ends. nan with fewer than `FEWEST_EVENTS` events, or if the concordance is nan, 0 or 1.
    """
    if events < FEWEST_EVENTS or not 0 < value < 1:
        return float("nan"), float("nan")
    deviation = np.sqrt(squares * events / (events - 1))
    reach = stdtrit(events - 1, 0.975) * deviation / (value * (1 - value))
    low, high = expit(logit(value) + np.array([-reach, reach])).tolist()
    return low, high


def derive_harrell(
    cells: Int64[np.ndarray, "grid 2 bins"], entries: Int64[np.ndarray, "grid bins"] | None = None
) -> tuple[float, Float64[np.ndarray, "grid 2 bins"], Float64[np.ndarray, "grid bins"]]:
    """Return Harrell's concordance, and its derivative with respect to the weight of a row.

    Without comparable pairs the concordance is nan, and the derivatives are 0.

    Args:
        cells: The counts of rows.
        entries: See `harrell`.

    Returns:
        The concordance; the derivative for a row of each cell that enters at grid time 0; and the part of it that a
        row lacks which enters at each grid time.
    """
    value, events = harrell(cells, entries=entries).value, cells[:, 1]
    derivative, before = np.zeros(cells.shape), np.zeros(events.shape)
    if np.isnan(value):
        return value, derivative, before
    later = _count_later(cells, entries)
    as_first = np.cumsum(later, axis=1) - later / 2 - value * later.sum(axis=1, keepdims=True)
    # a row is compared with the events before it, and a censored row also with the events at the same time
    reached = np.cumsum(events, axis=0)
    for label, earlier in ((0, reached), (1, reached - events)):
        as_second = np.cumsum(earlier[:, ::-1], axis=1)[:, ::-1] - earlier / 2
        before = as_second - value * earlier.sum(axis=1, keepdims=True)
        derivative[:, label] = before + label * as_first
    pairs = float(events.sum(axis=1) @ later.sum(axis=1, dtype=np.float64))
    return value, derivative / pairs, before / pairs


def _count_later(
    cells: Int64[np.ndarray, "grid 2 bins"], entries: Int64[np.ndarray, "grid bins"] | None
) -> Int64[np.ndarray, "grid bins"]:
    """Return the rows that are comparable with an event at each grid time, by bin."""
    exits = cells.sum(axis=1)
    entered = exits.sum(axis=0) if entries is None else np.cumsum(entries, axis=0)
    later: np.ndarray = entered - (np.cumsum(exits, axis=0) - exits) - cells[:, 1]
    return later


def _compare(
    cells: Int64[np.ndarray, "grid 2 bins"],
    weights: Float64[np.ndarray, "grid"],
    wide: Bool[np.ndarray, "bins"] | None,
    entries: Int64[np.ndarray, "grid bins"] | None = None,
) -> Concordance:
    """Return the concordance if pairs have the weight of the time of their earlier event."""
    events, later = cells[:, 1].astype(np.float64), _count_later(cells, entries)
    pairs = float(weights @ (events.sum(axis=1) * later.sum(axis=1)))
    if not pairs:
        return Concordance(float("nan"), 0.0)
    tied = events * later
    ordered = (events * np.cumsum(later, axis=1)).sum(axis=1) - tied.sum(axis=1) / 2
    unknown = tied.sum(axis=1, where=True if wide is None else wide) / 2
    return Concordance(float(weights @ ordered) / pairs, float(weights @ unknown) / pairs)
