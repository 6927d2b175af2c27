"""The NumPy reference of LocalSCGDAM and its baselines against finite differences, closed forms and special cases."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from . import minimax, scgdam
from .minimax import Array, Rows
from .scgdam import CompositionalAUC

each_net = pytest.mark.parametrize("net", ["linear", "tanh"])
each_score = pytest.mark.parametrize("score", ["logit", "sigmoid", "tanh"])
ROWS = [0, 2, 2, 7]
# eta, gamma_x, gamma_y, beta_x, beta_y, alpha
OPTIONS = 0.25, 0.3, 0.5, 1.4, 2.2, 1.8


def make(net: str = "tanh", rho: float = 0.4, score: str = "logit", copies: int = 0, **options: Any) -> Any:
    """Three clients with different shares of positives, or `copies` of the first."""
    rng = np.random.default_rng(4)
    labels = [(np.arange(8) < m).astype(int) for m in (3, 1, 5)]
    features = [rng.normal(0.3 * i, 1.0, (8, 3)) + 0.8 * y[:, None] for i, y in enumerate(labels)]
    if copies:
        features, labels = features[:1] * copies, labels[:1] * copies
    return CompositionalAUC(features, labels, 9 / 24, rho, score, net=net, hidden=2, **options)


def vector(size: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0.0, 0.8, size)


def start_of(problem: CompositionalAUC) -> tuple[Array, Array, None, None, None]:
    z = vector(problem.primal_dim + 1)
    return z[:-1], z[-1:], None, None, None


def random_rows(steps: int, seed: int = 11, shared: bool = False) -> Rows:
    table = np.random.default_rng(seed).integers(8, size=(8, steps, 3))
    return lambda i, j: table[0 if shared else i, j]


def numerical_gradient(function: Callable[[Array], float], w: Array, h: float = 1e-5) -> Array:
    return np.array([(function(w + h * e) - function(w - h * e)) / (2.0 * h) for e in np.eye(len(w))])


def assert_near(got: Array, expected: Array) -> None:
    """Up to the error of finite differences."""
    assert np.linalg.norm(got - expected) <= 1e-6 * np.linalg.norm(expected)


def assert_states(got: Sequence[Any], expected: Sequence[Any]) -> None:
    for mine, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-11, atol=1e-14)


# Problem.


@each_net
@each_score
def test_gradients_against_finite_differences(net: str, score: str) -> None:
    problem = make(net, score=score)
    z, q = vector(problem.primal_dim + 1), vector(problem.num_weights, 7)
    w, weights = z[: problem.num_weights], np.array([1.3, 2.1])
    assert_near(problem.gradient(1, z, ROWS), numerical_gradient(lambda v: problem.value(1, v, ROWS), z))
    expected = numerical_gradient(lambda v: problem.cross_entropy(1, v, ROWS), w)
    assert_near(problem.ce_gradient(1, w, ROWS), expected)
    np.testing.assert_allclose(problem.inner(1, z[:-1], ROWS), [*(w - 0.4 * expected), *z[-3:-1]], atol=1e-9)
    along = [problem.ce_gradient(1, w + s * 1e-5 * q, ROWS) for s in (1.0, -1.0)]
    assert_near(problem.ce_hessian_vector(1, w, q, ROWS), (along[0] - along[1]) / 2e-5)
    expected = numerical_gradient(lambda v: scgdam.ratio_loss(problem, 1, v, weights, ROWS), w)
    assert_near(scgdam.ratio_gradient(problem, 1, w, weights, ROWS), expected)


@each_net
@each_score
def test_the_compositional_gradient_goes_through_the_inner_step(net: str, score: str) -> None:
    problem, (x, y, *_) = make(net, score=score), start_of(make(net))
    h = problem.inner(2, x, [0, 5])
    through = numerical_gradient(lambda v: problem.outer(2, problem.inner(2, v, [0, 5]), y, ROWS), x)
    assert_near(problem.compositional_gradient(2, x, h, y, [0, 5], ROWS), through)
    identity = make(net, score=score, hessian="identity").compositional_gradient(2, x, h, y, [0, 5], ROWS)
    np.testing.assert_array_equal(identity, problem.outer_gradient(2, h, y, ROWS)[0])


def test_the_ratio_loss_in_numbers() -> None:
    np.testing.assert_allclose(scgdam.ratio_weights([90, 10]), [1.0 + 0.1 / 9.0, 1.9], rtol=1e-13)
    np.testing.assert_allclose(scgdam.ratio_weights([20, 30], 0.5, 2.0), [3.5, 0.5 + 4.0 / 3.0], rtol=1e-13)
    problem = make("linear")
    w = vector(4)
    s = problem.features[0] @ w[:3] + w[3]
    losses = np.where(problem.labels[0] == 1, 2.1 * np.log(1 + np.exp(-s)), 1.3 * np.log(1 + np.exp(s)))
    assert scgdam.ratio_loss(problem, 0, w, np.array([1.3, 2.1])) == pytest.approx(losses.mean(), rel=1e-12)


# LocalSCGDAM.


@each_net
@each_score
def test_without_an_inner_step_and_without_memory_of_h_it_is_localsgdam(net: str, score: str) -> None:
    problem, batches = make(net, 0.0, score), random_rows(13)
    state: Any = start_of(problem)
    z, momentum = np.concatenate(state[:2]), None
    for r, clients in enumerate([[0, 1, 2], [1], [2, 0], [0, 1, 2]]):
        state = scgdam.localscgdam_round(problem, state, clients, batches, 3, 3 * r, *OPTIONS[:5], 1.0 / 0.25)
        z, momentum = minimax.localsgdam_round(problem, z, momentum, clients, batches, 3, 3 * r, *OPTIONS[:5])
        assert_states(state, (z[:-1], z[-1:], z[:-1], momentum[:-1], momentum[-1:]))


# The baselines.


def test_scaffold_is_codasca_without_a_dual() -> None:
    problem = make()

    class CrossEntropy:
        value, gradient = staticmethod(problem.cross_entropy), staticmethod(problem.ce_gradient)
        primal_dim, dual_dim, num_clients = problem.num_weights, 0, 3

    wrapped = CrossEntropy()
    state, other = scgdam.scaffold_start(problem, vector(11)), minimax.codasca_start(wrapped, vector(11))
    for r, clients in enumerate([[0, 1], [2], [1, 2, 0], [2, 0]]):
        rows = random_rows(3, seed=r)
        state = scgdam.scaffold_round(problem, state, clients, rows, 3, 0.4, 0.7)
        other = minimax.codasca_round(wrapped, other, clients, rows, 3, 0.4, 0.0, 0.0, other.z, 0.7)
        assert_states(state, other)


def test_fedprox_of_one_client_rests_where_the_pull_balances_the_gradient() -> None:
    problem, w = make(), vector(11)
    found = scgdam.fedprox_round(problem, w, [2], lambda i, k: None, 300, 0.3, 0.8)
    np.testing.assert_allclose(problem.ce_gradient(2, found) + 0.8 * (found - w), 0.0, atol=1e-10)
