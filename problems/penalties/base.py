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
from jaxtyping import Float, Float64
from torch import Tensor


class Penalty(ABC):
    """A closed convex function g of a flat vector, float32 or float64, on any device.

    The proximal map of a penalty that treats every coordinate by itself takes a stack of vectors too.
    """

    @abstractmethod
    def value(self, x: Float[Tensor, "d"]) -> float:
        """g at x; `math.inf` outside its domain, up to rounding."""

    def prox(
        self, x: Float[Tensor, "*stack d"], step: float, *, out: Float[Tensor, "*stack d"] | None = None
    ) -> Float[Tensor, "*stack d"]:
        """P_{step g}(x); for the indicator of a set the projection, whatever the step.

        Args:
            x: the point.
            step: >= 0 and finite.
            out: receives the result, and may be x; None makes a new tensor.

        Raises:
            ValueError: the step is negative or not finite.
        """
        if not 0 <= step < math.inf:
            raise ValueError(f"step must be >= 0 and finite, got {step}")
        return self._prox(x, step) if out is None else self._prox_into(out, x, step)

    @abstractmethod
    def _prox(self, x: Float[Tensor, "*stack d"], step: float) -> Float[Tensor, "*stack d"]:
        """`prox` for a valid step, in a new tensor."""

    def _prox_into(
        self, out: Float[Tensor, "*stack d"], x: Float[Tensor, "*stack d"], step: float
    ) -> Float[Tensor, "*stack d"]:
        return out.copy_(self._prox(x, step))

    @abstractmethod
    def distance(self, x: Float[Tensor, "d"], slope: Float[Tensor, "d"]) -> float:
        """dist(0, slope + dg(x)): 0 exactly at a solution, `math.inf` where g is infinite.

        Args:
            x: the point.
            slope: the gradient of the smooth part there.
        """


@dataclass(frozen=True)
class NoPenalty(Penalty):
    """g = 0."""

    def value(self, x: Float[Tensor, "d"]) -> float:
        return 0.0

    def _prox(self, x: Float[Tensor, "*stack d"], step: float) -> Float[Tensor, "*stack d"]:
        return x.clone()

    def distance(self, x: Float[Tensor, "d"], slope: Float[Tensor, "d"]) -> float:
        return norm(slope)


def norm(x: Float[Tensor, "*shape"]) -> float:
    """||x||: see `length`."""
    return float(length(x))


def length(x: Float[Tensor, "*shape"]) -> Float64[Tensor, ""]:
    """||x|| on x's device. Its pairwise sums lose a few eps; `vector_norm` loses sqrt(d) eps."""
    return x.double().square().sum().sqrt()


def rounding(x: Float[Tensor, "*shape"]) -> float:
    """The relative tolerance of memberships and active constraints: 64 machine epsilons of x's dtype."""
    return 64 * torch.finfo(x.dtype).eps


def check_weight(weight: float) -> None:
    """Raise ValueError unless 0 <= weight < inf."""
    if not 0 <= weight < math.inf:
        raise ValueError(f"weight must be >= 0 and finite, got {weight}")
