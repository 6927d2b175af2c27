"""The client half of `methods.cox`: sums over a site's rows.

Without strata, the sums of neighbouring grid times differ by the rows that leave the risk set between them. At a single
time these are few rows, often one, and the sums then contain the row. Larger groups do not help: if one row of a group
has a category, the category's sums contain this row. So a site whose owner protects small cells refuses shared risk
sets, with and without secure sums. With strata it sends the sums over all its own times, protected like the sums of
`methods.newton_client`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from methods.cox_records import CoxQuestion, CoxSums
from methods.cox_sums import (
    Likelihood,
    RiskSums,
    SurvivalRows,
    evaluate,
    residual_terms,
    score_residuals,
    sum_risk_sets,
)
from methods.method import Task
from methods.newton_alone import STEPS, weigh
from methods.newton_client import count_effective, refuse_dominance, refuse_rare
from methods.newton_records import NewtonSettings, NewtonSums, NewtonVariance, SiteEstimate
from methods.solving import SingularError, solve
from payloads.settings import TrainingSettings
from problems.errors import InputError
from problems.models import FlatModel


class CoxDesign:
    """f_i: a site's rows as the columns of a regression, in float64. If the model has a bias, its column is 0."""

    def __init__(self, model: FlatModel, site: Any, loss: str, training: TrainingSettings, settings: Any) -> None:
        self.model = model
        features = site.features.flatten(1).double().cpu().numpy()
        biases = sum(name.endswith("bias") for name in model.parameter_names)
        columns = np.concatenate([features, np.zeros((len(features), biases))], axis=1)
        assert site.periods is not None
        events = site.labels.cpu().numpy() > 0
        self.rows = SurvivalRows(columns, events, site.periods.exits, site.periods.entries)


CoxTask = Task[NewtonSettings, CoxDesign]


@dataclass(frozen=True)
class Carry:
    """A client's state in a round: the received model and question."""

    x: Float[Tensor, "d"]
    question: CoxQuestion


def start(x: Float[Tensor, "d"], down: CoxQuestion, memory: None, task: CoxTask) -> Carry:
    return Carry(x, down)


def finish_shared(carry: Carry, task: CoxTask) -> tuple[Float[Tensor, "d"], CoxSums, None]:
    """Answer a round with the sums over the site's part of each risk set."""
    return carry.x, answer_risk_sets(carry.x, carry.question, task), None


def answer_risk_sets(x: Float[Tensor, "d"], down: CoxQuestion, task: CoxTask) -> CoxSums:
    """Answer with the sums over the site's part of each risk set, at the question's point.

    Args:
        x: The message's model; without effect.
        down: The question.
        task: The client's task.

    Raises:
        InputError: The site protects small cells.
    """
    rows, relative = see_shared(down, task)
    return CoxSums.of(sum_risk_sets(rows, relative, int(down.grid[0]), task.settings.ties), len(rows))


def answer_residuals(x: Float[Tensor, "d"], down: CoxQuestion, task: CoxTask) -> NewtonVariance:
    """Answer with the sums of the robust standard errors. The information and the figures are 0."""
    assert down.terms is not None
    rows, relative = see_shared(down, task)
    residuals, _ = score_residuals(rows, relative, np.array(down.terms))
    total = residuals.sum(axis=0)
    return NewtonVariance.make(
        information=np.zeros((len(total), len(total))),
        squares=residuals.T @ residuals,
        clustered=np.outer(total, total),
        figures=np.zeros(3),
        counts=[len(rows), 1, 0],
    )


def see_shared(down: CoxQuestion, task: CoxTask) -> tuple[SurvivalRows, Float64[np.ndarray, "n"]]:
    """Return the site's rows, shifted by the question's centre, and their relative hazards at the question's point.

    Raises:
        InputError: The site protects small cells, or has times outside the grid.
    """
    if task.site.least_cell > 1:
        got = "false: at each time, sums over the rows that leave the study"
        allowed = "true, or sites with least-cell = 1"
        raise InputError("newton.site-effects", got=got, allowed=allowed, hint="set newton.site-effects to true")
    rows, grid = task.f.rows.shift(np.array(down.centre)), int(down.grid[0])
    if rows.times.max(initial=0) >= grid:
        raise InputError("times", got="times after the grid", allowed=f"{grid} grid times", hint="start a new run")
    with np.errstate(over="ignore"):  # the sums report infinite values
        return rows, np.exp(rows.columns @ np.array(down.point))


@dataclass(frozen=True, eq=False)
class Stratum:
    """A site's own risk sets at a point.

    Attributes:
        rows: The rows that are at risk at an event; the likelihood does not depend on the other rows.
        relative: The relative hazard of each row, divided by the largest.
        sums: The sums over risk sets.
        likelihood: The log partial likelihood and its derivatives.
    """

    rows: SurvivalRows
    relative: Float64[np.ndarray, "n"]
    sums: RiskSums
    likelihood: Likelihood

    @classmethod
    def of(cls, rows: SurvivalRows, point: Float64[np.ndarray, "d"], ties: str) -> "Stratum | None":
        """Return the risk sets of rows; None if they have no events."""
        if not rows.events.any():
            return None
        rows = rows.select(find_involved(rows))
        rows = rows.shift(rows.columns.mean(axis=0))
        scores = rows.columns @ point
        largest = float(scores.max())
        relative = np.exp(scores - largest)
        sums = sum_risk_sets(rows, relative, int(rows.times.max()) + 1, ties)
        found = evaluate(sums, point, ties)
        value = found.value - largest * int(sums.events.sum())
        return cls(rows, relative, sums, Likelihood(value, found.score, found.information))

    def residuals(self, ties: str) -> tuple[Float64[np.ndarray, "n d"], Float64[np.ndarray, "n"]]:
        """Return each row's score residual and expected number of events."""
        if not self.likelihood.value > -np.inf:
            return np.zeros_like(self.rows.columns), np.zeros(len(self.rows))
        terms = residual_terms(self.sums, self.rows.columns.shape[1], ties)
        return score_residuals(self.rows, self.relative, terms)


def find_involved(rows: SurvivalRows) -> Bool[np.ndarray, "n"]:
    """Return the rows that are at risk at the time of an event."""
    events = np.concatenate([[0], np.cumsum(np.bincount(rows.times[rows.events], minlength=rows.times.max() + 1))])
    first = np.zeros_like(rows.times) if rows.entries is None else rows.entries
    found: np.ndarray = events[rows.times + 1] > events[first]
    return found


def finish_stratum(carry: Carry, task: CoxTask) -> tuple[Float[Tensor, "d"], NewtonSums, None]:
    """Answer a round with the score, the information, minus twice the log likelihood, and the number of events."""
    seen = see_stratum(carry.question, task)
    if seen is None:
        return carry.x, NewtonSums.zeros(len(carry.x)), None
    found, events = seen.likelihood, int(seen.sums.events.sum())
    sums = {"score": found.score, "information": found.information, "deviance": [-2 * found.value], "rows": [events]}
    return carry.x, NewtonSums.make(**sums), None


def see_stratum(down: CoxQuestion, task: CoxTask) -> Stratum | None:
    """Return the site's risk sets at the question's point; None without events.

    Raises:
        InputError: The sums would reveal rows.
    """
    seen = Stratum.of(task.f.rows, np.array(down.point, np.float64), task.settings.ties)
    if seen is not None:
        columns, events = torch.from_numpy(seen.rows.columns), torch.from_numpy(seen.rows.events)
        refuse_rare(task.site, columns, events, task.summed)
        refuse_dominance(task, torch.from_numpy(seen.residuals(task.settings.ties)[1]))
    return seen


def answer_variance(x: Float[Tensor, "d"], down: CoxQuestion, task: CoxTask) -> NewtonVariance:
    """Answer the exchange after the last step, with strata: the sums of all standard errors. Figure 3 counts events.

    Args:
        x: The message's model; without effect.
        down: The question.
        task: The client's task.
    """
    seen = see_stratum(down, task)
    if seen is None:
        return NewtonVariance.zeros(len(x))
    residuals, _ = seen.residuals(task.settings.ties)
    effective = [count_effective(torch.from_numpy(column**2)) for column in residuals.T if column.any()]
    hidden = task.site.least_cell > 1 and task.summed == 1 and min(effective, default=0.0) < task.site.least_cell
    found = seen.likelihood
    return NewtonVariance.make(
        information=found.information,
        squares=np.zeros_like(found.information) if hidden else residuals.T @ residuals,
        clustered=np.outer(found.score, found.score),
        figures=[-2 * found.value, found.value, float(seen.sums.events.sum())],
        counts=[len(task.f.rows), 1, int(hidden)],
    )


def answer_estimate(x: Float[Tensor, "d"], down: CoxQuestion, task: CoxTask) -> SiteEstimate:
    """Answer with the site's own estimate as sums for a meta-analysis; see `methods.newton_alone.answer_estimate`."""
    see_stratum(down, task)
    return weigh(fit_alone(task.f.rows, down.free, task.settings.ties), down)


def fit_alone(
    rows: SurvivalRows, free: Bool[np.ndarray, "d"], ties: str
) -> tuple[Float64[np.ndarray, "d"], Float64[np.ndarray, "d"]] | None:
    """Fit the model to a site's rows alone.

    Returns:
        The estimates and their variances, 0 for coefficients without an estimate. None without any estimate: fewer
        events than coefficients, columns that do not vary at the site, or a likelihood without a maximum.
    """
    chosen = np.array(free, dtype=bool)
    if rows.events.sum() <= chosen.sum():
        return None
    part = SurvivalRows(rows.columns[:, chosen], rows.events, rows.times, rows.entries)
    point = np.zeros(part.columns.shape[1])
    for _ in range(STEPS):
        seen = Stratum.of(part, point, ties)
        assert seen is not None
        try:
            move, inverse = solve(seen.likelihood.information, seen.likelihood.score)
        except (SingularError, np.linalg.LinAlgError):
            return None
        point = point + move
        if float(move @ seen.likelihood.information @ move) <= 1e-16 * max(1.0, len(point)):
            break
    else:
        return None
    estimate, variance = np.zeros(len(chosen)), np.zeros(len(chosen))
    estimate[chosen], variance[chosen] = point, np.diag(inverse)
    return estimate, variance
