"""Tests of the loops of sparse blocks: postponed updates, and columns that a batch does not touch."""

import itertools

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import sparse

from vertical.problem.blocks import make_block
from vertical.problem.blocks.base import ALGORITHMS
from vertical.problem.blocks.sparse import SparseBlock, settle
from vertical.problem.objectives import make_objective


@given(
    rate=st.floats(-7.0, -2.5).map(lambda exponent: 10.0**exponent),
    reach=st.floats(-8.0, -2.5).map(lambda exponent: 10.0**exponent),
    count=st.sampled_from([1, 7, 8, 30, 400, 1500]),
    seed=st.integers(0, 2**20),
)
@example(rate=1e-4, reach=3.8e-3, count=400, seed=0)
@example(rate=1e-4, reach=1e-6, count=400, seed=1)
@example(rate=1e-6, reach=3.8e-3, count=400, seed=2)
def test_put_off_drifts_of_the_nonconvex_problem(rate: float, reach: float, count: int, seed: int) -> None:
    """Columns of all sizes, k drifts at once against k drifts one by one in a longer float."""
    rng = np.random.default_rng(seed)
    w = np.concatenate([rng.uniform(-3, 3, 12), 10.0 ** rng.uniform(-9, 2, 7), [0.0]])
    mean = np.concatenate([[0.0], reach * rng.uniform(-1, 1, 18), [0.0]])
    settled = np.zeros(20, dtype=np.int64)
    step, weight = 0.25, 4.0 * rate
    exact, largest = w.astype(np.longdouble), np.abs(w)
    for _ in range(count):
        exact -= np.longdouble(step) * (mean + weight * exact / (1 + exact**2) ** 2)
        largest = np.maximum(largest, np.abs(exact).astype(float))
    got = w.copy()
    settle(got, settled, mean, count, step, weight, False)
    assert (settled == count).all()
    error = np.abs(got - exact).astype(float)
    # 2e-14 for following the flow, 1e-16 a step for walking
    assert (error <= (4e-14 + 2e-16 * count) * largest + 1e-300).all(), (error / largest.clip(1e-300)).max()


def test_sparse_and_dense_agree_on_many_columns() -> None:
    rng = np.random.default_rng(1)
    x = sparse.random_array((200, 5000), density=0.004, rng=rng, format="csr")
    theta = rng.standard_normal(200)
    for index_type, algorithm in itertools.product((np.int32, np.int64), ALGORITHMS):
        x.indices, x.indptr = x.indices.astype(index_type), x.indptr.astype(index_type)
        blocks = [make_block(features, algorithm, make_objective("logistic"), 0.5) for features in (x, x.toarray())]
        for block in blocks:
            if algorithm != "sgd":
                block.remember(theta)
            for turn in range(30):
                rows = np.arange(turn, turn + 40)
                block.apply(rows, block.partials(rows) - theta[rows])
        np.testing.assert_allclose(blocks[0].weights, blocks[1].weights, rtol=1e-12, atol=1e-12)


def test_an_update_touches_only_the_columns_of_its_rows() -> None:
    """The cost of an update is the number of its rows' entries: only settling writes anything of size d."""
    x = sparse.csr_array(([1.0, 2.0], [3, 5], [0, 2, 2]), shape=(2, 1000))
    block = make_block(x, "svrg", make_objective("logistic", 0.1), 0.1)
    assert isinstance(block, SparseBlock)
    block.set_weights(np.ones(1000))
    block.remember(np.array([1.0, 1.0]))
    block.apply(np.array([0]), np.array([2.0]))
    assert np.flatnonzero(block._w != 1.0).tolist() == [3, 5]
    assert (block.weights != 1.0).all()
