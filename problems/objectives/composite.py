"""The smooth part f of a composite objective f + g, over a model's flat parameters: the loss and a ridge term."""

import math
from functools import lru_cache

import torch
from jaxtyping import Float, Float64, Real
from torch import Tensor, nn

from problems.models import Layout
from problems.models.networks import Linear, LinearNoIntercept
from problems.objectives.classification import SampleLoss
from problems.optimum import smoothness
from problems.penalties import PenaltySettings, select_coordinates


@lru_cache(maxsize=64)
def ridge_factors(
    settings: PenaltySettings,
    layout: Layout,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Float[Tensor, "d"]:
    """Return the factor of each parameter in the ridge term.

    Args:
        settings: The settings. ``ridge`` is the factor, and ``parameters`` selects the parameters with this factor.
        layout: The names and shapes of the model's parameters.
        dtype: The type of the factors.
        device: The device of the factors.

    Raises:
        ValueError: `select_coordinates` refuses ``settings.parameters``.
    """
    return select_coordinates(layout, settings.parameters).to(device, dtype) * settings.ridge


def linear_features(module: nn.Module, features: Float[Tensor, "n *shape"]) -> Float[Tensor, "n d"] | None:
    """Return the gradient of each sample's score. None: the model is not linear in its parameters, or partly frozen."""
    if type(module) not in (Linear, LinearNoIntercept) or not all(part.requires_grad for part in module.parameters()):
        return None
    rows = features.flatten(1)
    return rows if isinstance(module, LinearNoIntercept) else torch.cat((rows, rows.new_ones(len(rows), 1)), 1)


def linear_smoothness(module: nn.Module, features: Float[Tensor, "n *shape"], loss: SampleLoss) -> float | None:
    """Return a Lipschitz constant of the mean loss's gradient.

    Args:
        module: The model.
        features: The features of the samples in the mean.
        loss: The loss of each sample.

    Returns:
        The loss's curvature times the largest eigenvalue of the second moment of the features. None: the model is not
        linear, or the curvature has no bound.
    """
    rows = linear_features(module, features) if loss.curvature < math.inf else None
    return None if rows is None else loss.curvature * smoothness(rows) / len(rows)


class LinearObjective:
    """f(x) = sum_l weight_l loss(row_l . x; label_l) + 1/2 sum_j ridge_j x_j^2, in float64.

    Args:
        rows: The result of `linear_features`.
        labels: 0 or 1.
        weights: Weights >= 0. With the weight 1 / (number of sites * samples of the row's site), f is the plain mean
            over sites.
        loss: A convex loss.
        ridge: Factors >= 0.

    Attributes:
        lipschitz: An upper bound of the curvature.
        convexity: A lower bound of the curvature: the smallest ridge factor.
    """

    def __init__(
        self,
        rows: Float[Tensor, "n d"],
        labels: Real[Tensor, "n"],
        weights: Float[Tensor, "n"],
        loss: SampleLoss,
        ridge: Float[Tensor, "d"],
    ) -> None:
        self.rows, self.labels, self.weights = rows.double(), labels.double(), weights.double()
        self.loss, self.ridge = loss, ridge.double()
        # 1 % more, since the result of `smoothness` may be smaller than the eigenvalue
        self.lipschitz = 1.01 * loss.curvature * smoothness(self.rows, self.weights) + float(self.ridge.max())
        self.convexity = float(self.ridge.min())

    def __call__(self, x: Float64[Tensor, "d"]) -> tuple[float, Float64[Tensor, "d"]]:
        """Return the value and the gradient at x."""
        scores = self.rows @ x
        value = self.weights @ self.loss.each(scores, self.labels) + (self.ridge * x) @ x / 2
        slopes = self.loss.slope(scores, self.labels) * self.weights
        return float(value), slopes @ self.rows + self.ridge * x
