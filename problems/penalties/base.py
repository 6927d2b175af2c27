"""`Penalty`, the interface of regularisers g in min f(x) + g(x): value, proximal map and distance to optimality.

Notation of Zhang, Hu, Johansson, "Composite Federated Learning with Heterogeneous Data" (2023):

    P_{eta g}(w) = argmin_u eta g(u) + 1/2 ||u - w||^2.

Rounding: memberships in sets and active constraints have a tolerance of 64 machine epsilons of the dtype of x, relative
to the size in each set's docstring. The results of `prox`, and means of such results, are well within the tolerance.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor


class Penalty(ABC):
    """A closed convex function g of a flat vector, float32 or float64, on any device.

    The proximal map of a penalty that acts on each coordinate separately also accepts a stack of vectors.
    """

    @abstractmethod
    def value(self, x: Float[Tensor, "d"]) -> float:
        """Return g at x; `math.inf` outside its domain, up to rounding."""

    def prox(
        self, x: Float[Tensor, "*stack d"], step: float, *, out: Float[Tensor, "*stack d"] | None = None
    ) -> Float[Tensor, "*stack d"]:
        """Return P_{step g}(x). For the indicator of a set this is the projection, for any step.

        Args:
            x: The point.
            step: The step, >= 0 and finite.
            out: The tensor for the result, which may be x. None: a new tensor.

        Raises:
            ValueError: The step is negative or not finite.
        """
        if not 0 <= step < math.inf:
            raise ValueError(f"step must be >= 0 and finite, got {step}")
        return self._prox(x, step) if out is None else self._prox_into(out, x, step)

    @abstractmethod
    def _prox(self, x: Float[Tensor, "*stack d"], step: float) -> Float[Tensor, "*stack d"]:
        """Return `prox` for a valid step, in a new tensor."""

    def _prox_into(
        self, out: Float[Tensor, "*stack d"], x: Float[Tensor, "*stack d"], step: float
    ) -> Float[Tensor, "*stack d"]:
        return out.copy_(self._prox(x, step))

    @abstractmethod
    def distance(self, x: Float[Tensor, "d"], slope: Float[Tensor, "d"]) -> float:
        """Return the distance of 0 from slope + dg(x), with dg the subdifferential of g.

        The distance is 0 exactly at a solution of min f(x) + g(x), and `math.inf` if g is infinite.

        Args:
            x: The point.
            slope: The gradient of the smooth part at x.
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
    """Return the Euclidean norm of x, computed by `length`."""
    return float(length(x))


def length(x: Float[Tensor, "*shape"]) -> Float64[Tensor, ""]:
    """Return ||x|| on x's device, accurate to a few eps; `torch.linalg.vector_norm` loses up to sqrt(d) eps."""
    return x.double().square().sum().sqrt()


def rounding(x: Float[Tensor, "*shape"]) -> float:
    """Return the relative tolerance of memberships and active constraints: 64 machine epsilons of x's dtype."""
    return 64 * torch.finfo(x.dtype).eps


def check_weight(weight: float) -> None:
    """Raise ValueError unless 0 <= weight < inf."""
    if not 0 <= weight < math.inf:
        raise ValueError(f"weight must be >= 0 and finite, got {weight}")
