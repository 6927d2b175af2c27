"""Losses of single samples: cross-entropies, their weighting by the ratio of the classes, and the squared error.

`SAMPLE_LOSSES` also contains the losses for labels that are numbers, of `problems.objectives.number_losses`.

Ratio loss: Wang, Xu, Wang, Zhu, "Addressing Class Imbalance in Federated Learning" (AAAI 2021), for two classes.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from problems.objectives.number_losses import POISSON, SQUARED, halve_square, poisson, poisson_slope

CROSS_ENTROPY = "cross-entropy"
SOFTMAX = "softmax"
RATIO_LOSS = "ratio-loss"
SQUARED_ERROR = "squared-error"

# scores and labels -> a number for each sample
OfSamples = Callable[[Float[Tensor, "*stack n"], Float[Tensor, "*stack n"]], Float[Tensor, "*stack n"]]


def cross_entropy(logits: Float[Tensor, "n"], labels: Float[Tensor, "n"]) -> Float[Tensor, ""]:
    """Return the mean binary cross-entropy of samples.

    Args:
        logits: The model's raw outputs.
        labels: 0 or 1.
    """
    return functional.binary_cross_entropy_with_logits(logits, labels)


def cross_entropy_slope(
    logits: Float[Tensor, "*stack n"], labels: Float[Tensor, "*stack n"]
) -> Float[Tensor, "*stack n"]:
    """Return the derivative of each sample's cross-entropy in its logit: sigmoid(logit) - label."""
    return torch.sigmoid(logits).sub_(labels)


def find_log_odds(logits: Float[Tensor, "n classes"]) -> Float[Tensor, "n classes"]:
    """Return the log-odds of each class against the rest, of which the sigmoid is the softmax of the logits.

    The cross-entropy of the softmax is then softplus(-score), with the score of the row's class.

    Args:
        logits: The network's outputs for at least two classes.
    """
    own = torch.eye(logits.shape[-1], dtype=torch.bool, device=logits.device)
    return logits - torch.where(own, -math.inf, logits.unsqueeze(-2)).logsumexp(-1)


@dataclass(frozen=True)
class SampleLoss:
    """A loss of single samples, convex in their scores.

    Attributes:
        each: The loss of each sample.
        slope: The derivative of each sample's loss in its score, as a new tensor.
        curvature: The largest second derivative of a sample's loss; infinite if it has no bound.
    """

    each: OfSamples
    slope: OfSamples
    curvature: float


SAMPLE_LOSSES = {
    CROSS_ENTROPY: SampleLoss(
        partial(functional.binary_cross_entropy_with_logits, reduction="none"), cross_entropy_slope, 0.25
    ),
    # the scores are log-odds, see `find_log_odds`; only the row's class has a loss, so the classes' losses add up
    SOFTMAX: SampleLoss(
        lambda scores, labels: functional.softplus(-scores) * labels,
        lambda scores, labels: torch.sigmoid(-scores).mul_(labels).neg_(),
        0.25,
    ),
    # half the squared difference of the score to -1 or +1
    SQUARED_ERROR: SampleLoss(
        lambda scores, labels: (scores - (2 * labels - 1)).square() / 2,
        lambda scores, labels: torch.sub(scores, labels, alpha=2).add_(1),
        1.0,
    ),
    SQUARED: SampleLoss(halve_square, torch.sub, 1.0),
    POISSON: SampleLoss(poisson, poisson_slope, math.inf),
}


def ratio_weights(class_counts: Iterable[int], alpha: float, beta: float) -> tuple[float, float]:
    """Return the weights of a negative and of a positive: alpha + beta R_c for class c.

    R_c is the size of the other class divided by the size of class c, so the rare class has the larger weight.

    Args:
        class_counts: The numbers of negatives and of positives.

    Raises:
        ValueError: A class is empty.
    """
    negatives, positives = (int(count) for count in class_counts)
    if not negatives or not positives:
        raise ValueError(f"the ratio loss needs both classes, got {positives} positives and {negatives} negatives")
    return alpha + beta * positives / negatives, alpha + beta * negatives / positives


def ratio_loss(
    logits: Float[Tensor, "n"], labels: Float[Tensor, "n"], weights: tuple[float, float]
) -> Float[Tensor, ""]:
    """Return the mean of weight times cross-entropy: divided by n, not by the sum of the weights.

    Args:
        logits: The model's raw outputs.
        labels: 0 or 1.
        weights: The weights of a negative and of a positive, from `ratio_weights`.
    """
    return functional.binary_cross_entropy_with_logits(logits, labels, weight=_of_samples(labels, weights))


def ratio_slope(
    logits: Float[Tensor, "*stack n"], labels: Float[Tensor, "*stack n"], weights: tuple[float, float]
) -> Float[Tensor, "*stack n"]:
    """Return the derivative of each sample's weighted loss in its logit.

    Args:
        logits: The model's raw outputs.
        labels: 0 or 1.
        weights: The weights of a negative and of a positive, from `ratio_weights`.
    """
    return cross_entropy_slope(logits, labels).mul_(_of_samples(labels, weights))


def _of_samples(labels: Float[Tensor, "*stack n"], weights: tuple[float, float]) -> Float[Tensor, "*stack n"]:
    negative, positive = weights
    return (labels * (positive - negative)).add_(negative)
