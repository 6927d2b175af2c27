"""Plain NumPy reference of the Cox model, in float64, with loops over event times.

Sources: Cox, "Regression models and life-tables", JRSS B 34, 1972 (partial likelihood); Breslow, Biometrics 30, 1974,
and Efron, JASA 72, 1977 (ties); Lin and Wei, JASA 84, 1989 (score residuals, robust variance); Therneau and Grambsch,
"Modeling Survival Data", 2000, section 3.3 (score residuals with Efron's ties).

At time t of a stratum, with the risk set R = {entry <= t <= time} and its n events D, each of the n events has its own
risk set: with Efron, event l = 0..n-1 sees the rows of D with weight 1 - l/n; with Breslow, with weight 1.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Data(NamedTuple):
    """Columns (n, d), events (n,) 0 or 1, times (n,), entries (n,), strata (n,)."""

    columns: np.ndarray
    events: np.ndarray
    times: np.ndarray
    entries: np.ndarray
    strata: np.ndarray


def sets(data: Data, ties: str) -> Iterator[tuple[np.ndarray, np.ndarray, list[np.ndarray]]]:
    """Yield for each event time the risk set's indices, the events' indices, and each event's weights of the set."""
    for stratum in np.unique(data.strata):
        own = data.strata == stratum
        for time in np.unique(data.times[own & (data.events == 1)]):
            at_risk = np.flatnonzero(own & (data.entries <= time) & (data.times >= time))
            died = np.flatnonzero(own & (data.times == time) & (data.events == 1))
            shares = [1 - (index / len(died) if ties == "efron" else 0) * np.isin(at_risk, died)
                      for index in range(len(died))]  # fmt: skip
            yield at_risk, died, shares


def likelihood(point: np.ndarray, data: Data, ties: str) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the log partial likelihood, the score and the information."""
    value, score, information = 0.0, np.zeros(len(point)), np.zeros((len(point), len(point)))
    for at_risk, died, shares in sets(data, ties):
        columns = data.columns[at_risk]
        value += data.columns[died].sum(axis=0) @ point
        score += data.columns[died].sum(axis=0)
        for share in shares:
            weights = share * np.exp(columns @ point)
            total = weights.sum()
            mean = weights @ columns / total
            value -= np.log(total)
            score -= mean
            information += (columns - mean).T @ (weights[:, None] * (columns - mean)) / total
    return value, score, information


def fit(data: Data, ties: str, steps: int = 50) -> np.ndarray:
    """Return the estimates by Newton's method. A step that lowers the likelihood is halved."""
    point = np.zeros(data.columns.shape[1])
    value, score, information = likelihood(point, data, ties)
    for _ in range(steps):
        move = np.linalg.solve(information, score)
        while likelihood(point + move, data, ties)[0] < value - 1e-10 * abs(value):
            move /= 2
        point = point + move
        value, score, information = likelihood(point, data, ties)
        if score @ np.linalg.solve(information, score) < 1e-26:
            break
    return point


def residuals(point: np.ndarray, data: Data, ties: str) -> np.ndarray:
    """Return each row's score residual (n, d): its covariates minus the means, integrated over its martingale."""
    relative, result = np.exp(data.columns @ point), np.zeros(data.columns.shape)
    for at_risk, died, shares in sets(data, ties):
        for share in shares:
            weights = share * relative[at_risk]
            mean = weights @ data.columns[at_risk] / weights.sum()
            result[died] += (data.columns[died] - mean) / len(died)
            result[at_risk] -= (data.columns[at_risk] - mean) * (weights / weights.sum())[:, None]
    return result


def baseline(point: np.ndarray, data: Data, grid: np.ndarray) -> np.ndarray:
    """Return Breslow's cumulative hazard of a row whose columns are 0, at each time of the grid."""
    hazard, relative = np.zeros(len(grid)), np.exp(data.columns @ point)
    for at_risk, died, _ in sets(data, "breslow"):
        hazard[grid >= data.times[died[0]]] += len(died) / relative[at_risk].sum()
    return hazard
