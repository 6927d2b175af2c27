"""The NumPy reference of the minimax algorithms against finite differences, closed forms and special cases."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from . import minimax
from .minimax import Array, Estimator, Index, Problem, Rows, SaddleAUC, SyntheticPL


class Quadratic:
    """f_i = mean over the samples of z^T H z / 2 + l^T z; hessians (N, n, d, d), linear (N, n, d)."""

    def __init__(self, hessians: Array, linear: Array, primal_dim: int) -> None:
        self.hessians, self.linear = hessians, linear
        self.num_clients, self.primal_dim = len(linear), primal_dim
        self.dual_dim = linear.shape[-1] - primal_dim

    def value(self, i: int, z: Array, rows: Index | None = None) -> float:
        raise NotImplementedError

    def gradient(self, i: int, z: Array, rows: Index | None = None) -> Array:
        chosen = slice(None) if rows is None else np.asarray(rows, dtype=int)
        return self.hessians[i][chosen].mean(axis=0) @ z + self.linear[i][chosen].mean(axis=0)

    def solution(self) -> Array:
        """Where the mean gradient is 0."""
        return -np.linalg.solve(self.hessians.mean(axis=(0, 1)), self.linear.mean(axis=(0, 1)))


def make_quadratic(dual: int = 2, clients: int = 4) -> Quadratic:
    """Convex in x, concave in y in the mean."""
    rng = np.random.default_rng(5)
    d = 3 + dual
    base = np.diag(np.concatenate([rng.uniform(1.0, 2.0, 3), -rng.uniform(1.0, 2.0, dual)]))
    base[:3, 3:] = rng.normal(0.0, 0.4, (3, dual))
    base[3:, :3] = base[:3, 3:].T
    noise = rng.normal(0.0, 0.3, (clients, 5, d, d))
    return Quadratic(base + (noise + noise.swapaxes(-1, -2)) / 2.0, rng.normal(size=(clients, 5, d)), 3)


def make_pl() -> SyntheticPL:
    rng = np.random.default_rng(2)
    centres = rng.normal(0.0, np.sqrt(0.5), (3, 1, 3, 4))
    return SyntheticPL(centres + rng.normal(0.0, np.sqrt(0.1), (3, 6, 3, 4)), nu=0.7, mu=1.3)


def make_auc(sigmoid: bool = False) -> SaddleAUC:
    """Clients of one size with different shares of positives, one without any."""
    rng = np.random.default_rng(4)
    labels = [(np.arange(8) < positives).astype(int) for positives in (3, 0, 5)]
    features = [rng.normal(0.0, 1.0, (8, 3)) + 0.8 * y[:, None] for y in labels]
    return SaddleAUC(features, labels, 8 / 24, sigmoid=sigmoid)


def point(problem: Problem, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0.0, 0.8, problem.primal_dim + problem.dual_dim)


def whole(i: int, k: int) -> None:
    return None


def random_rows(steps: int, seed: int = 11) -> Rows:
    table = np.random.default_rng(seed).integers(5, size=(8, steps, 2))
    return lambda i, k: table[i, k]


def full_gradient(problem: Problem, z: Array) -> Array:
    return minimax.mean_gradient(problem, range(problem.num_clients))(z)


def ascend_y(problem: Problem, step_primal: float, step_dual: float) -> Array:
    """Written out here on purpose: minus in x, plus in y."""
    return np.array([-step_primal] * problem.primal_dim + [step_dual] * problem.dual_dim)


def numerical_gradient(function: Callable[[Array], float], w: Array, h: float = 1e-5) -> Array:
    return np.array([(function(w + h * e) - function(w - h * e)) / (2.0 * h) for e in np.eye(len(w))])


# Problems.


@pytest.mark.parametrize("problem", [make_pl(), make_auc(), make_auc(sigmoid=True)])
@pytest.mark.parametrize("rows", [None, [0, 4, 4]])
def test_gradients_against_finite_differences(problem: Problem, rows: Index | None) -> None:
    for i in range(problem.num_clients):
        z = point(problem, seed=i)
        expected = numerical_gradient(lambda v, i=i: problem.value(i, v, rows), z)
        np.testing.assert_allclose(problem.gradient(i, z, rows), expected, rtol=1e-6, atol=1e-8)


def test_the_gradient_of_phi_is_that_of_the_maximum_over_y() -> None:
    problem = make_pl()
    x = point(problem)[:4]
    z = np.concatenate([x, problem.maximiser(x)])
    np.testing.assert_allclose(full_gradient(problem, z)[4:], 0.0, atol=1e-12)
    np.testing.assert_allclose(problem.grad_phi(x), numerical_gradient(problem.phi, x), rtol=1e-6)


@pytest.mark.parametrize("sigmoid", [False, True])
def test_at_the_saddle_the_loss_is_the_pairwise_square_loss(sigmoid: bool) -> None:
    problem = make_auc(sigmoid)
    z, tau = point(problem), 8 / 24
    s, labels = np.concatenate([problem.scores(z, X) for X in problem.features]), np.concatenate(problem.labels)
    z[-3:] = minimax.best_saddle(s, labels)
    np.testing.assert_allclose(full_gradient(problem, z)[-3:], 0.0, atol=1e-13)
    value = np.mean([problem.value(i, z) for i in range(3)])
    pairs = np.mean((1.0 - s[labels == 1][:, None] + s[labels == 0]) ** 2)
    assert value / (tau * (1.0 - tau)) + 1.0 == pytest.approx(pairs, rel=1e-12)


# FedSGDA.


def estimates(estimator: Estimator, problem: Problem, sampled: Sequence[Sequence[int]]) -> list[Array]:
    """Along random points, with given clients S'_t."""
    path = [point(problem, t) for t in range(len(sampled))]
    return [
        estimator.update(t, z, path[max(t - 1, 0)], minimax.mean_gradient(problem, clients))
        for t, (z, clients) in enumerate(zip(path, sampled, strict=True))
    ]


SAMPLED = [[0, 1], [2], [0, 2], [1], [2], [1, 2]]
ESTIMATORS: list[Callable[[], Estimator]] = [
    minimax.MiniBatch,
    lambda: minimax.Storm(lambda t: minimax.storm_alpha(0.7, 0.2, t)),
    lambda: minimax.Spider(3),
    lambda: minimax.Svrg(3),
]


def test_estimators_coincide() -> None:
    problem = make_pl()
    plain = estimates(minimax.MiniBatch(), problem, SAMPLED)
    for estimator in (minimax.Storm(lambda t: 1.0), minimax.Spider(1), minimax.Svrg(1)):
        np.testing.assert_array_equal(estimates(estimator, problem, SAMPLED), plain)
    spider = estimates(minimax.Spider(100), problem, SAMPLED)
    np.testing.assert_allclose(estimates(minimax.Storm(lambda t: 0.0), problem, SAMPLED), spider, rtol=1e-10)
    svrg = estimates(minimax.Svrg(100), problem, SAMPLED)
    np.testing.assert_allclose(svrg[:2], spider[:2], rtol=1e-10)
    assert np.abs(svrg[2] - spider[2]).max() > 1e-3
    assert minimax.storm_alpha(10.0, 0.2, 3) == 1.0
    assert minimax.storm_alpha(10.0, 0.2, 999) == pytest.approx(10.0 / 1000.0**0.4)


@pytest.mark.parametrize("make", ESTIMATORS)
def test_all_clients_and_one_local_step_is_descent_ascent(make: Callable[[], Estimator]) -> None:
    problem, estimator = make_pl(), make()
    z = previous = expected = point(problem)
    for t in range(7):
        estimate = estimator.update(t, z, previous, minimax.mean_gradient(problem, [0, 1, 2]))
        np.testing.assert_allclose(estimate, full_gradient(problem, z), atol=1e-10)
        steps = minimax.decayed(0.1, 0.2, t), minimax.decayed(0.3, 0.2, t)
        previous, z = z, minimax.fedsgda_round(problem, z, estimate, [t % 3], random_rows(1), 1, *steps)
        rate = (t + 1) ** -0.2
        expected = expected + ascend_y(problem, 0.1 * rate, 0.3 * rate) * full_gradient(problem, expected)
        np.testing.assert_allclose(z, expected, rtol=1e-11)


@pytest.mark.parametrize("dual", [0, 2])
@pytest.mark.parametrize("make", ESTIMATORS[2:])
def test_fedsgda_finds_the_solution_of_unequal_clients(make: Callable[[], Estimator], dual: int) -> None:
    problem, estimator, rng = make_quadratic(dual), make(), np.random.default_rng(6)
    z = previous = point(problem)
    for t in range(250):
        sampled = range(4) if t % 3 == 0 else [int(rng.integers(4))]
        estimate = estimator.update(t, z, previous, minimax.mean_gradient(problem, sampled))
        chosen, rows = rng.choice(4, 2, replace=False), random_rows(3, seed=t)
        previous, z = z, minimax.fedsgda_round(problem, z, estimate, chosen, rows, 3, 0.05, 0.05)
    np.testing.assert_allclose(z, problem.solution(), atol=1e-8)


# CoDA and CODASCA.


def test_a_client_of_coda_minimises_its_proximal_model() -> None:
    problem, z, reference = make_quadratic(clients=1), point(make_quadratic()), point(make_quadratic(), 1)
    g = problem.gradient(0, z)
    new = minimax.coda_round(problem, z, [0], whole, 1, 0.3, 0.2, 0.8, reference, 4.0)
    np.testing.assert_allclose(g[:3] + (new[:3] - z[:3]) / 0.3 + 0.8 * (new[:3] - reference[:3]), 0.0, atol=1e-12)
    np.testing.assert_allclose(new[3:], z[3:] + 4.0 * 0.2 * g[3:], rtol=1e-13)


def test_codasca_s_controls_are_mean_gradients_and_the_server_holds_their_mean() -> None:
    problem, reference = make_quadratic(), point(make_quadratic(), 1)
    state = minimax.codasca_start(problem, point(problem))
    for r, clients in enumerate([[0, 1], [1, 3, 2], [2], [0, 1, 2, 3], [3, 0]]):
        rows, ends, controls = random_rows(3, seed=r), [], state.controls.copy()
        for i in clients:
            z, gradients = state.z, []
            for k in range(3):
                gradients.append(problem.gradient(i, z, rows(i, k)) * ([1.0] * 3 + [4.0] * 2))
                pull = 0.6 * np.append(z[:3] - reference[:3], [0.0, 0.0])
                z = z + ascend_y(problem, 0.1, 0.2) * (gradients[-1] - state.controls[i] + state.control + pull)
            controls[i] = np.mean(gradients, axis=0)
            ends.append(z)
        after = minimax.codasca_round(problem, state, clients, rows, 3, 0.1, 0.2, 0.6, reference, 0.7, 4.0)
        np.testing.assert_allclose(after.controls, controls, rtol=1e-12)
        np.testing.assert_allclose(after.control, controls.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(after.z, 0.3 * state.z + 0.7 * np.mean(ends, axis=0), rtol=1e-12)
        state = after


def test_codasca_finds_the_saddle_of_unequal_clients_where_coda_does_not() -> None:
    problem = make_quadratic()
    state = minimax.codasca_start(problem, point(problem))
    z = state.z
    for r in range(200):
        clients = [i for i in range(4) if i != r % 4]
        state = minimax.codasca_round(problem, state, clients, whole, 4, 0.05, 0.05, 0.0, state.z)
        z = minimax.coda_round(problem, z, clients, whole, 4, 0.05, 0.05, 0.0, z)
    np.testing.assert_allclose(state.z, problem.solution(), atol=1e-8)
    assert np.linalg.norm(z - problem.solution()) > 1e-3


# LocalSGDAM.


def test_localsgdam_on_a_quadratic_against_powers_of_its_matrix() -> None:
    problem, eta = make_quadratic(clients=1), 0.3
    H, linear, one = problem.hessians[0].mean(axis=0), problem.linear[0].mean(axis=0), np.eye(5)
    D, B = np.diag(ascend_y(problem, 0.4 * eta, 0.5 * eta)), np.diag([1.2 * eta] * 3 + [2.1 * eta] * 2)
    step = np.zeros((11, 11))  # (z, m, 1) -> (z + D m, (I - B) m + B (H (z + D m) + l), 1)
    step[:5, :5], step[:5, 5:10] = one, D
    step[5:10, :5], step[5:10, 5:10], step[5:10, 10] = B @ H, one - B + B @ H @ D, B @ linear
    step[10, 10] = 1.0
    z, momentum = point(problem), None
    start = np.concatenate([z, H @ z + linear, [1.0]])
    for r in range(3):
        z, momentum = minimax.localsgdam_round(problem, z, momentum, [0], whole, 4, 4 * r, eta, 0.4, 0.5, 1.2, 2.1)
        expected = np.linalg.matrix_power(step, 4 * (r + 1)) @ start
        np.testing.assert_allclose(np.append(z, momentum), expected[:10], rtol=1e-11)
