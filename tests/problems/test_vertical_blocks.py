"""Tests of blocks of columns against the reference's updates, on dense arrays: every algorithm, problem and kind."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse

from tests.reference import vfb2
from vertical.problem.blocks import make_block
from vertical.problem.blocks.base import ALGORITHMS, Block
from vertical.problem.objectives import PROBLEMS, Objective, make_objective

Array = NDArray[np.float64]

LOGISTIC = make_objective("logistic", 0.1)
KINDS = ["dense", "sparse"]


def features(rows: int, columns: int, seed: int, density: float = 0.2) -> Array:
    """Return (n, d) mostly zeros, sometimes with an empty row and an empty column."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, columns)) * (rng.random((rows, columns)) < density)


def block_of(x: Array, kind: str, algorithm: str, objective: Objective = LOGISTIC, step: float = 0.1) -> Block:
    return make_block(x if kind == "dense" else sparse.csr_array(x), algorithm, objective, step)


def close(got: Array, expected: Array, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def compared(x: Array, kind: str, algorithm: str, problem: str, weight: float, step: float) -> tuple[Block, vfb2.Party]:
    """Compare a block to the reference's block, at the same random weights and slopes."""
    rng = np.random.default_rng(0)
    block = block_of(x, kind, algorithm, make_objective(problem, weight), step)
    book = vfb2.Party(x, vfb2.Problem(problem, weight), algorithm, step)
    book.w = rng.standard_normal(x.shape[1])
    block.set_weights(book.w)
    if algorithm != "sgd":
        theta = 0.1 * rng.standard_normal(len(x))
        block.remember(theta)
        book.remember(theta)
    return block, book


@pytest.mark.parametrize("kind", KINDS)
@given(
    algorithm=st.sampled_from(ALGORITHMS),
    problem=st.sampled_from(PROBLEMS),
    weight=st.sampled_from([0.0, 1e-4, 0.05, 2.0]),
    step=st.sampled_from([0.01, 0.2, 0.7]),
    rows=st.integers(1, 12),
    columns=st.integers(1, 30),
    seed=st.integers(0, 2**20),
    actions=st.lists(st.sampled_from(["apply"] * 6 + ["partials", "all", "step", "remember", "set"]), max_size=40),
)
def test_any_course_of_updates_is_the_reference_s(
    kind: str,
    algorithm: str,
    problem: str,
    weight: float,
    step: float,
    rows: int,
    columns: int,
    seed: int,
    actions: list[str],
) -> None:
    rng = np.random.default_rng(seed)
    x = features(rows, columns, seed)
    block, book = compared(x, kind, algorithm, problem, weight, step)
    for action in actions:
        batch = rng.permutation(rows)[: rng.integers(1, rows + 1)]
        if action == "apply":
            theta = rng.standard_normal(len(batch))
            block.apply(batch, theta)
            book.apply(batch, theta)
        elif action == "partials":
            close(block.partials(batch), x[batch] @ book.w)
        elif action == "all":
            close(block.partials(), x @ book.w)
        elif action == "step":
            book.step *= 0.5
            block.set_step(book.step)
            assert block.step == book.step
        elif action == "set":
            book.w = rng.standard_normal(columns)
            block.set_weights(book.w)
        elif algorithm != "sgd":
            theta = rng.standard_normal(rows)
            block.remember(theta)
            book.remember(theta)
    if algorithm == "saga":
        np.testing.assert_array_equal(block.table, book.alpha)
    else:
        assert block.table is None
    penalty = block.penalty()
    close(block.weights, book.w)
    assert penalty == pytest.approx(make_objective(problem, weight).penalty(book.w), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("problem", "weight", "step"),
    [("logistic", 1e-4, 0.1), ("logistic", 6.0, 0.1), ("nonconvex-logistic", 1e-4, 0.1), ("robust", 0.0, 0.3)],
)
def test_columns_that_wait_long(kind: str, algorithm: str, problem: str, weight: float, step: float) -> None:
    """Hundreds of updates pass before some columns occur again; rates above 1/2 have a separate formula."""
    rng = np.random.default_rng(5)
    x = features(40, 100, 5, density=0.03)
    block, book = compared(x, kind, algorithm, problem, weight, step)
    for turn in range(500):
        batch, slope = np.array([turn % 39]), 0.1 * rng.standard_normal(1)
        block.apply(batch, slope)
        book.apply(batch, slope)
    close(block.partials(np.array([39, 3])), x[[39, 3]] @ book.w, 1e-11)
    close(block.weights, book.w, 1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_block_is_zero_and_predicts_other_rows(kind: str) -> None:
    block = block_of(features(6, 5, 0), kind, "sgd")
    assert (block.rows, block.columns, block.algorithm, block.step) == (6, 5, "sgd", 0.1)
    assert block.weights.tolist() == [0.0] * 5
    block.set_weights(np.arange(5.0))
    block.apply(np.array([1, 2]), np.array([0.5, -0.5]))
    other = features(4, 5, 1, density=0.9)
    close(block.predict(other if kind == "dense" else sparse.csr_array(other)), other @ block.weights)
    with pytest.raises(ValueError, match=r"features must be \(k, 5\), got \(4, 3\)"):
        block.predict(other[:, :3])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda b: b.apply(np.array([0]), np.array([1.0, 2.0])), "theta must be 1 finite numbers, got 2"),
        (
            lambda b: b.apply(np.array([0]), np.array([math.nan])),
            "must be 1 finite numbers, got 1, 1 of them not finite .lower learning-rate",
        ),
        (lambda b: b.apply(np.array([], dtype=int), np.array([])), "theta must be 1 or more finite numbers, got 0"),
        (lambda b: b.apply(np.array([0, 4]), np.ones(2)), "rows must be 0 to 3, got 0 to 4"),
        (lambda b: b.apply(np.array([-1, 0]), np.ones(2)), "rows must be 0 to 3, got -1 to 0"),
        (lambda b: b.partials(np.array([0, 4])), "rows must be 0 to 3, got 0 to 4"),
        (lambda b: b.remember(np.array([1.0, 2.0, 3.0, math.nan])), "theta must be 4 finite numbers, got 4, 1 of them"),
        (lambda b: b.set_weights(np.array([1.0, math.nan])), "weights must be 2 finite numbers, got 2, 1 of them not"),
        (lambda b: b.set_step(math.nan), "step must be > 0 and finite, got nan"),
    ],
)
def test_what_is_refused_changes_nothing(kind: str, act: Callable[[Block], object], message: str) -> None:
    block, twin = (block_of(np.eye(4)[:, :2], kind, "saga") for _ in range(2))
    for one in (block, twin):
        one.remember(np.arange(4.0))
        one.apply(np.array([1]), np.array([2.0]))
    with pytest.raises(ValueError, match=message):
        act(block)
    assert block.step == 0.1
    for one in (block, twin):
        one.apply(np.array([3, 0]), np.array([2.0, -1.0]))
    np.testing.assert_array_equal(block.weights, twin.weights)
    np.testing.assert_array_equal(block.table, twin.table)


@pytest.mark.parametrize("kind", KINDS)
def test_svrg_and_saga_must_remember_and_sgd_cannot(kind: str) -> None:
    for algorithm, what in (("svrg", "a snapshot"), ("saga", "a table")):
        block = block_of(np.ones((4, 2)), kind, algorithm)
        assert block.table is None
        with pytest.raises(ValueError, match=f"{algorithm} needs {what} before its first update: call remember"):
            block.apply(np.array([0]), np.array([1.0]))
    with pytest.raises(ValueError, match="sgd stores no slopes"):
        block_of(np.ones((4, 2)), kind, "sgd").remember(np.ones(4))
