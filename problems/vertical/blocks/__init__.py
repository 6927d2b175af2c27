"""A party's columns, dense or sparse, their weights, and the updates of VFB2."""

import numpy as np

from problems.vertical.blocks.base import Block, Features
from problems.vertical.objectives import Objective


def make_block(features: Features, algorithm: str, objective: Objective, step: float) -> Block:
    """Return the block of (n, d) features, dense or sparse as they are.

    Args:
        features: an array or a SciPy sparse matrix of any format. Contiguous float64 arrays, and float64 CSR with
            sorted columns, none twice, are kept without a copy: do not change them afterwards.
        algorithm: one of `ALGORITHMS`.
        objective: whose regulariser the updates apply.
        step: gamma, > 0.

    Raises:
        ValueError: features that are empty, not two-dimensional or not finite, an unknown algorithm, or a step that is
            not above 0 and finite.
    """
    # Imported here, so that a process without a block does not wait for numba.
    if isinstance(features, np.ndarray):
        from problems.vertical.blocks.dense import DenseBlock

        return DenseBlock(features, algorithm, objective, step)
    from problems.vertical.blocks.sparse import SparseBlock

    return SparseBlock(features, algorithm, objective, step)
