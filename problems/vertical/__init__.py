"""Linear models whose columns are spread over parties: problems, blocks of columns, the order of batches, minima."""

from problems.vertical.blocks import make_block
from problems.vertical.blocks.base import ALGORITHMS, Block
from problems.vertical.objectives import PROBLEMS, Objective, corrected, make_objective
from problems.vertical.schedule import Schedule

__all__ = ["ALGORITHMS", "PROBLEMS", "Block", "Objective", "Schedule", "corrected", "make_block", "make_objective"]
