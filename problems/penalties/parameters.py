"""Penalties on selected parameters of a flat vector, and the selection of parameters by name."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from problems.models.vectors import Layout
from problems.penalties.base import Penalty, norm

Indices = slice | Tensor


class OnParameters(Penalty):
    """The sum of penalties on disjoint parts of a vector. Coordinates outside all parts are not penalised.

    Args:
        dim: d, the vector's length.
        parts: Pairs of coordinates and a penalty. The coordinates are a `slice` with step 1 inside [0, d), or a (k,)
            LongTensor with k > 0.

    Raises:
        ValueError: A part is empty, out of range or overlaps another part. Methods raise it if x has a wrong length.
    """

    def __init__(self, dim: int, parts: Sequence[tuple[Indices, Penalty]]) -> None:
        self.dim = dim
        self.parts = [(_check(indices, dim), penalty) for indices, penalty in parts]
        counts = torch.zeros(dim, dtype=torch.int64)
        for number, (indices, _) in enumerate(self.parts):
            where = torch.arange(indices.start, indices.stop) if isinstance(indices, slice) else indices.cpu()
            counts.index_add_(0, where, torch.ones_like(where))
            if int(counts.max()) > 1:
                twice = int(counts.argmax())
                raise ValueError(f"parts must be disjoint, got coordinate {twice} once more in part {number}")
        self.free = runs(counts == 0)
        self._device = torch.device("cpu")

    def value(self, x: Float[Tensor, "d"]) -> float:
        self._to(x)
        return sum((penalty.value(x[indices]) for indices, penalty in self.parts), 0.0)

    def _prox(self, x: Float[Tensor, "d"], step: float) -> Float[Tensor, "d"]:
        return self._prox_into(torch.empty_like(x), x, step)

    def _prox_into(self, out: Float[Tensor, "d"], x: Float[Tensor, "d"], step: float) -> Float[Tensor, "d"]:
        self._to(x)
        for indices, penalty in self.parts:
            if isinstance(indices, slice):
                penalty.prox(x[indices], step, out=out[indices])
            else:
                out[indices] = penalty.prox(x[indices], step)
        if out is not x:
            for free in self.free:
                out[free] = x[free]
        return out

    def distance(self, x: Float[Tensor, "d"], slope: Float[Tensor, "d"]) -> float:
        self._to(x)
        parts = [penalty.distance(x[indices], slope[indices]) for indices, penalty in self.parts]
        return math.hypot(*(norm(slope[free]) for free in self.free), *parts)

    def _to(self, x: Float[Tensor, "d"]) -> None:
        """Check the length of x, and move the indices to its device."""
        if x.shape != (self.dim,):
            raise ValueError(f"expected x of shape ({self.dim},), got {tuple(x.shape)}")
        if x.device != self._device:
            self._device = x.device
            self.parts = [(_move(indices, x.device), penalty) for indices, penalty in self.parts]


def runs(mask: Bool[Tensor, "d"]) -> list[slice]:
    """Return the slices of consecutive True entries of a mask."""
    edges = torch.diff(mask.int(), prepend=torch.zeros(1), append=torch.zeros(1))
    starts, stops = (torch.nonzero(edges == step).flatten().tolist() for step in (1, -1))
    return [slice(start, stop) for start, stop in zip(starts, stops, strict=True)]


def choose_parameters(layout: Layout, parameters: str) -> list[bool]:
    """Return whether each parameter of the layout is selected.

    Args:
        layout: See `select_coordinates`.
        parameters: See `select_coordinates`.

    Raises:
        ValueError: See `select_coordinates`.
    """
    known = [name for name, _ in layout]
    if parameters == "all":
        return [True] * len(known)
    if parameters == "auto":
        matrices = [len(shape) >= 2 for _, shape in layout]
        if not any(matrices):
            raise ValueError(
                "parameters='auto' selects only parameters of two dimensions or more, and the model has none; "
                f"allowed are 'all' and names of: {', '.join(known)}"
            )
        return matrices
    selected = [False] * len(known)
    for wanted in (part.strip() for part in parameters.split(",")):
        hits = [name == wanted or (wanted.endswith(".") and name.startswith(wanted)) for name in known]
        if not any(hits):
            raise ValueError(
                f"parameters: got {wanted!r}, allowed are 'auto', 'all' and names, or a prefix of names ending in "
                f"'.', separated by commas, of: {', '.join(known)}"
            )
        selected = [before or hit for before, hit in zip(selected, hits, strict=True)]
    return selected


def select_coordinates(layout: Layout, parameters: str) -> Bool[Tensor, "d"]:
    """Mark the coordinates of a flat vector that ``parameters`` selects.

    Args:
        layout: The names and shapes of the consecutive parts of the vector.
        parameters: "auto" selects parameters of at least two dimensions, so no biases or batch-norm weights. "all"
            selects all. Otherwise names separated by commas. A name that ends in "." is a prefix and selects a
            submodule.

    Raises:
        ValueError: A name is unknown, or "auto" selects nothing.
    """
    sizes = [math.prod(shape) for _, shape in layout]
    return torch.tensor(choose_parameters(layout, parameters), dtype=torch.bool).repeat_interleave(torch.tensor(sizes))


def on_parameters(dim: int, parts: Sequence[tuple[Indices, Penalty]]) -> Penalty:
    """Return `OnParameters`, or the penalty itself if its only part is the whole vector.

    Args:
        dim: d, the vector's length.
        parts: See `OnParameters`.
    """
    if len(parts) == 1 and parts[0][0] == slice(0, dim):
        return parts[0][1]
    return OnParameters(dim, parts)


def _check(indices: Indices, dim: int) -> Indices:
    if isinstance(indices, slice):
        start, stop = indices.start or 0, dim if indices.stop is None else indices.stop
        if indices.step not in (None, 1) or not 0 <= start < stop <= dim:
            raise ValueError(f"parts: got {indices}, allowed are slices that are not empty, step 1, in [0, {dim})")
        return slice(start, stop)
    if indices.dtype != torch.int64 or indices.ndim != 1 or len(indices) == 0:
        raise ValueError(f"parts: got {indices.dtype} of shape {tuple(indices.shape)}, allowed is int64, (k,), k > 0")
    if int(indices.min()) < 0 or int(indices.max()) >= dim:
        raise ValueError(
            f"parts: got coordinates {int(indices.min())} to {int(indices.max())}, allowed: numbers in [0, {dim})"
        )
    return indices


def _move(indices: Indices, device: torch.device) -> Indices:
    return indices if isinstance(indices, slice) else indices.to(device)
