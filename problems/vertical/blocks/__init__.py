"""A party's columns with the weights on them, dense or sparse, and the updates of VFB2 there."""

from __future__ import annotations

import numpy as np

from problems.vertical.blocks.base import Block, Features
from problems.vertical.objectives import Objective


def make_block(features: Features, algorithm: str, objective: Objective, step: float) -> Block:
    """Return the block of (n, d) features, dense or sparse as they are.

    Args:
        features: an array or a SciPy sparse matrix of any format. Kept without a copy where they are float64 and
            contiguous, or CSR without unsorted or repeated columns, so not to be changed afterwards.
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
