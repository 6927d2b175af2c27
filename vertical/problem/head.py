"""The head of a split network, z = v . relu(o) + c, which the only dominator trains with each of its updates."""

import math

import numpy as np
from jaxtyping import Float64

from vertical.problem.objectives import Array, Objective


class Head:
    """The layer that turns the k sums of a row into a prediction.

    Args:
        width: k.
        seed: The seed of the initial weights, which are drawn like the weights of `torch.nn.Linear`.
        objective: The objective whose regulariser the updates apply.
        step: gamma.

    Attributes:
        weights: (k + 1,) v and c; changed in place.
    """

    def __init__(self, width: int, seed: int, objective: Objective, step: float) -> None:
        bound = 1.0 / math.sqrt(width)
        self.weights: Array = np.random.default_rng(seed).uniform(-bound, bound, width + 1)
        self._objective, self._step = objective, step

    def set_weights(self, weights: Float64[np.ndarray, "_"]) -> None:
        """Replace the weights.

        Raises:
            ValueError: The number of weights is wrong, or a weight is not finite.
        """
        if weights.shape != self.weights.shape or not np.isfinite(weights).all():
            raise ValueError(f"a head of {len(self.weights) - 1} sums has {len(self.weights)} finite weights")
        self.weights[:] = weights

    def predict(self, sums: Float64[np.ndarray, "b k"]) -> Float64[np.ndarray, "b"]:
        """Return z of rows, given o."""
        z: Array = np.maximum(sums, 0.0) @ self.weights[:-1] + self.weights[-1]
        return z

    def learn(self, sums: Float64[np.ndarray, "b k"], slopes: Float64[np.ndarray, "b"]) -> Float64[np.ndarray, "b k"]:
        """Return theta, the slopes of the losses in o. Then take the head's own SGD step.

        Args:
            sums: o of a batch.
            slopes: The slopes of the losses in z.
        """
        theta = slopes[:, None] * self.weights[:-1]
        theta *= sums > 0.0
        direction = self._objective.penalty_slope(self.weights)
        mean = slopes / len(slopes)
        direction[:-1] += mean @ np.maximum(sums, 0.0)
        direction[-1] += np.add.reduce(mean)
        self.weights -= self._step * direction
        return theta

    def penalty(self) -> float:
        """Return weight * sum_j g(w_j) of the head's weights."""
        return self._objective.penalty(self.weights)
