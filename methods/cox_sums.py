"""The partial likelihood of the Cox model from sums over risk sets, on a grid of times.

Sources: Cox, "Regression models and life-tables", JRSS B 34, 1972; Efron, JASA 72, 1977, and Breslow, Biometrics 30,
1974 (ties); Lin and Wei, JASA 84, 1989 (robust variance); Therneau and Grambsch, "Modeling Survival Data", 2000,
section 3.3 (score residuals with ties).

A row with entry e, time t and event flag y is at risk at the grid times e <= k <= t, and has an event at t if y = 1. So
at equal times events precede censorings. With the relative hazard w = exp(score), the moments of a set of rows are the
sums of w, w x and w x x' over its rows. R and D are the moments of the risk set and of its n tied events at a time k,
phi_l = R_0 - l/n D_0 for l = 0..n-1 (with Breslow's ties phi_l = R_0), and m_l = (R_1 - l/n D_1) / phi_l. Then

    log likelihood = sum over events of the score - sum over k, l of log phi_l
    score          = sum over events of x         - sum over k, l of m_l
    information    = sum over k, l of (R_2 - l/n D_2) / phi_l - m_l m_l'

| axis | length |
|---|---|
| t | the grid times |
| p | the moments of a set: 1 + d + d (d + 1) / 2 |
| r | 3 d + 2, the entries of `residual_terms` |
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int64

from methods.newton_records import EFRON, triangle, upper, whole


@dataclass(frozen=True, eq=False)
class SurvivalRows:
    """A site's rows with times to an event.

    Attributes:
        columns: The features of each row.
        events: Whether each row's time is the time of an event; otherwise the row is censored.
        times: The grid time of each row.
        entries: The first grid time at which each row is at risk. None: 0 for all rows.
    """

    columns: Float64[np.ndarray, "n d"]
    events: Bool[np.ndarray, "n"]
    times: Int64[np.ndarray, "n"]
    entries: Int64[np.ndarray, "n"] | None = None

    def __len__(self) -> int:
        return len(self.times)

    def select(self, chosen: Bool[np.ndarray, "n"]) -> "SurvivalRows":
        """Return some of the rows."""
        entries = None if self.entries is None else self.entries[chosen]
        return SurvivalRows(self.columns[chosen], self.events[chosen], self.times[chosen], entries)

    def shift(self, centre: Float64[np.ndarray, "d"]) -> "SurvivalRows":
        """Return the rows with a vector subtracted from their columns. The likelihood stays the same."""
        return SurvivalRows(self.columns - centre, self.events, self.times, self.entries)

    @cached_property
    def by_time(self) -> list[Int64[np.ndarray, "_"]]:
        """The indices of the rows of each grid time, up to the last time of a row."""
        order = np.argsort(self.times, kind="stable")
        ends = np.searchsorted(self.times[order], np.arange(self.times.max(initial=-1) + 1), side="right")
        return np.split(order, ends[:-1]) if len(ends) else []


@dataclass(frozen=True, eq=False)
class RiskSums:
    """Sums over rows that determine the partial likelihood at a point.

    Attributes:
        at_risk: The moments of each time's risk set.
        tied: The moments of each time's events. Empty with Breslow's ties.
        events: The number of events at each time.
        event_columns: The sum of the columns over all events.
    """

    at_risk: Float64[np.ndarray, "t p"]
    tied: Float64[np.ndarray, "u p"]
    events: Int64[np.ndarray, "t"]
    event_columns: Float64[np.ndarray, "d"]

    def tied_sets(self, ties: str) -> Iterator[tuple["TiedSet", int]]:
        """Yield each time with events."""
        efron = ties == EFRON
        for time in np.flatnonzero(self.events).tolist():
            tied = self.tied[time] if efron else np.zeros(self.at_risk.shape[1])
            yield TiedSet(self.at_risk[time], tied, int(self.events[time]), efron=efron), time


class TiedSet:
    """The risk set of a time with n events.

    Attributes:
        risk: R, in the sums' form.
        tied: D.
        shares: l / n for l = 0..n-1; zeros with Breslow's ties.
        phi: The total relative hazard of each event's risk set.
    """

    def __init__(
        self, risk: Float64[np.ndarray, "p"], tied: Float64[np.ndarray, "p"], events: int, *, efron: bool
    ) -> None:
        self.risk, self.tied = risk, tied
        self.shares = np.arange(events) / events if efron else np.zeros(events)
        self.phi = risk[0] - self.shares * tied[0]

    def means(self, dim: int) -> Float64[np.ndarray, "l d"]:
        """Return m_l, the mean of the columns in each event's risk set."""
        means: np.ndarray = (self.risk[1 : dim + 1] - np.outer(self.shares, self.tied[1 : dim + 1])) / self.phi[:, None]
        return means


@dataclass(frozen=True, eq=False)
class Likelihood:
    """The log partial likelihood at a point, and its derivatives. -inf if hazards are too small for floats."""

    value: float
    score: Float64[np.ndarray, "d"]
    information: Float64[np.ndarray, "d d"]


def find_moments(columns: Float64[np.ndarray, "n d"], weights: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "p"]:
    """Return the sums of w, w x, and the entries on and above the diagonal of w x x' over rows."""
    weighted = weights[:, None] * columns
    return np.concatenate([[weights.sum()], weighted.sum(axis=0), upper(columns.T @ weighted)])


def sum_risk_sets(rows: SurvivalRows, relative: Float64[np.ndarray, "n"], count: int, ties: str) -> RiskSums:
    """Sum over the risk sets and the tied events of each grid time.

    Args:
        rows: The rows.
        relative: The relative hazard w of each row.
        count: The number of grid times.
        ties: "efron" or "breslow".
    """
    dim = rows.columns.shape[1]
    at_risk = np.zeros((count, 1 + dim + triangle(dim)))
    tied = np.zeros_like(at_risk[: count if ties == EFRON else 0])
    for time, indices in enumerate(rows.by_time):
        at_risk[time] = find_moments(rows.columns[indices], relative[indices])
        if len(tied) and len(died := indices[rows.events[indices]]):
            tied[time] = find_moments(rows.columns[died], relative[died])
    if rows.entries is None:
        at_risk = np.ascontiguousarray(np.cumsum(at_risk[::-1], axis=0)[::-1])
    else:  # a difference of cumulative sums would lose digits
        for time in range(count):
            present = (rows.entries <= time) & (time <= rows.times)
            at_risk[time] = find_moments(rows.columns[present], relative[present])
    events = np.bincount(rows.times[rows.events], minlength=count)
    return RiskSums(at_risk, tied, events, rows.columns[rows.events].sum(axis=0))


def evaluate(sums: RiskSums, point: Float64[np.ndarray, "d"], ties: str) -> Likelihood:
    """Return the log partial likelihood, the score and the information.

    Args:
        sums: The sums at the point, over all rows of a stratum.
        point: The coefficients.
        ties: "efron" or "breslow".
    """
    dim = len(point)
    value, score, information = float(sums.event_columns @ point), sums.event_columns.copy(), np.zeros((dim, dim))
    for one, _ in sums.tied_sets(ties):
        if not one.phi.min() > 0:
            return Likelihood(-np.inf, np.zeros(dim), np.zeros((dim, dim)))
        means = one.means(dim)
        value -= float(np.log(one.phi).sum())
        score -= means.sum(axis=0)
        second = one.risk[dim + 1 :] * (1 / one.phi).sum() - one.tied[dim + 1 :] * (one.shares / one.phi).sum()
        information += whole(second, dim) - means.T @ means
    return Likelihood(value, score, information)


def find_hazard(sums: RiskSums) -> Float64[np.ndarray, "t"]:
    """Return Breslow's cumulative hazard of a row with score 0 at each time."""
    return np.cumsum(sums.events / np.where(sums.events > 0, sums.at_risk[:, 0], 1.0))


def residual_terms(sums: RiskSums, dim: int, ties: str) -> Float64[np.ndarray, "t r"]:
    """Return the sums over the events of each time that `score_residuals` needs.

    These are the sums of 1 / phi_l, m_l / phi_l, l/n / phi_l and l/n m_l / phi_l, and the mean of m_l.

    Args:
        sums: The sums over all rows at the final coefficients.
        dim: The number of coefficients.
        ties: "efron" or "breslow".
    """
    terms = np.zeros((len(sums.events), 3 * dim + 2))
    for one, time in sums.tied_sets(ties):
        means, hazards = one.means(dim), np.stack([1 / one.phi, one.shares / one.phi])
        first, second = hazards @ np.column_stack([np.ones(len(one.phi)), means])
        terms[time] = np.concatenate([first, second, means.mean(axis=0)])
    return terms


def score_residuals(
    rows: SurvivalRows, relative: Float64[np.ndarray, "n"], terms: Float64[np.ndarray, "t r"]
) -> tuple[Float64[np.ndarray, "n d"], Float64[np.ndarray, "n"]]:
    """Return each row's score residual, and its expected number of events, which is its weight in the information.

    The residuals of all rows add up to the score.

    Args:
        rows: The rows.
        relative: The relative hazard w of each row.
        terms: See `residual_terms`; of all rows of the stratum.
    """
    dim = rows.columns.shape[1]
    sums = np.concatenate([np.zeros((1, dim + 1)), np.cumsum(terms[:, : dim + 1], axis=0)])
    exposure = sums[rows.times + 1] - (0 if rows.entries is None else sums[rows.entries])
    exposure -= rows.events[:, None] * terms[rows.times, dim + 1 : 2 * dim + 2]
    expected = relative * exposure[:, 0]
    observed = rows.events[:, None] * (rows.columns - terms[rows.times, 2 * dim + 2 :])
    return observed - rows.columns * expected[:, None] + relative[:, None] * exposure[:, 1:], expected
