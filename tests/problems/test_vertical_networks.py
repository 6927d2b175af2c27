"""Tests of blocks of networks against the reference, row by row; of rejected networks; and of the head."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from tests.reference import split_network
from vertical.problem.blocks.network import HIDDEN, Architecture, NetworkBlock, make_network
from vertical.problem.head import Head
from vertical.problem.objectives import make_objective

OBJECTIVE = make_objective("nonconvex-logistic", 0.3)


def block_of(x: np.ndarray, model: str, width: int, kind: str = "dense") -> NetworkBlock:
    network = make_network(Architecture(model, 5), x.shape[1], width)
    return NetworkBlock(x if kind == "dense" else sparse.csr_array(x), network, width, OBJECTIVE, 0.2)


@given(
    model=st.sampled_from(["linear", "mlp"]),
    kind=st.sampled_from(["dense", "sparse"]),
    rows=st.integers(1, 9),
    columns=st.integers(1, 6),
    width=st.integers(1, 4),
    seed=st.integers(0, 2**20),
)
def test_updates_and_partials_are_the_reference_s(
    model: str, kind: str, rows: int, columns: int, width: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x, others = rng.standard_normal((rows, columns)), rng.standard_normal((3, columns))
    block = block_of(x, model, width, kind)
    sizes = (columns, width) if model == "linear" else (columns, HIDDEN, width)
    problem = split_network.Headed("nonconvex-logistic", 0.3, 0.2, None)
    book = split_network.Part(x, problem, sizes, 0.2, block.weights)
    for _ in range(3):
        batch = rng.permutation(rows)[: rng.integers(1, rows + 1)]
        theta = rng.standard_normal((len(batch), width))
        block.apply(batch, theta.ravel())
        book.apply(batch, theta)
        np.testing.assert_allclose(block.weights, book.w, rtol=0, atol=1e-12)
        np.testing.assert_allclose(block.partials(batch), book.partial(batch).ravel(), rtol=0, atol=1e-12)
    assert block.penalty() == pytest.approx(problem.penalty(book.w))
    expected = [split_network.embed(sizes, book.w, row)[-1] for row in others]
    np.testing.assert_allclose(block.predict(others), np.ravel(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("rows", "theta", "told"),
    [
        ([0, 7], np.ones(4), "rows must be 0 to 4, got 0 to 7"),
        ([-1], np.ones(2), "rows must be 0 to 4, got -1 to -1"),
        ([0, 1], np.ones(2), "theta must be 4 finite numbers, got 2"),
        ([], np.ones(0), "theta must be 1 or more finite numbers"),
        ([0], np.array([1.0, np.nan]), r"theta must be 2 finite numbers, got 2, 1 of them not finite \(lower"),
    ],
)
def test_a_wrong_update_is_refused_and_changes_nothing(rows: list[int], theta: np.ndarray, told: str) -> None:
    block = block_of(np.ones((5, 3)), "mlp", 2)
    before = block.weights
    with pytest.raises(ValueError, match=told):
        block.apply(np.array(rows, dtype=np.int64), theta)
    np.testing.assert_array_equal(block.weights, before)
    with pytest.raises(ValueError, match="sgd stores no slopes"):
        block.remember(np.ones(5))
    with pytest.raises(ValueError, match=r"features must be \(k, 3\)"):
        block.predict(np.ones((2, 4)))


def test_first_weights_follow_from_the_seed_and_spread_as_torch_s() -> None:
    """Uniform up to one over the root of a layer's inputs: a variance of 1 / (3 * 400)."""
    first, again, other = (make_network(Architecture("mlp", seed), 400, 8).weights for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.isin(first, other).any()
    matrix = first[: 400 * HIDDEN]
    assert np.abs(matrix).max() <= 0.05
    assert np.var(matrix) == pytest.approx(1 / 1200, rel=0.05)


def test_a_head_s_step_by_hand() -> None:
    """v = (2, -1), c = 1, o = (3, -4), slope 0.5, no regulariser, step 0.1: z = 7, theta = (1, 0)."""
    head = Head(2, 0, make_objective("ridge", 0.0), 0.1)
    head.set_weights(np.array([2.0, -1.0, 1.0]))
    sums = np.array([[3.0, -4.0]])
    assert head.predict(sums) == pytest.approx([7.0])
    np.testing.assert_allclose(head.learn(sums, np.array([0.5])), [[1.0, 0.0]])
    np.testing.assert_allclose(head.weights, [2.0 - 0.1 * 1.5, -1.0, 1.0 - 0.1 * 0.5])
    with pytest.raises(ValueError, match="a head of 2 sums must have 3 finite weights"):
        head.set_weights(np.array([1.0, np.inf, 0.0]))
