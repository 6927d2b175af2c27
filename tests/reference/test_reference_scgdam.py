"""The NumPy reference of LocalSCGDAM and its baselines against finite differences, closed forms and special cases."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from . import minimax, scgdam
from .minimax import Array, Rows
from .scgdam import CompositionalAUC

each_net = pytest.mark.parametrize("net", ["linear", "tanh"])
each_score = pytest.mark.parametrize("sigmoid", [False, True])
ROWS = [0, 2, 2, 7]
# eta, gamma_x, gamma_y, beta_x, beta_y, alpha
OPTIONS = 0.25, 0.3, 0.5, 1.4, 2.2, 1.8


def make(net: str = "tanh", rho: float = 0.4, sigmoid: bool = False, copies: int = 0, **options: Any) -> Any:
    """Three clients with different shares of positives, or `copies` of the first."""
    rng = np.random.default_rng(4)
    labels = [(np.arange(8) < m).astype(int) for m in (3, 1, 5)]
    features = [rng.normal(0.3 * i, 1.0, (8, 3)) + 0.8 * y[:, None] for i, y in enumerate(labels)]
    if copies:
        features, labels = features[:1] * copies, labels[:1] * copies
    return CompositionalAUC(features, labels, 9 / 24, rho, sigmoid, net=net, hidden=2, **options)


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
def test_gradients_against_finite_differences(net: str, sigmoid: bool) -> None:
    problem = make(net, sigmoid=sigmoid)
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
def test_the_compositional_gradient_goes_through_the_inner_step(net: str, sigmoid: bool) -> None:
    problem, (x, y, *_) = make(net, sigmoid=sigmoid), start_of(make(net))
    h = problem.inner(2, x, [0, 5])
    through = numerical_gradient(lambda v: problem.outer(2, problem.inner(2, v, [0, 5]), y, ROWS), x)
    assert_near(problem.compositional_gradient(2, x, h, y, [0, 5], ROWS), through)
    identity = make(net, sigmoid=sigmoid, hessian="identity").compositional_gradient(2, x, h, y, [0, 5], ROWS)
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
def test_without_an_inner_step_and_without_memory_of_h_it_is_localsgdam(net: str, sigmoid: bool) -> None:
    problem, batches = make(net, 0.0, sigmoid), random_rows(13)
    state: Any = start_of(problem)
    z, momentum = np.concatenate(state[:2]), None
    for r, clients in enumerate([[0, 1, 2], [1], [2, 0], [0, 1, 2]]):
        state = scgdam.localscgdam_round(problem, state, clients, batches, 3, 3 * r, *OPTIONS[:5], 1.0 / 0.25)
        z, momentum = minimax.localsgdam_round(problem, z, momentum, clients, batches, 3, 3 * r, *OPTIONS[:5])
        assert_states(state, (z[:-1], z[-1:], z[:-1], momentum[:-1], momentum[-1:]))


def test_two_steps_of_one_device_by_hand() -> None:
    problem, xi, zeta = make(), random_rows(3), random_rows(3, seed=12)
    x, y, *_ = start_of(problem)
    state = scgdam.localscgdam_round(problem, (x, y, None, None, None), [1], xi, 2, 0, *OPTIONS, zeta)

    def gradients(x: Array, h: Array, y: Array, j: int) -> tuple[Array, Array]:
        grad_x = problem.compositional_gradient(1, x, h, y, xi(1, j), zeta(1, j))
        return grad_x, problem.outer_gradient(1, h, y, zeta(1, j))[1]

    h = problem.inner(1, x, xi(1, 0))
    u, v = gradients(x, h, y, 0)
    for j in (1, 2):
        x, y = x - 0.075 * u, y + 0.125 * v
        h = 0.55 * h + 0.45 * problem.inner(1, x, xi(1, j))
        new_u, new_v = gradients(x, h, y, j)
        u, v = 0.65 * u + 0.35 * new_u, 0.45 * v + 0.55 * new_v
    assert_states(state, (x, y, h, u, v))


@pytest.mark.parametrize("K", [1, 2, 6])
def test_identical_devices_and_batches_are_one_device_for_any_period(K: int) -> None:
    problem, twins, rows = make(), make(copies=3), random_rows(7, shared=True)
    state: Any = start_of(problem)
    one = scgdam.localscgdam_round(problem, state, [0], rows, 6, 0, *OPTIONS)
    for start in range(0, 6, K):
        state = scgdam.localscgdam_round(twins, state, [0, 1, 2], rows, K, start, *OPTIONS)
    assert_states(state, one)


# The baselines.


def descend(problem: Any, i: int, w: Array, rows: Rows, rates: Sequence[float], first: int = 0) -> Array:
    """SGD on the cross-entropy of one client."""
    for k, rate in enumerate(rates):
        w = w - rate * problem.ce_gradient(i, w, rows(i, first + k))
    return w


def test_local_sgdm_without_memory_is_local_sgd() -> None:
    problem, rows = make(), random_rows(9)
    w, m = vector(11), None
    expected = w
    for r in range(3):
        w, m = scgdam.localsgdm_round(problem, w, m, [0, 2], rows, 3, 3 * r, [0.3, 0.2, 0.1], 1.0)
        ends = [descend(problem, i, expected, rows, [0.3, 0.2, 0.1], 3 * r) for i in (0, 2)]
        expected = np.mean(ends, axis=0)
        np.testing.assert_allclose(w, expected, rtol=1e-12)


@pytest.mark.parametrize("weights", [None, np.array([1.2, 1.9])])
def test_local_sgdm_s_momentum_is_a_moving_average_of_the_gradients(weights: Array | None) -> None:
    problem, rows, gradients = make(), random_rows(6), []
    w, m = vector(11), None
    scale = np.ones(2) if weights is None else weights
    for t in range(6):
        gradients.append(scgdam.ratio_gradient(problem, 1, w, scale, rows(1, t)))
        w, m = scgdam.localsgdm_round(problem, w, m, [1], rows, 1, t, 0.5, 0.1, weights)
        parts = [0.9**t * gradients[0], *(0.1 * 0.9 ** (t - s) * gradients[s] for s in range(1, t + 1))]
        np.testing.assert_allclose(m, sum(parts), rtol=1e-11, atol=1e-14)
    assert_states(scgdam.localsgdm_round(problem, vector(11), None, [1], rows, 6, 0, 0.5, 0.1, weights), (w, m))


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


def test_fedprox_without_a_pull_is_local_sgd_weighted_by_samples() -> None:
    problem, rows, w = make(), random_rows(3), vector(11)
    ends = [descend(problem, i, w, rows, [0.3, 0.2, 0.1]) for i in (0, 2)]
    found = scgdam.fedprox_round(problem, w, [0, 2], rows, 3, [0.3, 0.2, 0.1], 0.0, [5, 1, 2])
    np.testing.assert_allclose(found, (5 * ends[0] + 2 * ends[1]) / 7, rtol=1e-12)


def test_fedprox_of_one_client_rests_where_the_pull_balances_the_gradient() -> None:
    problem, w = make(), vector(11)
    found = scgdam.fedprox_round(problem, w, [2], lambda i, k: None, 300, 0.3, 0.8)
    np.testing.assert_allclose(problem.ce_gradient(2, found) + 0.8 * (found - w), 0.0, atol=1e-10)
