"""The block that fits a party's columns."""

from __future__ import annotations

import numpy as np

from problems.vertical.blocks.base import Block, Features
from problems.vertical.blocks.dense import DenseBlock
from problems.vertical.blocks.sparse import SparseBlock
from problems.vertical.objectives import Objective


def make_block(
    features: Features,
    algorithm: str,
    objective: Objective,
    step: float,
    *,
    kernels: str = "auto",
) -> Block:
    """Return the block of (n, d) features, dense or sparse as they are.

    Args:
        features: an array or a SciPy sparse matrix of any format. Kept without a copy where they are float64 and
            contiguous, or CSR without unsorted or repeated columns, so not to be changed afterwards.
        algorithm: one of `ALGORITHMS`.
        objective: whose regulariser the updates apply.
        step: gamma, > 0.
        kernels: "numba", "numpy", or "auto" for numba where it is installed.

    Raises:
        ValueError: features that are empty, not two-dimensional or not finite, an unknown algorithm or kernels, or a
            step that is not above 0 and finite.
        ImportError: kernels "numba" without numba.
    """
    if isinstance(features, np.ndarray):
        return DenseBlock(features, algorithm, objective, step, kernels)
    return SparseBlock(features, algorithm, objective, step, kernels)
