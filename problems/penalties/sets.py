"""Constraints as penalties: g is 0 in a convex set and infinite outside, so the proximal map is the projection.

``distance(x, slope)`` is the distance of 0 from slope + dg(x). In a set, dg(x) is the normal cone at x: {0} in the
interior, and the outward normals at the boundary. The distance is infinite outside.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from problems.penalties.base import Penalty, length, norm, rounding


@dataclass(frozen=True)
class Box(Penalty):
    """lower <= x_i <= upper. Rounding is relative to max(1, |bound|).

    Raises:
        ValueError: lower > upper, a bound is NaN, no bound is finite, or a bound is infinite on the wrong side.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if math.isnan(self.lower) or math.isnan(self.upper):
            raise ValueError(f"lower and upper must be numbers, got [{self.lower}, {self.upper}]")
        if self.lower > self.upper or self.lower == math.inf or self.upper == -math.inf:
            raise ValueError(f"lower must be <= upper, got [{self.lower}, {self.upper}], an empty set")
        if math.isinf(self.lower) and math.isinf(self.upper):
            raise ValueError("lower or upper must be finite, got [-inf, inf]")

    def value(self, x: Float[Tensor, "d"]) -> float:
        below, above = self._slack(x)
        return 0.0 if bool(((x >= self.lower - below) & (x <= self.upper + above)).all()) else math.inf

    def _prox(self, x: Float[Tensor, "*stack d"], step: float) -> Float[Tensor, "*stack d"]:
        return x.clamp(self.lower, self.upper)

    def distance(self, x: Float[Tensor, "d"], slope: Float[Tensor, "d"]) -> float:
        if self.value(x) == math.inf:
            return math.inf
        below, above = self._slack(x)
        # an active bound cancels a slope that pushes against it
        left = torch.where(x <= self.lower + below, slope.clamp(max=0), slope)
        return norm(torch.where(x >= self.upper - above, left.clamp(min=0), left))

    def _slack(self, x: Float[Tensor, "d"]) -> tuple[float, float]:
        """Return the rounding allowed at the lower and at the upper bound."""
        bounds = (abs(bound) if math.isfinite(bound) else 1.0 for bound in (self.lower, self.upper))
        below, above = (rounding(x) * max(1.0, bound) for bound in bounds)
        return below, above


@dataclass(frozen=True, init=False)
class NonNegative(Box):
    """x_i >= 0."""

    def __init__(self) -> None:
        super().__init__(0.0, math.inf)


@dataclass(frozen=True)
class L2Ball(Penalty):
    """||x|| <= radius. Rounding is relative to the radius. With radius 0, the set is the point 0.

    Raises:
        ValueError: radius < 0, NaN or infinite.
    """

    radius: float

    def __post_init__(self) -> None:
        if not 0 <= self.radius < math.inf:
            raise ValueError(f"radius must be >= 0 and finite (below 0 is an empty set), got {self.radius}")

    def value(self, x: Float[Tensor, "d"]) -> float:
        return 0.0 if norm(x) <= self.radius * (1 + rounding(x)) else math.inf

    def _prox(self, x: Float[Tensor, "d"], step: float) -> Float[Tensor, "d"]:
        floor = max(self.radius, torch.finfo(x.dtype).tiny)
        scale: Tensor = self.radius / length(x).clamp(min=floor)
        return x * scale

    def distance(self, x: Float[Tensor, "d"], slope: Float[Tensor, "d"]) -> float:
        if self.value(x) == math.inf:
            return math.inf
        if self.radius == 0:
            return 0.0
        radius = norm(x)
        if radius < self.radius * (1 - rounding(x)):
            return norm(slope)
        # on the sphere, the normal cone {c x: c >= 0} cancels a slope that points inwards
        outward = x / radius
        return norm(slope + (-slope @ outward).clamp(min=0) * outward)


@dataclass(frozen=True)
class Simplex(Penalty):
    """x >= 0 with sum x = total. The projection uses sorting (Held, Wolfe, Crowder 1974; Duchi et al. 2008, figure 1).

    Rounding is relative to the total for membership, and to the largest entry for active constraints x_i >= 0.

    Raises:
        ValueError: total <= 0, NaN or infinite.
    """

    total: float

    def __post_init__(self) -> None:
        if not 0 < self.total < math.inf:
            raise ValueError(f"total must be > 0 and finite, got {self.total}")

    def value(self, x: Float[Tensor, "d"]) -> float:
        slack = self.total * rounding(x)
        near = abs(float(x.sum(dtype=torch.float64)) - self.total) <= slack
        return 0.0 if near and bool((x >= -slack).all()) else math.inf

    def _prox(self, x: Float[Tensor, "d"], step: float) -> Float[Tensor, "d"]:
        shifted = x - x.max()  # affects rounding only: entries that stay are now within ``total`` of 0
        entries = (shifted - _level(shifted.new_full((), -self.total), 0, shifted)).clamp(min=0)
        return entries * (self.total / entries.sum())

    def distance(self, x: Float[Tensor, "d"], slope: Float[Tensor, "d"]) -> float:
        if self.value(x) == math.inf:
            return math.inf
        push = -slope.double()
        zero = x <= rounding(x) * x.max()
        # distance^2 = min over mu of sum_{x_i > 0} (push_i - mu)^2 + sum_{x_i = 0} (push_i - mu)_+^2
        mu = _level(push[~zero].sum(), int((~zero).sum()), push[zero])
        residual = push - mu
        return norm(torch.where(zero, residual.clamp(min=0), residual))


def _level(total: Float[Tensor, ""], count: int, values: Float[Tensor, "some"]) -> Float[Tensor, ""]:
    """Return the largest over k of (total + the k largest values) / (count + k), with k > 0 if count is 0.

    The k largest values are then the values above the level, since adding a value only raises means below it.
    """
    ordered = torch.sort(values, descending=True).values
    counts = torch.arange(1, len(values) + 1, dtype=values.dtype, device=values.device) + count
    means = (torch.cumsum(ordered, 0) + total) / counts
    return means.max() if count == 0 else torch.cat([means, total[None] / count]).max()
