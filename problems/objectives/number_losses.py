"""Losses for labels that are numbers: the squared error, and the Poisson loss with the logarithm as link.

Each is the negative log likelihood of a sample, without terms that do not depend on the score s:

| loss | distribution of the label y | loss of a sample | mean of y |
|---|---|---|---|
| squared | normal with mean s and variance 1 | (s - y)^2 / 2 | s |
| poisson | Poisson with mean exp(s) | exp(s) - y s | exp(s) |

The omitted terms are log(2 pi) / 2 and log(y!).
"""

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy.typing import NDArray
from torch import Tensor

SQUARED, POISSON = "squared", "poisson"
NUMBER_LOSSES = (SQUARED, POISSON)
"""The losses for labels that are numbers. All other losses are for classes."""

Scores = Float[Tensor, "*stack n"]


def halve_square(scores: Scores, labels: Scores) -> Scores:
    """Return half the squared error of each sample."""
    return (scores - labels).square() / 2


def poisson(scores: Scores, labels: Scores) -> Scores:
    """Return exp(score) - label * score of each sample."""
    return torch.exp(scores) - labels * scores


def poisson_slope(scores: Scores, labels: Scores) -> Scores:
    """Return the derivative of each sample's Poisson loss in its score: exp(score) - label."""
    return torch.exp(scores).sub_(labels)


def means(loss: str, scores: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
    """Return the predicted means of the labels.

    Args:
        loss: A loss of `NUMBER_LOSSES`.
        scores: The scores, with offsets.
    """
    with np.errstate(over="ignore"):
        predicted: NDArray[np.float64] = np.exp(scores) if loss == POISSON else scores
    return predicted


def deviances(loss: str, scores: Float64[np.ndarray, "n"], labels: Float64[np.ndarray, "n"]) -> NDArray[np.float64]:
    """Return each sample's deviance: the squared error, or 2 (y log(y / mean) - y + mean) with 0 log 0 = 0.

    Args:
        loss: A loss of `NUMBER_LOSSES`.
        scores: The scores, with offsets.
        labels: The labels; >= 0 for the Poisson loss.
    """
    if loss == SQUARED:
        squares: NDArray[np.float64] = np.square(scores - labels)
        return squares
    logarithms = np.log(labels, out=np.zeros_like(labels), where=labels > 0)
    each: NDArray[np.float64] = 2 * (labels * (logarithms - scores) - labels + means(loss, scores))
    return each
