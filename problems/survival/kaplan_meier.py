"""Kaplan-Meier curves, and the distribution of the censoring times, from counts at grid times.

E. L. Kaplan and P. Meier, "Nonparametric Estimation from Incomplete Observations", JASA 53, 1958. With d_j events among
Y_j rows at risk at grid time j, the share of rows without an event until k is

    S(k) = product over j <= k of (1 - d_j / Y_j).

Its deviation is M. Greenwood's ("The Natural Duration of Cancer", Reports on Public Health and Medical Subjects 33,
1926), S(k) s(k) with s(k)^2 = sum over j <= k of d_j / (Y_j (Y_j - d_j)). The 95 % interval is symmetric in
log(-log S) (J. D. Kalbfleisch and R. L. Prentice, "The Statistical Analysis of Failure Time Data", 1980):
S^exp(z s / -log S) to S^exp(-z s / -log S).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from scipy.special import ndtri

_Z = float(ndtri(0.975))


@dataclass(frozen=True, eq=False)
class SurvivalCurve:
    """Kaplan-Meier estimates at all grid times, for one or more groups of rows.

    After the last row has left, the survival is 0 if the last rows had events, otherwise unknown: nan.

    Attributes:
        at_risk: The rows at risk at each grid time.
        survival: The share of rows without an event until this grid time, including it.
        deviation: Greenwood's deviation of the survival. nan if the survival is 0, since the formula is undefined.
        low: The lower end of the 95 % interval. 1 before the first event, nan if the survival is 0.
        high: The upper end, in the same way.
    """

    at_risk: Int64[np.ndarray, "*groups grid"]
    survival: Float64[np.ndarray, "*groups grid"]
    deviation: Float64[np.ndarray, "*groups grid"]
    low: Float64[np.ndarray, "*groups grid"]
    high: Float64[np.ndarray, "*groups grid"]


def kaplan_meier(
    counts: Int64[np.ndarray, "*groups grid 2"], entries: Int64[np.ndarray, "*groups grid"] | None = None
) -> SurvivalCurve:
    """Estimate the survival of each group.

    Args:
        counts: The numbers of censored rows and of events at each grid time, such as ``cells.sum(axis=-1)``.
        entries: The number of rows that come under observation at each grid time (left truncation). A row is at risk
            from its entry on. None: all rows enter at grid time 0. Times without a row at risk leave the survival as
            it is, so the curve applies to rows that reach the first entry.

    Raises:
        ValueError: A count is negative, or more rows leave at a grid time than are at risk.
    """
    exits, events = counts.sum(axis=-1), counts[..., 1]
    left = _from_here(exits)
    at_risk = left if entries is None else np.cumsum(entries, axis=-1) - (np.cumsum(exits, axis=-1) - exits)
    if (counts < 0).any() or (at_risk < exits).any():
        raise ValueError("a count is negative, or more rows leave at a grid time than are at risk")
    survival = np.cumprod(_shares(at_risk - events, at_risk), axis=-1)
    survival[(left == 0) & (survival > 0)] = np.nan
    products = at_risk * (at_risk - events).astype(np.float64)
    steps = np.divide(events, products, out=np.zeros(survival.shape), where=products > 0)
    spread = np.sqrt(np.cumsum(steps, axis=-1))
    spread[survival == 0] = np.nan
    reach = np.zeros(survival.shape)
    with np.errstate(divide="ignore"):
        np.divide(_Z * spread, -np.log(survival), out=reach, where=survival < 1)
    reach[np.isnan(spread)] = np.nan
    return SurvivalCurve(at_risk, survival, survival * spread, survival ** np.exp(reach), survival ** np.exp(-reach))


def censoring_survival(counts: Int64[np.ndarray, "grid 2"]) -> Float64[np.ndarray, "grid"]:
    """Estimate G(k), the share of rows that would not be censored until grid time k, including k.

    G is the Kaplan-Meier estimate with censorings as the events. A row with an event at k is no longer at risk of being
    censored at k. So S(k) G(k) is the share of rows that leave after k. G stays constant after the last row.

    Args:
        counts: The numbers of censored rows and of events at each grid time.
    """
    remaining = _from_here(counts.sum(axis=-1)) - counts[:, 1]
    return np.cumprod(_shares(remaining - counts[:, 0], remaining))


def weigh_events(censoring: Float64[np.ndarray, "grid"]) -> Float64[np.ndarray, "grid"]:
    """Return 1 / G(k-), the inverse probability that a row with an event at grid time k is not censored before it.

    G(k-) is the limit from the left, G(k - 1) on the grid, and 1 at grid time 0. The reason is the order of ties: a row
    censored at k would have shown an event at k. With these weights the weighted share of events until k is exactly
    1 - S(k). The weight is 0 if G(k-) is 0, since then no row is left.

    Args:
        censoring: The result of `censoring_survival`.
    """
    before = np.append(1.0, censoring[:-1])
    weights: np.ndarray = np.divide(1.0, before, out=np.zeros_like(before), where=before > 0)
    return weights


def _from_here(exits: Int64[np.ndarray, "*groups grid"]) -> Int64[np.ndarray, "*groups grid"]:
    """Return the numbers of rows that leave at each grid time or later."""
    total: np.ndarray = np.cumsum(exits[..., ::-1], axis=-1)[..., ::-1]
    return total


def _shares(
    part: Int64[np.ndarray, "*groups grid"], whole: Int64[np.ndarray, "*groups grid"]
) -> Float64[np.ndarray, "*groups grid"]:
    """Return part / whole, and 1 without rows."""
    shares: np.ndarray = np.divide(part, whole, out=np.ones(whole.shape), where=whole > 0)
    return shares
