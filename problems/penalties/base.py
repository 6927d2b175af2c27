"""The interface of regularisers g in min f(x) + g(x): value, proximal map and distance to optimality.

Notation of Zhang, Hu, Johansson, "Composite Federated Learning with Heterogeneous Data" (2023):

    P_{eta g}(w) = argmin_u eta g(u) + 1/2 ||u - w||^2.

Rounding: a point is in a set, and a constraint is active, within 64 machine epsilons of the dtype of x, relative to the
size that each set's docstring names. Results of `prox`, and means of them, are well inside that.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


class Penalty(ABC):
    """A closed convex function g of a flat vector (d,), float32 or float64, on any device."""

    @abstractmethod
    def value(self, x: Tensor) -> float:
        """g at x (d,); `math.inf` outside its domain, up to rounding."""

    def prox(self, x: Tensor, step: float, *, out: Tensor | None = None) -> Tensor:
        """P_{step g}(x), (d,); for the indicator of a set the projection, whatever the step.

        Args:
            out: (d,) receives the result, and may be x; None makes a new tensor.

        Raises:
            ValueError: the step is negative or not finite.
        """
        if not 0 <= step < math.inf:
            raise ValueError(f"step must be >= 0 and finite, got {step}")
        return self._prox(x, step) if out is None else self._prox_into(out, x, step)

    @abstractmethod
    def _prox(self, x: Tensor, step: float) -> Tensor:
        """`prox` for a valid step, in a new tensor."""

    def _prox_into(self, out: Tensor, x: Tensor, step: float) -> Tensor:
        return out.copy_(self._prox(x, step))

    @abstractmethod
    def distance(self, x: Tensor, slope: Tensor) -> float:
        """dist(0, slope + dg(x)) for the gradient ``slope`` (d,) of the smooth part: 0 exactly at a solution.

        `math.inf` where g is infinite.
        """


@dataclass(frozen=True)
class NoPenalty(Penalty):
    """g = 0."""

    def value(self, x: Tensor) -> float:
        return 0.0

    def _prox(self, x: Tensor, step: float) -> Tensor:
        return x.clone()

    def distance(self, x: Tensor, slope: Tensor) -> float:
        return norm(slope)


def norm(x: Tensor) -> float:
    """||x||: see `length`."""
    return float(length(x))


def length(x: Tensor) -> Tensor:
    """||x|| as a float64 scalar on x's device. Its pairwise sums lose a few eps; `vector_norm` loses sqrt(d) eps."""
    return x.double().square().sum().sqrt()


def rounding(x: Tensor) -> float:
    """The relative tolerance of memberships and active constraints: 64 machine epsilons of x's dtype."""
    return 64 * torch.finfo(x.dtype).eps


def check_weight(weight: float) -> None:
    """Raise ValueError unless 0 <= weight < inf."""
    if not 0 <= weight < math.inf:
        raise ValueError(f"weight must be >= 0 and finite, got {weight}")
