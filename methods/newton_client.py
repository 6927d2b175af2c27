"""The client half of `methods.newton`: sums over a site's rows.

A row of the design is the row's features and a 1 for the intercept. With site effects the site solves for its intercept
for every received vector of weights. Sums over rows are of features minus their weighted mean (the intercept is
partialled out), which gives the same estimates and standard errors as an indicator column for each site. The site sends
its intercept, times its number of rows, with the sums of the standard errors only: the model saves the mean intercept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from methods.method import Task
from methods.newton_records import NewtonQuestion, NewtonSettings, NewtonSums, NewtonVariance
from payloads.settings import TrainingSettings
from problems.errors import InputError, join_first
from problems.least_cell import is_small
from problems.models import FlatModel
from problems.objectives.regression import REGRESSIONS, solve_intercept
from problems.site import Site

# the fewest rows of a site with its own file
FEWEST_ROWS = 10
# a feature varies within a site if its distances from its mean exceed this share of its values
_CONSTANT = 1e-12


class Design:
    """f_i: a site's rows as the columns of a regression, in float64.

    Attributes:
        family: The generalised linear model.
        columns: The features of each row and, with an intercept, a 1.
        outcomes: The outcomes.
        offsets: The offset of each row's linear predictor.
        intercept: Whether the last column is the intercept.
    """

    def __init__(self, model: FlatModel, site: Site, loss: str, training: TrainingSettings, settings: Any) -> None:
        self.model, self.family = model, REGRESSIONS[loss]
        self.intercept = any(name.endswith("bias") for name in model.parameter_names)
        features = site.features.flatten(1).double()
        ones = features.new_ones(len(site), int(self.intercept))
        self.columns, self.outcomes = torch.cat([features, ones], dim=1), site.labels.double()
        self.offsets = torch.zeros_like(self.outcomes) if site.offsets is None else site.offsets.double()

    def scores(self, x: Float[Tensor, "d"]) -> Float[Tensor, "n"]:
        """Return the linear predictor of each row."""
        return self.columns @ x.double() + self.offsets

    @property
    def weights(self) -> int:
        """The number of columns without the intercept."""
        return self.columns.shape[1] - int(self.intercept)


NewtonTask = Task[NewtonSettings, Design]


@dataclass(frozen=True)
class Point:
    """A client's state in a round: the received coefficients."""

    x: Float[Tensor, "d"]


@dataclass(frozen=True)
class RowTerms:
    """The terms of a site's sums at a point, row by row.

    Attributes:
        columns: The columns of the sums; with site effects minus their weighted means, and 0 for the intercept.
        residuals: Minus the slope of each row's loss.
        curvatures: The second derivative of each row's loss.
        scores: The linear predictor.
        intercept: The site's intercept, with site effects.
    """

    columns: Float[Tensor, "n d"]
    residuals: Float[Tensor, "n"]
    curvatures: Float[Tensor, "n"]
    scores: Float[Tensor, "n"]
    intercept: float = 0.0


def look(design: Design, x: Float[Tensor, "d"], *, own: bool) -> RowTerms | None:
    """Evaluate a site's rows at a point.

    Args:
        own: Whether the site has its own intercept.

    Returns:
        None if the outcomes do not determine the site's own intercept, such as outcomes of a single class: the
        likelihood is then 1 for every vector of weights.
    """
    family = design.family
    if own and not family.fits(design.outcomes):
        return None
    scores, intercept = design.scores(x), 0.0
    if own:
        if design.intercept:
            scores = scores - x[-1].double()
        intercept = solve_intercept(family, scores, design.outcomes)
        scores = scores + intercept
    curvatures = family.curvature(scores, design.outcomes)
    residuals = -family.loss.slope(scores, design.outcomes)
    return RowTerms(centre(design, curvatures) if own else design.columns, residuals, curvatures, scores, intercept)


def centre(design: Design, weights: Float[Tensor, "n"]) -> Float[Tensor, "n d"]:
    """Return the columns minus their weighted means. Columns that are constant at the site become exactly 0."""
    centred = design.columns - (weights @ design.columns) / weights.sum()
    largest = design.columns.abs().amax(dim=0)
    centred[:, centred.abs().amax(dim=0) <= _CONSTANT * largest] = 0.0
    return centred


def check_rows(task: NewtonTask) -> None:
    """Refuse if the sums would reveal rows of a site with its own file; see `refuse_rare`."""
    refuse_rare(task.site, task.f.columns, task.f.outcomes, task.summed)


def refuse_rare(site: Site, columns: Float[Tensor, "n d"], outcomes: Shaped[Tensor, "n"], summed: int) -> None:
    """Refuse if sums over rows would reveal some of the rows.

    Args:
        site: The site.
        columns: The columns of the rows in the sums.
        outcomes: The outcomes of these rows.
        summed: See `Task.summed`.

    Raises:
        InputError: There are too few rows, fewer rows than coefficients, or a column with too few other values.
    """
    least = site.least_cell
    if least <= 1:  # the owner allows counts of single rows
        return
    fewest = max(FEWEST_ROWS, 2 * least, 0 if summed > 1 else columns.shape[1])
    if len(outcomes) < fewest:
        allowed = f"at least {fewest}, since sums over fewer rows reveal rows"
        raise InputError("training rows", got=len(outcomes), allowed=allowed, hint="add rows, or use fewer columns")
    if summed > 1:
        return
    if is_small([int((outcomes != outcomes.mode().values).sum())], least):
        got = f"fewer than {least} rows with another label than the others"
        allowed = f"no such rows, or at least {least} (least-cell of the site's settings)"
        raise InputError("labels", got=got, allowed=allowed, hint="set privacy.secure-sum, or add rows")
    counts = [int((column != column.mode().values).sum()) for column in columns.T]
    if rare := [index for index, count in enumerate(counts) if is_small([count], least)]:
        names = [repr(site.names[index]) if site.names else str(index) for index in rare]
        raise InputError(
            "features",
            got=f"fewer than {least} rows that differ from the others in column {join_first(names, 10)}",
            allowed=f"no such rows, or at least {least} (least-cell of the site's settings)",
            hint="drop the column, merge its categories, or set privacy.secure-sum",
        )


def count_effective(weights: Float[Tensor, "n"]) -> float:
    """Return the number of equally weighted rows that would have the same concentration of weights."""
    largest = float(weights.max()) if len(weights) else 0.0
    if not 0 < largest < np.inf:
        return 0.0
    relative = weights / largest  # tiny weights have squares of 0
    return float(relative.sum()) ** 2 / float(relative.square().sum())


def refuse_dominance(task: Task[Any, Any], weights: Float[Tensor, "n"]) -> None:
    """Refuse if a few rows dominate the information at the received point: it would reveal these rows.

    Raises:
        InputError: The weights are concentrated on fewer rows than the site's least cell.
    """
    if task.site.least_cell > 1 and task.summed == 1 and count_effective(weights) < task.site.least_cell:
        got = "coefficients under which a few rows have nearly all weight"
        allowed = f"weight on at least {task.site.least_cell} rows (least-cell of the site's settings)"
        raise InputError("coefficients", got=got, allowed=allowed, hint="set privacy.secure-sum, or drop columns")


def start(x: Float[Tensor, "d"], down: None, memory: None, task: NewtonTask) -> Point:
    return Point(x)


def step(carry: Point, batch: Any, eta: float, task: NewtonTask) -> Point:
    return carry


def no_batches(task: NewtonTask, down: None) -> Iterator[tuple[float, Any]]:
    """Return no batches: a round has no local step."""
    return iter(())


def finish(carry: Point, task: NewtonTask) -> tuple[Float[Tensor, "d"], NewtonSums, None]:
    """Answer a round with the sums over the site's rows. Round 1 starts from the outcomes, not from the model."""
    check_rows(task)
    return carry.x, first_sums(task) if task.server_round == 1 else sum_rows(carry.x, task), None


def first_sums(task: NewtonTask) -> NewtonSums:
    """Return the sums of the first weighted least squares fit: X'WX and X'Wz of working outcomes z."""
    design, own = task.f, task.settings.site_effects
    if own and not design.family.fits(design.outcomes):
        return NewtonSums.zeros(design.columns.shape[1])
    weights, working = design.family.start(design.outcomes)
    refuse_dominance(task, weights)
    working = working - design.offsets
    columns = centre(design, weights) if own else design.columns
    if own:
        working = working - (weights @ working) / weights.sum()
    return NewtonSums.of(columns.T @ (weights * working), columns.T @ (weights[:, None] * columns), 0.0, len(working))


def sum_rows(x: Float[Tensor, "d"], task: NewtonTask) -> NewtonSums:
    """Return the score, the information and the deviance of the site's rows at a point."""
    design = task.f
    rows = look(design, x, own=task.settings.site_effects)
    if rows is None:
        return NewtonSums.zeros(design.columns.shape[1])
    refuse_dominance(task, rows.curvatures)
    score = rows.columns.T @ rows.residuals
    information = rows.columns.T @ (rows.curvatures[:, None] * rows.columns)
    deviance = float(design.family.deviance(rows.scores, design.outcomes).sum())
    return NewtonSums.of(score, information, deviance, len(design.outcomes))


def answer_variance(x: Float[Tensor, "d"], down: NewtonQuestion, task: NewtonTask) -> NewtonVariance:
    """Answer the exchange after the last step: the sums of all standard errors, at the final coefficients.

    Args:
        x: The message's model; the point is in the question.
        down: The question.
        task: The client's task.
    """
    check_rows(task)
    design, family, own = task.f, task.f.family, task.settings.site_effects
    rows = look(design, torch.from_numpy(np.array(down.point)).to(x.device), own=own)
    if rows is None:
        return NewtonVariance.zeros(design.columns.shape[1])
    refuse_dominance(task, rows.curvatures)
    squares = rows.residuals.square()
    scores = rows.columns * rows.residuals[:, None]
    total, size = scores.sum(dim=0), float(len(squares))
    # the server also knows the information, so it knows the difference of both sums
    effective = min(count_effective(squares), count_effective((squares - rows.curvatures).abs()))
    hidden = task.site.least_cell > 1 and task.summed == 1 and effective < task.site.least_cell
    return NewtonVariance.make(
        information=rows.columns.T @ (rows.curvatures[:, None] * rows.columns),
        squares=torch.zeros_like(total.outer(total)) if hidden else scores.T @ scores,
        clustered=total.outer(total),
        figures=[
            float(family.deviance(rows.scores, design.outcomes).sum()),
            float(family.log_likelihood(rows.scores, design.outcomes).sum()),
            size * rows.intercept if own else 0.0,
        ],
        counts=[len(squares), 1, int(hidden)],
    )
