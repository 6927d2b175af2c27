"""The objectives of vertical runs: f(w) = 1/n sum_i loss(z_i, y_i) + weight * sum_j g(w_j), with predictions z = X w.

g is the regulariser. The numbers are the equations of VFB2's paper (`vertical.problem.blocks.base` has its title):

| name | equation | loss(z, y) | y | g(w) |
|---|---|---|---|---|
| `logistic` | (13) | log(1 + exp(-y z)) | -1, +1 | w^2 / 2 |
| `nonconvex-logistic` | (14) | log(1 + exp(-y z)) | -1, +1 | w^2 / (1 + w^2) / 2 |
| `ridge` | (17) | (z - y)^2, without 1/2 | real | w^2 / 2 |
| `robust` | (18) | log((y - z)^2 / 2 + 1) | real | w^2 / 2, weight 0 |
| `softmax` | none | log(sum_j exp(z_j)) - z_y, of z (k,) | 0 to k - 1 | w^2 / 2 |
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from scipy.special import expit, logsumexp, softmax

Array = NDArray[np.float64]
# a function of predictions z and labels y that returns a number for each row; z and the slopes of softmax are (n, k)
OfRows = Callable[[Float64[np.ndarray, "n *k"], Float64[np.ndarray, "n"]], Float64[np.ndarray, "n *_"]]

LOGISTIC, NONCONVEX_LOGISTIC, RIDGE, ROBUST = "logistic", "nonconvex-logistic", "ridge", "robust"
PROBLEMS: tuple[str, ...] = (LOGISTIC, NONCONVEX_LOGISTIC, RIDGE, ROBUST)
"""The problems with one prediction per row, which linear models support."""
SOFTMAX = "softmax"
DEFAULT_WEIGHT = 1e-4


@dataclass(frozen=True)
class Loss:
    """A loss: its values, and its first (slopes) and second (curvatures) derivatives in z, for each row."""

    values: OfRows
    slopes: OfRows
    curvatures: OfRows
    curvature_bound: float
    """The largest second derivative in z, over all z and y."""
    classification: bool


_LOGISTIC = Loss(
    values=lambda z, y: np.logaddexp(0.0, -y * z),
    slopes=lambda z, y: -y * expit(-y * z),
    curvatures=lambda z, y: expit(z) * expit(-z),
    curvature_bound=0.25,
    classification=True,
)
_SQUARED = Loss(
    values=lambda z, y: np.square(z - y),
    slopes=lambda z, y: 2.0 * (z - y),
    curvatures=lambda z, y: np.full(len(z), 2.0),
    curvature_bound=2.0,
    classification=False,
)
_ROBUST = Loss(
    values=lambda z, y: np.log1p(np.square(z - y) / 2.0),
    slopes=lambda z, y: (z - y) / (np.square(z - y) / 2.0 + 1.0),
    curvatures=lambda z, y: (1.0 - np.square(z - y) / 2.0) / np.square(1.0 + np.square(z - y) / 2.0),
    curvature_bound=1.0,
    classification=False,
)


def _excess(z: Float64[np.ndarray, "n k"], y: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n k"]:
    """Return the slopes of softmax: the probability of each class, minus 1 for the row's class."""
    slopes: Array = softmax(z, axis=1)
    slopes[np.arange(len(y)), y.astype(np.int64)] -= 1.0
    return slopes


_SOFTMAX = Loss(
    values=lambda z, y: logsumexp(z, axis=1) - z[np.arange(len(y)), y.astype(np.int64)],
    slopes=_excess,
    curvatures=lambda z, y: softmax(z, axis=1) * (1.0 - softmax(z, axis=1)),
    curvature_bound=0.5,
    classification=False,
)
_LOSSES = {SOFTMAX: _SOFTMAX, LOGISTIC: _LOGISTIC, NONCONVEX_LOGISTIC: _LOGISTIC, RIDGE: _SQUARED, ROBUST: _ROBUST}


@dataclass(frozen=True)
class Objective:
    """A problem of this module's table, with its weight.

    Attributes:
        name: An element of `PROBLEMS`, or `SOFTMAX`.
        weight: The regulariser's weight, >= 0 and finite.
        tilt: The factor t of `correct_for_flips`, for labels that are randomly inverted (*flipped*). 0: no flips.

    Raises:
        ValueError: The name, the weight or the tilt is not allowed.
    """

    name: str
    weight: float
    tilt: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in _LOSSES:
            raise ValueError(f"problem {self.name!r} is not known; one of: {', '.join((*PROBLEMS, SOFTMAX))}")
        if not 0.0 <= self.weight < math.inf:
            raise ValueError(f"the weight of the regulariser must be >= 0 and finite, got {self.weight}")
        if not 0.0 <= self.tilt < math.inf:
            raise ValueError(f"the tilt must be >= 0 and finite, got {self.tilt}")
        if self.tilt and not self.classification:
            raise ValueError(f"problem {self.name!r} must have two classes for a tilt above 0, which corrects flips")

    @property
    def _loss(self) -> Loss:
        return _LOSSES[self.name]

    @property
    def classification(self) -> bool:
        """Whether labels are -1 and +1."""
        return self._loss.classification

    @property
    def multiclass(self) -> bool:
        """Whether labels are class indices, and a row has a prediction for each class."""
        return self.name == SOFTMAX

    @property
    def curvature_bound(self) -> float:
        """The largest second derivative of the loss in z. The correction does not change it."""
        return self._loss.curvature_bound

    @property
    def linear_decay(self) -> bool:
        """Whether the regulariser's slope is weight * w, so it shrinks weights by a constant factor per update."""
        return self.name != NONCONVEX_LOGISTIC or self.weight == 0.0

    def losses(self, z: Float64[np.ndarray, "n *k"], y: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
        """Return the loss of each row.

        Args:
            z: The predictions, (n, k) for `softmax`.
            y: The labels, see `check_labels`.
        """
        values = self._loss.values(z, y)
        return values - self.tilt * y * z if self.tilt else values

    def slopes(self, z: Float64[np.ndarray, "n *k"], y: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n *k"]:
        """Return theta, the derivatives of the losses in z.

        Args:
            z: The predictions.
            y: The labels.
        """
        slopes = self._loss.slopes(z, y)
        return slopes - self.tilt * y if self.tilt else slopes

    def curvatures(self, z: Float64[np.ndarray, "n"], y: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
        """Return the second derivatives of the losses in z; negative for `robust` where |z - y| > sqrt(2).

        Args:
            z: The predictions.
            y: The labels.
        """
        return self._loss.curvatures(z, y)

    def penalty(self, weights: Float64[np.ndarray, "d"]) -> float:
        """Return weight * sum_j g(w_j) of a block."""
        if not self.weight:
            return 0.0
        squares = np.square(weights)
        if not self.linear_decay:
            squares /= 1.0 + squares
        return self.weight * 0.5 * float(squares.sum())

    def penalty_slope(self, weights: Float64[np.ndarray, "d"]) -> Float64[np.ndarray, "d"]:
        """Return weight * g'(w_j)."""
        if self.linear_decay:
            slope: Array = self.weight * weights
        else:
            slope = self.weight * weights / np.square(1.0 + weights * weights)
        return slope

    def penalty_curvature(self, weights: Float64[np.ndarray, "d"]) -> Float64[np.ndarray, "d"]:
        """Return weight * g''(w_j). It is negative for `nonconvex-logistic` where w_j^2 > 1/3."""
        if self.linear_decay:
            return np.full(len(weights), self.weight)
        squares = np.square(weights)
        curvature: Array = self.weight * (1.0 - 3.0 * squares) / (1.0 + squares) ** 3
        return curvature

    def check_labels(self, labels: Array) -> None:
        """Check that labels fit the problem.

        Raises:
            ValueError: The labels are not (n,), not finite, not -1 or +1 for a classification, or not indices for
                `softmax`.
        """
        if labels.ndim != 1:
            raise ValueError(f"labels must be (n,), got shape {labels.shape}")
        if not np.isfinite(labels).all():
            raise ValueError(
                f"{int((~np.isfinite(labels)).sum()):,} of {len(labels):,} labels are not finite: drop their rows"
            )
        if self.classification and not (np.abs(labels) == 1.0).all():
            wrong = np.unique(labels[np.abs(labels) != 1.0])[:5].tolist()
            raise ValueError(f"labels of problem {self.name!r} must be -1 or +1, got {', '.join(map(str, wrong))}")
        if self.multiclass and not (np.isin(labels % 1.0, 0.0) & (labels >= 0.0)).all():
            raise ValueError("labels of problem 'softmax' must be indices of classes, 0 or more")


def make_objective(name: str, weight: float | None = None) -> Objective:
    """Return a problem.

    Args:
        name: An element of `PROBLEMS`, or `SOFTMAX`.
        weight: The regulariser's weight. None: 1e-4, and 0 for `robust`, as in the paper.

    Raises:
        ValueError: The name is unknown, or the weight is below 0 or not finite.
    """
    if weight is None:
        weight = 0.0 if name == ROBUST else DEFAULT_WEIGHT
    return Objective(name, weight)


def correct_for_flips(objective: Objective, epsilon: float) -> Objective:
    """Return the objective whose loss is unbiased if each label is inverted with probability r = 1 / (1 + e^epsilon).

    Inverting (*flipping*) labels with this probability is randomised response, and gives the labels epsilon
    differential privacy. The unbiased loss is ((1 - r) l(z, y) - r l(z, -y)) / (1 - 2 r), by lemma 1 of Natarajan,
    Dhillon, Ravikumar, Tewari, "Learning with Noisy Labels" (NeurIPS 2013). The logistic loss has
    l(z, -y) = l(z, y) + y z. The unbiased loss is therefore l(z, y) - t y z with t = r / (1 - 2 r) =
    1 / (e^epsilon - 1). It is convex and has the same curvature.

    Args:
        objective: The objective of a classification, without a correction.
        epsilon: The epsilon, > 0. Infinity corrects nothing.

    Raises:
        ValueError: The objective does not have two classes or is corrected already, or epsilon is not above 0.
    """
    if not epsilon > 0.0:
        raise ValueError(f"epsilon must be > 0, got {epsilon}")
    if not objective.classification:
        raise ValueError(f"problem {objective.name!r} must have two classes for a correction of flipped labels")
    if objective.tilt:
        raise ValueError("the objective is corrected already: flip labels once, and correct once")
    growth = math.expm1(epsilon) if epsilon < 700.0 else math.inf
    return replace(objective, tilt=1.0 / growth)
