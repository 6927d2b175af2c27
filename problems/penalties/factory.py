"""`make_penalty`, which makes the penalty on a model's parameters from the run config's settings."""

import math
from typing import Literal, get_args

import torch
from jaxtyping import Int64
from pydantic import BaseModel, Field
from torch import Tensor

from problems.models.vectors import Layout, spans
from problems.penalties.base import NoPenalty, Penalty
from problems.penalties.norms import L1, ElasticNet, GroupLasso, NuclearNorm, SquaredL2
from problems.penalties.parameters import Indices, choose_parameters, on_parameters, runs, select_coordinates
from problems.penalties.sets import Box, L2Ball, NonNegative, Simplex

PenaltyName = Literal[
    "none", "l1", "l2", "elastic-net", "group-lasso", "nuclear-norm", "box", "l2-ball", "simplex", "nonnegative"
]
PENALTIES: tuple[PenaltyName, ...] = get_args(PenaltyName)


class PenaltySettings(BaseModel, frozen=True, extra="forbid"):
    """The terms added to the loss: the penalty, and ridge/2 ||x||^2, which belongs to the smooth part f."""

    penalty: PenaltyName = Field("l1", description="The penalty g.")
    weight: float = Field(1e-4, ge=0, description="The penalty's factor theta_1. It has no effect on constraint sets.")
    ridge: float = Field(0.01, ge=0, description="The factor theta_2 of the smooth term ||x||^2 / 2.")
    parameters: str = Field(
        "auto",
        min_length=1,
        description="The parameters that penalty and ridge act on. auto: all except biases.",
        title="auto, all, or names separated by commas",
    )
    ratio: float = Field(0.5, ge=0, le=1, description="The share of l1 in elastic-net.")
    groups: Literal["rows", "columns"] = Field(
        "rows",
        description="The groups of group-lasso: the weights of a unit (rows), or the weights of an input (columns).",
    )
    lower: float | Literal["none"] = Field("none", description="The lower bound of box.")
    upper: float | Literal["none"] = Field(
        "none", description="The upper bound of box.", title="a number >= lower, or none"
    )
    radius: float = Field(1.0, gt=0, description="The radius of l2-ball, the sum of simplex.")


def make_penalty(settings: PenaltySettings, layout: Layout) -> Penalty:
    """Make the penalty on some parameters of a flat vector.

    Except for the nuclear norm, which acts on each parameter separately, a penalty acts on the selected parameters
    together.

    Args:
        settings: The settings. With ``groups`` "rows", each index of a parameter's first axis (an output) is a group.
            With "columns", each index of the second axis (an input, with all outputs and kernel positions) is a group.
            For ``parameters``, see `select_coordinates`.
        layout: The names and shapes of the consecutive parts of the vector.

    Raises:
        ValueError: The penalty refuses an option, or cannot act on the parameters.
    """
    if settings.penalty == "none":
        return NoPenalty()
    weight, parameters = settings.weight, settings.parameters
    mask = select_coordinates(layout, parameters)
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
    # penalties that act on each coordinate separately can be applied to each part
    if len(parts) != 1 and not isinstance(penalty, L1 | SquaredL2 | ElasticNet | Box):
        parts = [torch.nonzero(mask).flatten()]
    return on_parameters(dim, [(part, penalty) for part in parts])


def _matrices(layout: Layout, parameters: str, weight: float) -> list[tuple[Indices, Penalty]]:
    parts: list[tuple[Indices, Penalty]] = []
    coordinates = spans(shape for _, shape in layout)
    for (name, shape), span, wanted in zip(layout, coordinates, choose_parameters(layout, parameters), strict=True):
        if wanted and len(shape) < 2:
            raise ValueError(f"penalty 'nuclear-norm': parameter {name!r} of shape {shape} is not a matrix")
        if wanted:
            parts.append((span, NuclearNorm(weight, shape)))
    return parts


def _groups(layout: Layout, parameters: str, groups: str) -> Int64[Tensor, "selected"]:
    """Return the group number of each selected coordinate. No group contains coordinates of two parameters."""
    axis = 0 if groups == "rows" else 1
    numbers, used = [], 0
    for (name, shape), wanted in zip(layout, choose_parameters(layout, parameters), strict=True):
        if not wanted:
            continue
        extents = shape or (1,)
        if len(extents) <= axis:
            raise ValueError(f"groups={groups!r}: parameter {name!r} of shape {shape} has no axis {axis}")
        along = torch.arange(used, used + extents[axis]).view([-1 if i == axis else 1 for i in range(len(extents))])
        numbers.append(along.expand(extents).reshape(-1))
        used += extents[axis]
    return torch.cat(numbers)
