"""Generalised linear models with the canonical link: logistic, linear and Poisson regression.

Source: McCullagh and Nelder, "Generalized Linear Models", 2nd edition, 1989. The score of a row is its linear
predictor, the link of the row's expected outcome. Each loss is the negative log likelihood of an outcome, up to terms
without the score.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from problems.objectives.classification import CROSS_ENTROPY, SAMPLE_LOSSES, OfSamples, SampleLoss
from problems.objectives.number_losses import POISSON, SQUARED


@dataclass(frozen=True)
class Regression:
    """A generalised linear model.

    Attributes:
        name: The name of the model: logistic, linear or Poisson.
        ratio: The meaning of the exponential of a coefficient. "": it has none.
        loss: The loss, with its slope and its largest second derivative.
        curvature: The second derivative of each row's loss in the score, as a new tensor.
        begin: (outcomes) -> the scores from which the first step starts.
        log_likelihood: (scores, outcomes) -> each row's log likelihood; without the dispersion, if there is one.
        deviance: (scores, outcomes) -> each row's part of the deviance.
        fits: (outcomes) -> whether an intercept has a finite estimate from these outcomes.
        dispersed: Whether the variance has an unknown factor, the dispersion.
    """

    name: str
    ratio: str
    loss: SampleLoss
    curvature: OfSamples
    begin: Callable[[Float[Tensor, "n"]], Float[Tensor, "n"]]
    log_likelihood: OfSamples
    deviance: OfSamples
    fits: Callable[[Float[Tensor, "n"]], bool]
    dispersed: bool = False

    def start(self, outcomes: Float[Tensor, "n"]) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
        """Return each row's weight and working outcome in the first weighted least squares fit."""
        scores = self.begin(outcomes)
        weights = self.curvature(scores, outcomes)
        return weights, scores - self.loss.slope(scores, outcomes) / weights


def _binary_curvature(scores: Float[Tensor, "n"], labels: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return torch.sigmoid(scores) * torch.sigmoid(-scores)


def _poisson_deviance(scores: Float[Tensor, "n"], counts: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return 2 * (torch.xlogy(counts, counts) - counts * scores - counts + scores.exp())


LOGISTIC_MODEL = Regression(
    name="logistic",
    ratio="odds ratio",
    loss=SAMPLE_LOSSES[CROSS_ENTROPY],
    curvature=_binary_curvature,
    begin=lambda labels: torch.logit((labels + 0.5) / 2),
    log_likelihood=lambda scores, labels: -SAMPLE_LOSSES[CROSS_ENTROPY].each(scores, labels),
    deviance=lambda scores, labels: 2 * SAMPLE_LOSSES[CROSS_ENTROPY].each(scores, labels),
    fits=lambda labels: bool((labels > 0).any() and (labels < 1).any()),
)

LINEAR_MODEL = Regression(
    name="linear",
    ratio="",
    loss=SAMPLE_LOSSES[SQUARED],
    curvature=lambda scores, outcomes: torch.ones_like(scores),
    begin=lambda outcomes: outcomes.clone(),
    log_likelihood=lambda scores, outcomes: -(scores - outcomes).square() / 2,
    deviance=lambda scores, outcomes: (scores - outcomes).square(),
    fits=lambda outcomes: len(outcomes) > 0,
    dispersed=True,
)

POISSON_MODEL = Regression(
    name="Poisson",
    ratio="rate ratio",
    loss=SAMPLE_LOSSES[POISSON],
    curvature=lambda scores, counts: scores.exp(),
    begin=lambda counts: torch.log(counts + 0.1),
    log_likelihood=lambda scores, counts: counts * scores - scores.exp() - torch.lgamma(counts + 1),
    deviance=_poisson_deviance,
    fits=lambda counts: bool((counts > 0).any()),
)

# the model of each loss
REGRESSIONS = {CROSS_ENTROPY: LOGISTIC_MODEL, SQUARED: LINEAR_MODEL, POISSON: POISSON_MODEL}


def solve_intercept(
    model: Regression, scores: Float[Tensor, "n"], outcomes: Float[Tensor, "n"], *, steps: int = 200
) -> float:
    """Return the intercept that maximises the likelihood, added to given scores.

    Newton's method on an interval that always contains the solution, and bisection if a step leaves it.

    Args:
        model: The generalised linear model; it must fit the outcomes, see `Regression.fits`.
        scores: The scores without the intercept.
        outcomes: The outcomes.
        steps: The maximum number of steps.
    """

    def pull(intercept: float) -> tuple[float, float]:
        moved = scores + intercept
        return float(model.loss.slope(moved, outcomes).sum()), float(model.curvature(moved, outcomes).sum())

    low, high, width = 0.0, 0.0, 1.0
    while pull(low)[0] > 0 and width < 2.0**60:
        low, width = low - width, 2 * width
    width = 1.0
    while pull(high)[0] < 0 and width < 2.0**60:
        high, width = high + width, 2 * width
    middle = (low + high) / 2
    for _ in range(steps):
        slope, curvature = pull(middle)
        low, high = (low, middle) if slope > 0 else (middle, high)
        step = middle - slope / curvature if curvature > 0 else torch.nan
        following = step if low < step < high else (low + high) / 2
        if following == middle or abs(following - middle) <= 1e-15 * max(1.0, abs(middle)):
            return following
        middle = following
    return middle
