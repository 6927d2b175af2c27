"""Dense blocks with numba against the NumPy code: the same numbers, the same refusals, nothing compiled in between."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from problems import extras
from problems.vertical import ALGORITHMS, PROBLEMS, Block, make_block, make_objective
from problems.vertical.blocks import DenseBlock
from problems.vertical.objectives import Array

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is missing")


def pair(x: Array, algorithm: str, problem: str = "logistic", weight: float = 0.1, step: float = 0.3) -> list[Block]:
    """The block with the NumPy code, and the one with numba."""
    objective = make_objective(problem, weight)
    return [make_block(x, algorithm, objective, step, kernels=kernels) for kernels in ("numpy", "numba")]


@pytest.fixture
def only_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(block: DenseBlock, rows: Any) -> Array:
        raise AssertionError("the NumPy code was asked")

    monkeypatch.setattr(DenseBlock, "_taken", taken)


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


@needs_numba
@pytest.mark.usefixtures("only_compiled")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_arrays_are_read_as_they_lie(algorithm: str) -> None:
    """Read-only batches, slopes in the bytes of a frame or at an odd address, every second one of an array."""
    from problems.vertical import compiled_dense

    x = np.random.default_rng(0).standard_normal((6, 3))
    x.setflags(write=False)
    functions = [compiled_dense._partials, compiled_dense._apply]
    fixed = np.array([4, 1])
    fixed.setflags(write=False)
    theta = np.array([0.5, -2.0])
    odd = np.frombuffer(b"x" + theta.tobytes(), dtype=np.float64, count=2, offset=1)
    assert not odd.flags.aligned
    found = []
    for rows in (np.array([4, 1]), fixed, np.array([4, 0, 1, 0])[::2]):
        for slopes in (theta, np.frombuffer(theta.tobytes()), odd, np.repeat(theta, 2)[::2]):
            block = make_block(x, algorithm, make_objective("ridge"), 0.1, kernels="numba")
            block.set_weights(np.ones(3))
            if algorithm != "sgd":
                block.remember(np.arange(6.0))
            np.testing.assert_allclose(block.partials(rows), x[[4, 1]].sum(axis=1), rtol=1e-14)
            block.apply(rows, slopes)
            found.append(block.weights)
    assert all(np.array_equal(weights, found[0]) for weights in found)
    assert [len(function.signatures) for function in functions] == [1, 1]  # type: ignore[attr-defined]


@needs_numba
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_other_types_are_left_to_numpy(algorithm: str) -> None:
    x = np.random.default_rng(0).standard_normal((6, 3))
    blocks = pair(x, algorithm)
    for block in blocks:
        if algorithm != "sgd":
            block.remember(np.arange(6.0))
        narrow: Any = np.array([4, 1], dtype=np.int32)
        whole: Any = np.array([3, -2])
        block.apply(narrow, np.array([0.5, 1.0]))
        block.apply(np.array([4, 1]), whole)
        block.apply(np.array([0, 2]), np.array([0.5, 1.0], dtype=np.float32))
    np.testing.assert_allclose(blocks[0].weights, blocks[1].weights, rtol=1e-14)
    np.testing.assert_allclose(blocks[0].partials(narrow), blocks[1].partials(narrow), rtol=1e-14)


ACTS: list[Callable[[Block], object]] = [
    lambda b: b.partials(np.array([0, 4])),
    lambda b: b.partials(np.array([-1, 0])),
    lambda b: b.apply(np.array([3, 4]), np.ones(2)),
    lambda b: b.apply(np.array([2, -1]), np.ones(2)),
    lambda b: b.apply(np.array([0, 1]), np.ones(1)),
    lambda b: b.apply(np.array([0, 1]), np.array([-np.inf, 1.0])),
    lambda b: b.apply(np.array([0, 1]), np.ones((2, 1))),
    lambda b: b.apply(np.array([], dtype=np.int64), np.ones(0)),
]


@needs_numba
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_refused_is_refused_in_the_same_words(algorithm: str, act: Callable[[Block], object]) -> None:
    said = []
    for block in pair(np.eye(4)[:, :2], algorithm):
        if algorithm != "sgd":
            block.remember(np.arange(4.0))
        block.apply(np.array([0, 3]), np.array([2.0, 1.0]))
        weights, table = block.weights, block.table
        with pytest.raises(ValueError, match=r"theta must be|rows must be") as caught:
            act(block)
        said.append(str(caught.value))
        np.testing.assert_array_equal(block.weights, weights)
        np.testing.assert_array_equal(block.table, table)
    assert said[0] == said[1]


def test_without_numba_auto_is_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    block = make_block(np.ones((2, 2)), "sgd", make_objective("logistic"), 0.1)
    assert isinstance(block, DenseBlock)
    assert block._compiled is None
    with pytest.raises(ImportError, match="kernels 'numba' need the package numba: install it, or choose 'numpy'"):
        make_block(np.ones((2, 2)), "sgd", make_objective("logistic"), 0.1, kernels="numba")
