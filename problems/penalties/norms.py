"""The l1 norm, the squared l2 norm and the elastic net; norms of groups of coordinates and of singular values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from problems.penalties.base import Penalty, check_weight, norm


@dataclass(frozen=True)
class _Weighted(Penalty):
    """Base of the penalties with a weight >= 0.

    Raises:
        ValueError: The weight is negative or not finite.
    """

    weight: float

    def __post_init__(self) -> None:
        check_weight(self.weight)


@dataclass(frozen=True)
class L1(_Weighted):
    """weight * ||x||_1 (Tibshirani 1996). The proximal map is soft thresholding.

    Example:
        >>> L1(0.5).value(torch.tensor([3.0, -4.0]))
        3.5
    """

    def value(self, x: Float[Tensor, "d"]) -> float:
        return self.weight * float(x.abs().sum(dtype=torch.float64))

    def _prox(self, x: Float[Tensor, "*stack d"], step: float) -> Float[Tensor, "*stack d"]:
        return functional.softshrink(x, step * self.weight)

    def _prox_into(
        self, out: Float[Tensor, "*stack d"], x: Float[Tensor, "*stack d"], step: float
    ) -> Float[Tensor, "*stack d"]:
        return functional.softshrink(x, step * self.weight, out=out)  # type: ignore[call-arg]  # not in the stub

    def distance(self, x: Float[Tensor, "d"], slope: Float[Tensor, "d"]) -> float:
        at_zero = (slope.abs() - self.weight).clamp(min=0)
        return norm(torch.where(x == 0, at_zero, slope + self.weight * x.sign()))


@dataclass(frozen=True)
class SquaredL2(_Weighted):
    """weight / 2 * ||x||^2."""

    def value(self, x: Float[Tensor, "d"]) -> float:
        return self.weight / 2 * norm(x) ** 2

    def _prox(self, x: Float[Tensor, "*stack d"], step: float) -> Float[Tensor, "*stack d"]:
        return x / (1 + step * self.weight)

    def distance(self, x: Float[Tensor, "d"], slope: Float[Tensor, "d"]) -> float:
        return norm(slope + self.weight * x)


@dataclass(frozen=True)
class ElasticNet(_Weighted):
    """weight * (ratio * ||x||_1 + (1 - ratio) / 2 * ||x||^2) (Zou & Hastie 2005, scaled as in scikit-learn).

    Raises:
        ValueError: The ratio is outside [0, 1].
    """

    ratio: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.ratio <= 1:
            raise ValueError(f"ratio must be in [0, 1], got {self.ratio}")

    @property
    def _parts(self) -> tuple[L1, SquaredL2]:
        return L1(self.weight * self.ratio), SquaredL2(self.weight * (1 - self.ratio))

    def value(self, x: Float[Tensor, "d"]) -> float:
        l1, l2 = self._parts
        return l1.value(x) + l2.value(x)

    def _prox(self, x: Float[Tensor, "*stack d"], step: float) -> Float[Tensor, "*stack d"]:
        l1, l2 = self._parts
        return l2.prox(l1.prox(x, step), step)

    def distance(self, x: Float[Tensor, "d"], slope: Float[Tensor, "d"]) -> float:
        l1, l2 = self._parts
        return l1.distance(x, slope + l2.weight * x)


class GroupLasso(Penalty):
    """weight * sum_g sqrt(size of g) * ||x_g|| over disjoint groups (Yuan & Lin 2006, equation (2.1)).

    Args:
        weight: A factor >= 0.
        groups: The group number of each coordinate, (d,): any integers in any order.

    Raises:
        ValueError: weight < 0, groups are not (d,) integers with d > 0, or a later x has another length.
    """

    def __init__(self, weight: float, groups: Tensor | Sequence[int]) -> None:
        check_weight(weight)
        numbers = torch.as_tensor(groups)
        if numbers.ndim != 1 or len(numbers) == 0 or numbers.is_floating_point() or numbers.dtype == torch.bool:
            got = f"{numbers.dtype} of shape {tuple(numbers.shape)}"
            raise ValueError(f"groups must be (d,) integers, d > 0, got {got}")
        self.weight = weight
        _, group, sizes = torch.unique(numbers, return_inverse=True, return_counts=True)
        order = torch.argsort(group, stable=True)
        self._tensors = group, order, sizes, weight * sizes.double().sqrt()

    def value(self, x: Float[Tensor, "d"]) -> float:
        norms, weights, _ = self._norms(x)
        return float((weights * norms).sum(dtype=torch.float64))

    def _prox(self, x: Float[Tensor, "d"], step: float) -> Float[Tensor, "d"]:
        norms, weights, group = self._norms(x)
        # a group of norm 0 divides by `tiny`: any step > 0 gives 0, step 0 the identity
        scale = (1 - step * weights / norms.clamp(min=torch.finfo(x.dtype).tiny)).clamp(min=0)
        return x * scale[group]

    def distance(self, x: Float[Tensor, "d"], slope: Float[Tensor, "d"]) -> float:
        norms, weights, group = self._norms(x)
        direction = x / norms.clamp(min=torch.finfo(x.dtype).tiny)[group]
        smooth, _, _ = self._norms(slope + weights[group] * direction)
        at_zero, _, _ = self._norms(slope)
        by_group = torch.where(norms > 0, smooth, (at_zero - weights).clamp(min=0))
        return norm(by_group)

    def _norms(
        self, x: Float[Tensor, "d"]
    ) -> tuple[Float[Tensor, "groups"], Float[Tensor, "groups"], Int64[Tensor, "d"]]:
        """Return the norm of each group, the groups' weights and the group of each coordinate."""
        if self._tensors[0].device != x.device:
            group, order, sizes, weights = self._tensors
            self._tensors = group.to(x.device), order.to(x.device), sizes.to(x.device), weights.to(x.device)
        group, order, sizes, weights = self._tensors
        if x.shape != group.shape:
            raise ValueError(f"groups are of {len(group)} coordinates, got x of shape {tuple(x.shape)}")
        # index_add on a GPU would sum in an arbitrary order
        squares: Tensor = torch.segment_reduce((x * x)[order], "sum", lengths=sizes, unsafe=True)
        return squares.sqrt(), weights.to(x.dtype), group


class NuclearNorm(Penalty):
    """weight * the sum of the singular values of x as a matrix.

    The proximal map applies soft thresholding to the singular values (Cai, Candes, Shen 2010, theorem 2.1). A singular
    value counts as zero up to 8 * max(rows, columns) machine epsilons of the largest singular value. The distance is
    accurate to about weight * eps * the ratio of the largest to the smallest nonzero singular value.

    Args:
        weight: A factor >= 0.
        shape: The shape of the tensor in the flat x; (out, a, b, ...) is the matrix (out, a b ...).

    Raises:
        ValueError: weight < 0, there are fewer than two axes or an empty axis, or a later x has another length.
    """

    def __init__(self, weight: float, shape: Sequence[int]) -> None:
        check_weight(weight)
        if len(shape) < 2 or min(shape) < 1:
            raise ValueError(f"shape must have two axes or more, all >= 1, got {tuple(shape)}")
        self.weight = weight
        self.shape = (shape[0], math.prod(shape[1:]))

    def value(self, x: Float[Tensor, "d"]) -> float:
        matrix = self._matrix(x)
        if not torch.isfinite(matrix).all():
            return math.nan
        return self.weight * float(torch.linalg.svdvals(matrix).sum(dtype=torch.float64))

    def _prox(self, x: Float[Tensor, "d"], step: float) -> Float[Tensor, "d"]:
        matrix = self._matrix(x)
        if step * self.weight == 0:
            return x.clone()
        if not torch.isfinite(matrix).all():  # a decomposition would raise
            return torch.full_like(x, math.nan)
        left, singular, right = torch.linalg.svd(matrix, full_matrices=False)
        shrunk: Tensor = (left * functional.softshrink(singular, step * self.weight)) @ right
        return shrunk.reshape(-1)

    def distance(self, x: Float[Tensor, "d"], slope: Float[Tensor, "d"]) -> float:
        matrix, gradient = self._matrix(x), self._matrix(slope)
        if not (torch.isfinite(matrix).all() and torch.isfinite(gradient).all()):
            return math.nan
        left, singular, right = torch.linalg.svd(matrix, full_matrices=False)
        threshold = 8 * max(self.shape) * torch.finfo(x.dtype).eps * singular[0]
        rank = int((singular > threshold).sum())
        left, right = left[:, :rank], right[:rank]
        # dg = {weight (U V' + Z): U'Z = 0, ZV = 0, ||Z||_2 <= 1}: Z cancels slope outside both spaces, up to weight
        off = gradient - left @ (left.T @ gradient)
        off = off - (off @ right.T) @ right
        tangent = gradient - off + self.weight * left @ right
        excess = (torch.linalg.svdvals(off) - self.weight).clamp(min=0)
        return math.hypot(norm(tangent), norm(excess))

    def _matrix(self, x: Float[Tensor, "d"]) -> Float[Tensor, "rows columns"]:
        if x.shape != (math.prod(self.shape),):
            raise ValueError(f"shape {self.shape} has {math.prod(self.shape)} entries, got x of {tuple(x.shape)}")
        return x.view(self.shape)
