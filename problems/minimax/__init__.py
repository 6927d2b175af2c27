"""Minimax problems: min over x, max over y of the clients' mean f(x, y)."""

from problems.minimax.auc import AUC_MINIMAX, AUCOracle
from problems.minimax.oracle import FunctionOracle, Oracle
from problems.minimax.problem import MinimaxProblem, ProblemError, build_problem
from problems.minimax.synthetic import SYNTHETIC_PL, SyntheticPL, SyntheticPLOracle

__all__ = [
    "AUC_MINIMAX",
    "SYNTHETIC_PL",
    "AUCOracle",
    "FunctionOracle",
    "MinimaxProblem",
    "Oracle",
    "ProblemError",
    "SyntheticPL",
    "SyntheticPLOracle",
    "build_problem",
]
