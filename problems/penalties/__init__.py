"""The penalties: convex, often nonsmooth regularisers g of composite problems min f(x) + g(x)."""

from problems.penalties.base import NoPenalty, Penalty
from problems.penalties.factory import PENALTIES, PenaltySettings, make_penalty
from problems.penalties.norms import L1, ElasticNet, GroupLasso, NuclearNorm, SquaredL2
from problems.penalties.parameters import OnParameters, select_coordinates
from problems.penalties.sets import Box, L2Ball, NonNegative, Simplex

__all__ = [
    "L1",
    "PENALTIES",
    "Box",
    "ElasticNet",
    "GroupLasso",
    "L2Ball",
    "NoPenalty",
    "NonNegative",
    "NuclearNorm",
    "OnParameters",
    "Penalty",
    "PenaltySettings",
    "Simplex",
    "SquaredL2",
    "make_penalty",
    "select_coordinates",
]
