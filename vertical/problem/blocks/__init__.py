"""A party's block: its columns, dense or sparse, their weights, and the updates of VFB2."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64

from vertical.problem.blocks.base import Block, Features
from vertical.problem.objectives import Objective

if TYPE_CHECKING:
    from problems.penalties import Penalty

PENALTIES = NO_PENALTY, L1_NORM, GROUP_LASSO = "none", "l1", "group-lasso"
"""The names of the nonsmooth penalties of a block's weights."""


def make_block(features: Features, algorithm: str, objective: Objective, step: float) -> Block:
    """Return a dense or sparse block of (n, d) features.

    Args:
        features: An array or a SciPy sparse matrix of any format. Contiguous float64 arrays, and float64 CSR with
            sorted and unique columns, are not copied: do not change them afterwards.
        algorithm: An element of `ALGORITHMS`.
        objective: The objective whose regulariser the updates apply.
        step: The learning rate, > 0.

    Raises:
        ValueError: The features are empty, not two-dimensional or not finite, the algorithm is unknown, or the step is
            not above 0 and finite.
    """
    # imported inside the function, so a process without a block does not wait for numba
    if isinstance(features, np.ndarray):
        from vertical.problem.blocks.dense import DenseBlock

        return DenseBlock(features, algorithm, objective, step)
    from vertical.problem.blocks.sparse import SparseBlock

    return SparseBlock(features, algorithm, objective, step)


def make_nonsmooth(name: str, weight: float, groups: Int64[np.ndarray, "d"]) -> "Penalty | None":
    """Return a nonsmooth penalty of the weights of d columns; None if it has no effect.

    Args:
        name: An element of `PENALTIES`.
        weight: The penalty's factor, >= 0.
        groups: The number of each column's group. Columns with a number below 0 are not penalised.

    Raises:
        ValueError: The weight is below 0 or not finite.
    """
    if name == NO_PENALTY or not (groups >= 0).any():
        return None
    import torch  # imported inside the function, since most parties do not need it

    from problems.penalties import L1, GroupLasso
    from problems.penalties.parameters import on_parameters, runs

    numbers = torch.from_numpy(groups)
    if name == L1_NORM:
        return on_parameters(len(groups), [(run, L1(weight)) for run in runs(numbers >= 0)])
    chosen = torch.nonzero(numbers >= 0).flatten()
    return on_parameters(len(groups), [(chosen, GroupLasso(weight, numbers[chosen]))])
