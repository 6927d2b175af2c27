"""Minimax problems: min over x, max over y of the clients' mean f(x, y)."""

from problems.minimax.auc import AUC_MINIMAX, AUC_SCORE, AUCOracle
from problems.minimax.compositional import COMPOSITIONAL_AUC, CompositionalOracle
from problems.minimax.findings import FindingsAUCOracle, FindingsCompositionalOracle
from problems.minimax.oracle import FunctionOracle, Oracle
from problems.minimax.problem import MinimaxProblem, ProblemError, build_problem
from problems.minimax.synthetic import SYNTHETIC_PL, SyntheticPL, SyntheticPLOracle

# the losses whose flat point is a network's weights with a, b and lambda
SADDLES = (AUC_MINIMAX, COMPOSITIONAL_AUC)

__all__ = [
    "AUC_MINIMAX",
    "AUC_SCORE",
    "COMPOSITIONAL_AUC",
    "SADDLES",
    "SYNTHETIC_PL",
    "AUCOracle",
    "CompositionalOracle",
    "FindingsAUCOracle",
    "FindingsCompositionalOracle",
    "FunctionOracle",
    "MinimaxProblem",
    "Oracle",
    "ProblemError",
    "SyntheticPL",
    "SyntheticPLOracle",
    "build_problem",
]
