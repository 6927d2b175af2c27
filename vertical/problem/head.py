"""The head: the last layer of a model whose parties have networks, z = v . relu(o) + c.

o (k,) is the sum of the parties' network outputs for a row, z the prediction. The only active party has the head and
trains it in each update.
"""

import math

import numpy as np
from jaxtyping import Float64

from vertical.problem.objectives import Array, Objective


class Head:
    """The layer that turns the k sums of a row into a prediction.

    Args:
        width: The number k of sums per row.
        seed: The seed of the initial weights, which are drawn like the weights of `torch.nn.Linear`.
        objective: The objective whose regulariser the updates apply.
        step: The learning rate.

    Attributes:
        weights: The (k + 1,) weights, v and c. Updates change the array in place.
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
            need = f"a head of {len(self.weights) - 1} sums must have {len(self.weights)} finite weights"
            raise ValueError(f"{need}, got shape {weights.shape}: use the model of the start of the run")
        self.weights[:] = weights

    def predict(self, sums: Float64[np.ndarray, "b k"]) -> Float64[np.ndarray, "b"]:
        """Return the predictions z of rows, given their sums o."""
        z: Array = np.maximum(sums, 0.0) @ self.weights[:-1] + self.weights[-1]
        return z

    def learn(self, sums: Float64[np.ndarray, "b k"], slopes: Float64[np.ndarray, "b"]) -> Float64[np.ndarray, "b k"]:
        """Return theta, the derivatives of the losses with respect to o, and take the head's own SGD step.

        Args:
            sums: The sums o of a batch.
            slopes: The derivatives of the losses with respect to z.
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
