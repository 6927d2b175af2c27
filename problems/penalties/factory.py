"""Penalties over the parameters of a model."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from problems.models.vectors import Layout, spans
from problems.penalties.base import NoPenalty, Penalty
from problems.penalties.norms import L1, ElasticNet, SquaredL2
from problems.penalties.parameters import Indices, chosen, on_parameters, runs, selected
from problems.penalties.sets import Box, L2Ball, NonNegative, Simplex
from problems.penalties.settings import PenaltySettings
from problems.penalties.structured import GroupLasso, NuclearNorm


def make_penalty(settings: PenaltySettings, layout: Layout) -> Penalty:
    """The penalty on some parameters of a flat vector (d,).

    All but the nuclear norm, which acts on each parameter separately, act on the selected parameters together.

    Args:
        settings: ``groups`` are "rows", a group for each index of a parameter's first axis (an output), or "columns",
            for each index of its second (an input, with all outputs and kernel positions); ``parameters``: see
            `selected`.
        layout: names and shapes of the consecutive parts of the vector.

    Raises:
        ValueError: an option that the penalty refuses, or parameters that it cannot act on.
    """
    if settings.penalty == "none":
        return NoPenalty()
    weight, parameters = settings.weight, settings.parameters
    mask = selected(layout, parameters)
    dim = len(mask)
    if settings.penalty == "nuclear-norm":
        return on_parameters(dim, _matrices(layout, parameters, weight))
    penalty: Penalty
    match settings.penalty:
        case "l1":
            penalty = L1(weight)
        case "l2":
            penalty = SquaredL2(weight)
        case "elastic-net":
            penalty = ElasticNet(weight, settings.ratio)
        case "group-lasso":
            penalty = GroupLasso(weight, _groups(layout, parameters, settings.groups))
        case "box":
            lower, upper = settings.lower, settings.upper
            penalty = Box(-math.inf if lower == "none" else lower, math.inf if upper == "none" else upper)
        case "l2-ball":
            penalty = L2Ball(settings.radius)
        case "simplex":
            penalty = Simplex(settings.radius)
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
