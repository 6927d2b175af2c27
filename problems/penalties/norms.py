"""The l1 norm, the squared l2 norm and the elastic net."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from problems.penalties.base import Penalty, check_weight, norm


@dataclass(frozen=True)
class _Weighted(Penalty):
    """A penalty with a weight >= 0; any other weight is a ValueError."""

    weight: float

    def __post_init__(self) -> None:
        check_weight(self.weight)


@dataclass(frozen=True)
class L1(_Weighted):
    """weight * ||x||_1 (Tibshirani 1996); its proximal map is soft thresholding."""

    def value(self, x: Tensor) -> float:
        return self.weight * float(x.abs().sum(dtype=torch.float64))

    def _prox(self, x: Tensor, step: float) -> Tensor:
        return functional.softshrink(x, step * self.weight)

    def _prox_into(self, out: Tensor, x: Tensor, step: float) -> Tensor:
        return functional.softshrink(x, step * self.weight, out=out)  # type: ignore[call-arg]  # not in the stub

    def distance(self, x: Tensor, slope: Tensor) -> float:
        at_zero = (slope.abs() - self.weight).clamp(min=0)
        return norm(torch.where(x == 0, at_zero, slope + self.weight * x.sign()))


@dataclass(frozen=True)
class SquaredL2(_Weighted):
    """weight / 2 * ||x||^2."""

    def value(self, x: Tensor) -> float:
        return self.weight / 2 * norm(x) ** 2

    def _prox(self, x: Tensor, step: float) -> Tensor:
        return x / (1 + step * self.weight)

    def distance(self, x: Tensor, slope: Tensor) -> float:
        return norm(slope + self.weight * x)


@dataclass(frozen=True)
class ElasticNet(_Weighted):
    """weight * (ratio * ||x||_1 + (1 - ratio) / 2 * ||x||^2) (Zou & Hastie 2005, scaled as in scikit-learn).

    Raises:
        ValueError: ratio outside [0, 1].
    """

    ratio: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.ratio <= 1:
            raise ValueError(f"ratio must be in [0, 1], got {self.ratio}")

    @property
    def _parts(self) -> tuple[L1, SquaredL2]:
        return L1(self.weight * self.ratio), SquaredL2(self.weight * (1 - self.ratio))

    def value(self, x: Tensor) -> float:
        l1, l2 = self._parts
        return l1.value(x) + l2.value(x)

    def _prox(self, x: Tensor, step: float) -> Tensor:
        l1, l2 = self._parts
        return l2.prox(l1.prox(x, step), step)

    def distance(self, x: Tensor, slope: Tensor) -> float:
        l1, l2 = self._parts
        return l1.distance(x, slope + l2.weight * x)
