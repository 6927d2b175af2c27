"""Dense blocks with numba against the NumPy code: the same numbers, the same refusals, nothing compiled in between."""

import importlib.util

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from problems.vertical import ALGORITHMS, PROBLEMS, Block, make_block, make_objective
from problems.vertical.objectives import Array

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is missing")


def pair(x: Array, algorithm: str, problem: str = "logistic", weight: float = 0.1, step: float = 0.3) -> list[Block]:
    """The block with the NumPy code, and the one with numba."""
    objective = make_objective(problem, weight)
    return [make_block(x, algorithm, objective, step, kernels=kernels) for kernels in ("numpy", "numba")]


@needs_numba
@given(
    algorithm=st.sampled_from(ALGORITHMS),
    problem=st.sampled_from(PROBLEMS),
    weight=st.sampled_from([0.0, 1e-4, 2.0]),
    rows=st.integers(1, 12),
    columns=st.integers(1, 40),
    seed=st.integers(0, 2**20),
)
def test_whole_numbers_come_out_the_same_to_the_last_bit(
    algorithm: str, problem: str, weight: float, rows: int, columns: int, seed: int
) -> None:
    """Sums of whole numbers are exact in any order; all else is done in the order of the NumPy code."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 10, (rows, columns)).astype(float)
    blocks = pair(x, algorithm, problem, weight)
    start = rng.integers(-9, 10, columns).astype(float)
    slopes = rng.integers(-9, 10, rows).astype(float)
    batches = [rng.permutation(rows)[: rng.integers(1, rows + 1)] for _ in range(5)]
    thetas = [rng.integers(-9, 10, len(batch)).astype(float) for batch in batches]
    for block in blocks:
        block.set_weights(start)
        if algorithm != "sgd":
            block.remember(slopes)
    np.testing.assert_array_equal(blocks[0].partials(batches[0]), blocks[1].partials(batches[0]))
    for batch, theta in zip(batches, thetas, strict=True):
        for block in blocks:
            block.apply(batch, theta)
        np.testing.assert_array_equal(blocks[0].weights, blocks[1].weights)
    if algorithm == "saga":
        np.testing.assert_array_equal(blocks[0].table, blocks[1].table)
