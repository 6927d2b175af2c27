"""Tests of training in one place against the reference, minima against scikit-learn and SciPy, steps against
simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, sparse

from problems.randomness import stream
from tests.reference import vfb2
from tests.reference.vertical import smoothness, train
from vertical.problem.analysis import gradient, largest_step, minimum, second_moment, value
from vertical.problem.blocks.base import ALGORITHMS
from vertical.problem.objectives import PROBLEMS, make_objective

Array = NDArray[np.float64]


def data(problem: str, rows: int = 60, columns: int = 7, seed: int = 0) -> tuple[Array, Array]:
    """Return (n, d) features and (n,) labels of the problem's kind."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)) * np.linspace(0.4, 1.4, columns)
    y = x @ rng.standard_normal(columns) + rng.standard_normal(rows)
    return x, np.where(y > 0, 1.0, -1.0) if "logistic" in problem else y


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(("active", "size"), [(1, 1), (7, 4), (4, 60)])
def test_training_is_the_reference_s(problem: str, algorithm: str, active: int, size: int) -> None:
    x, y = data(problem)
    epochs = [vfb2.batches(len(y), active, size, 4, epoch) for epoch in range(3)]
    expected = vfb2.centralised(vfb2.Problem(problem, 0.01), x, y, algorithm, 0.05, epochs)
    settings = {"step": 0.05, "epochs": 3, "batch_size": size, "seed": 4, "active": active}
    objective = make_objective(problem, 0.01)
    for features in (x, sparse.csr_array(x)):
        w = train(features, y, objective, algorithm, **settings)
        np.testing.assert_allclose(w, expected, rtol=1e-11, atol=1e-12)


def test_taking_turns_is_one_long_list_of_batches() -> None:
    """Without rounds, two slices are walked in turn, each update at the point that the update before it left."""
    x, y = data("ridge", rows=11)
    objective = make_objective("ridge", 0.1)
    w = np.zeros(7)
    for epoch in range(2):
        first, second = np.array_split(stream(0, "vertical batches", epoch).permutation(11), 2)
        for rows in (first[:4], second[:4], first[4:], second[4:]):
            w = w - 0.02 * (x[rows].T @ (2 * (x[rows] @ w - y[rows])) / len(rows) + 0.1 * w)
    settings = {"step": 0.02, "epochs": 2, "batch_size": 4, "seed": 0, "active": 2}
    got = train(x, y, objective, "sgd", synchronous=False, **settings)
    np.testing.assert_allclose(got, w, rtol=1e-13)
    assert np.abs(train(x, y, objective, "sgd", **settings) - w).max() > 1e-4


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_frozen_columns_keep_their_weights_and_still_count(algorithm: str) -> None:
    x, y = data("ridge")
    start, frozen, free = np.linspace(-1.0, 1.0, 7), np.array([6, 1]), [0, 2, 3, 4, 5]
    objective = make_objective("ridge", 0.01)
    settings = {"step": 0.02, "epochs": 4, "batch_size": 5, "seed": 1}
    rest = train(x[:, free], y - x[:, frozen] @ start[frozen], objective, algorithm, weights=start[free], **settings)
    for features in (x, sparse.csr_array(x)):
        w = train(features, y, objective, algorithm, weights=start, frozen_columns=frozen, **settings)
        assert w[frozen].tolist() == start[frozen].tolist()
        np.testing.assert_allclose(w[free], rest, rtol=1e-11, atol=1e-12)
    assert start.tolist() == np.linspace(-1.0, 1.0, 7).tolist()


def test_each_epoch_sees_the_weights_of_a_shorter_run() -> None:
    x, y = data("logistic")
    objective = make_objective("logistic", 0.1)
    settings = {"step": 0.1, "batch_size": 8, "seed": 0}
    seen: dict[int, Array] = {}
    train(x, y, objective, "saga", epochs=3, each_epoch=seen.__setitem__, **settings)
    assert list(seen) == [1, 2, 3]
    for epoch, w in seen.items():
        np.testing.assert_allclose(w, train(x, y, objective, "saga", epochs=epoch, **settings), rtol=1e-13)
        direct = np.mean([math.log1p(math.exp(-b * float(a @ w))) for a, b in zip(x, y, strict=True)]) + 0.05 * w @ w
        assert value(x, y, objective, w) == pytest.approx(direct, rel=1e-12)


def test_the_minimum_of_ridge_solves_the_normal_equations() -> None:
    x, y = data("ridge")
    w, f = minimum(x, y, make_objective("ridge", 0.2))
    solution = np.linalg.solve(2 * x.T @ x / 60 + 0.2 * np.eye(7), 2 * x.T @ y / 60)
    np.testing.assert_allclose(w, solution, rtol=1e-10)
    assert f == pytest.approx(float(np.mean((x @ solution - y) ** 2)) + 0.1 * float(solution @ solution), rel=1e-13)


@pytest.mark.parametrize("problem", ["logistic", "nonconvex-logistic", "robust"])
def test_a_stationary_point_of_what_is_not_quadratic(problem: str) -> None:
    x, y = data(problem, rows=100)
    y = y + (5.0 * (np.arange(100) % 3 == 0) if problem == "robust" else 0.0)
    objective = make_objective(problem, 0.05)
    w, f = minimum(x, y, objective)
    assert np.linalg.norm(gradient(x, y, objective, w)) < 1e-9
    assert f < value(x, y, objective, np.zeros(7))
    found = optimize.minimize(lambda at: value(x, y, objective, at), w, tol=1e-9)
    assert found.fun == pytest.approx(f, abs=1e-9)


@given(seed=st.integers(0, 50), size=st.integers(1, 12))
def test_the_largest_eigenvalue(seed: int, size: int) -> None:
    features = np.random.default_rng(seed).standard_normal((size + 3, size))
    exact = np.linalg.eigvalsh(features.T @ features / (size + 3))[-1]
    assert second_moment(features, tolerance=1e-9) == pytest.approx(exact, rel=1e-5)
    assert second_moment(0.0 * features) == 0.0


@pytest.mark.parametrize("problem", PROBLEMS)
def test_smoothness_bounds_the_hessian(problem: str) -> None:
    x, y = data(problem)
    objective = make_objective(problem, 0.3)
    bound = smoothness(x, objective)
    assert smoothness(sparse.csr_array(x), objective) == pytest.approx(bound, rel=1e-12)
    for w in np.random.default_rng(0).standard_normal((20, 7)):
        hessian = x.T @ (objective.curvatures(x @ w, y)[:, None] * x) / 60 + np.diag(objective.penalty_curvature(w))
        assert np.linalg.eigvalsh(hessian)[-1] <= bound * (1 + 1e-6)
    if problem == "ridge":
        assert bound == pytest.approx(np.linalg.eigvalsh(2 * x.T @ x / 60)[-1] + 0.3, rel=1e-6)


@pytest.mark.parametrize("delay", [0, 1, 2, 5, 20])
def test_the_largest_step_is_where_delayed_descent_turns(delay: int) -> None:
    """w_{t+1} = w_t - gamma h w_{t-tau}: a hundredth below the bound it dies out, a hundredth above it grows."""
    eigenvalue = 3.7

    def radius(gamma: float) -> float:
        roots = np.roots(
            [1.0, -1.0, *[0.0] * (delay - 1), gamma * eigenvalue] if delay else [1.0, gamma * eigenvalue - 1]
        )
        return float(np.abs(roots).max())

    bound = largest_step(eigenvalue, delay)
    assert radius(0.99 * bound) < 1.0 < radius(1.01 * bound)
    if delay == 0:
        assert bound == pytest.approx(2 / eigenvalue, rel=1e-14)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_gradient_is_the_derivative_of_the_value(problem: str) -> None:
    x, y = data(problem)
    objective, w = make_objective(problem, 0.3), np.linspace(-1, 1, 7)
    for features in (x, sparse.csr_array(x)):
        numeric = optimize.approx_fprime(w, lambda at: value(features, y, objective, at), 1e-7)  # noqa: B023
        np.testing.assert_allclose(gradient(features, y, objective, w), numeric, atol=1e-5)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_dense_and_sparse_columns_have_one_minimum(problem: str) -> None:
    x, y = data(problem, rows=100, columns=20)
    objective = make_objective(problem, 0.01)
    w, f = minimum(x, y, objective)
    other, lowest = minimum(sparse.csr_array(x), y, objective)
    assert lowest == pytest.approx(f, rel=1e-12)
    np.testing.assert_allclose(other, w, rtol=1e-6, atol=1e-8)
