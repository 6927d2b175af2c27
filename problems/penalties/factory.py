"""Penalties by name, over the parameters of a model."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from problems.models.vectors import Layout, spans
from problems.penalties.base import NoPenalty, Penalty
from problems.penalties.norms import L1, ElasticNet, SquaredL2
from problems.penalties.parameters import Indices, chosen, on_parameters, runs, selected
from problems.penalties.sets import Box, L2Ball, NonNegative, Simplex
from problems.penalties.structured import GroupLasso, NuclearNorm

PENALTIES = {
    "none": "no regulariser",
    "l1": "weight * ||x||_1: sparse solutions",
    "l2": "weight / 2 * ||x||^2: ridge",
    "elastic-net": "weight * (ratio * ||x||_1 + (1 - ratio) / 2 * ||x||^2)",
    "group-lasso": "weight * sum over groups of sqrt(size) * ||x_g||: whole rows or columns vanish",
    "box": "lower <= x <= upper",
    "l2-ball": "||x|| <= radius",
    "simplex": "x >= 0 with sum x = radius",
    "nonnegative": "x >= 0",
    "nuclear-norm": "weight * sum of the singular values of each matrix: low rank",
}


def make_penalty(
    name: str,
    layout: Layout,
    *,
    weight: float = 1.0,
    ratio: float = 0.5,
    lower: float = -1.0,
    upper: float = 1.0,
    radius: float = 1.0,
    groups: str = "rows",
    parameters: str = "auto",
) -> Penalty:
    """The penalty called ``name`` (a key of `PENALTIES`) on some parameters of a flat vector (d,).

    All but the nuclear norm, which acts on each parameter separately, act on the selected parameters together.

    Args:
        layout: names and shapes of the consecutive parts of the vector.
        weight: of the norms.
        ratio: the share of l1 in ``elastic-net``.
        lower: of ``box``.
        upper: of ``box``.
        radius: of ``l2-ball``; the sum of the entries of ``simplex``.
        groups: of ``group-lasso``: "rows", a group for each index of a parameter's first axis (an output), or
            "columns", for each index of its second (an input, with all outputs and kernel positions).
        parameters: "auto", "all" or names: see `selected`.

    Raises:
        ValueError: an unknown name, an option that the penalty refuses, or parameters that it cannot act on.
    """
    if name not in PENALTIES:
        raise ValueError(f"penalty {name!r}: allowed are {', '.join(PENALTIES)}")
    if name == "none":
        return NoPenalty()
    mask = selected(layout, parameters)
    dim = len(mask)
    if name == "nuclear-norm":
        return on_parameters(dim, _matrices(layout, parameters, weight))
    penalty: Penalty
    match name:
        case "l1":
            penalty = L1(weight)
        case "l2":
            penalty = SquaredL2(weight)
        case "elastic-net":
            penalty = ElasticNet(weight, ratio)
        case "group-lasso":
            penalty = GroupLasso(weight, _groups(layout, parameters, groups))
        case "box":
            penalty = Box(lower, upper)
        case "l2-ball":
            penalty = L2Ball(radius)
        case "simplex":
            if not 0 < radius < math.inf:
                raise ValueError(f"radius, the sum of the simplex's entries, must be > 0 and finite, got {radius}")
            penalty = Simplex(radius)
        case _:
            penalty = NonNegative()
    parts: list[Indices] = [*runs(mask)]
    # a penalty of single coordinates need not gather those that lie apart
    if len(parts) != 1 and not isinstance(penalty, L1 | SquaredL2 | ElasticNet | Box):
        parts = [torch.nonzero(mask).flatten()]
    return on_parameters(dim, [(part, penalty) for part in parts])


def _matrices(layout: Layout, parameters: str, weight: float) -> list[tuple[Indices, Penalty]]:
    parts: list[tuple[Indices, Penalty]] = []
    coordinates = spans(shape for _, shape in layout)
    for (name, shape), span, wanted in zip(layout, coordinates, chosen(layout, parameters), strict=True):
        if wanted and len(shape) < 2:
            raise ValueError(f"penalty 'nuclear-norm': parameter {name!r} of shape {shape} is not a matrix")
        if wanted:
            parts.append((span, NuclearNorm(weight, shape)))
    return parts


def _groups(layout: Layout, parameters: str, groups: str) -> Tensor:
    """(k,) the group number of each selected coordinate; no group spans two parameters."""
    if groups not in ("rows", "columns"):
        raise ValueError(f"groups must be 'rows' or 'columns', got {groups!r}")
    axis = 0 if groups == "rows" else 1
    numbers, used = [], 0
    for (name, shape), wanted in zip(layout, chosen(layout, parameters), strict=True):
        if not wanted:
            continue
        extents = shape or (1,)
        if len(extents) <= axis:
            raise ValueError(f"groups={groups!r}: parameter {name!r} of shape {shape} has no axis {axis}")
        along = torch.arange(used, used + extents[axis]).view([-1 if i == axis else 1 for i in range(len(extents))])
        numbers.append(along.expand(extents).reshape(-1))
        used += extents[axis]
    return torch.cat(numbers)
