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

    def means(self, i: int, rows: Index | None = None) -> tuple[Array, Array]:
        chosen = slice(None) if rows is None else np.asarray(rows, dtype=int)
        return self.hessians[i][chosen].mean(axis=0), self.linear[i][chosen].mean(axis=0)

    def value(self, i: int, z: Array, rows: Index | None = None) -> float:
        H, linear = self.means(i, rows)
        return float(z @ H @ z / 2.0 + linear @ z)

    def gradient(self, i: int, z: Array, rows: Index | None = None) -> Array:
        H, linear = self.means(i, rows)
        return H @ z + linear

    def solution(self) -> Array:
        """Where the mean gradient is 0."""
        return -np.linalg.solve(self.hessians.mean(axis=(0, 1)), self.linear.mean(axis=(0, 1)))


def make_quadratic(
    primal: int = 3, dual: int = 2, clients: int = 4, samples: int = 5, spread: float = 0.3
) -> Quadratic:
    """Convex in x, concave in y in the mean; Hessians differ with `spread`, linear terms always."""
    rng = np.random.default_rng(5)
    d = primal + dual
    base = np.diag(np.concatenate([rng.uniform(1.0, 2.0, primal), -rng.uniform(1.0, 2.0, dual)]))
    base[:primal, primal:] = rng.normal(0.0, 0.4, (primal, dual))
    base[primal:, :primal] = base[:primal, primal:].T
    noise = rng.normal(0.0, spread, (clients, samples, d, d))
    return Quadratic(base + (noise + noise.swapaxes(-1, -2)) / 2.0, rng.normal(size=(clients, samples, d)), primal)


def make_pl(mu: float = 1.3, nu: float = 0.7) -> SyntheticPL:
    rng = np.random.default_rng(2)
    centres = rng.normal(0.0, np.sqrt(0.5), (3, 1, 3, 4))
    return SyntheticPL(centres + rng.normal(0.0, np.sqrt(0.1), (3, 6, 3, 4)), nu=nu, mu=mu)


def make_auc(sigmoid: bool = False, sizes: Sequence[int] = (8, 8, 8)) -> SaddleAUC:
    """Clients with different shares of positives, one without any."""
    rng = np.random.default_rng(4)
    labels = [(np.arange(n) < positives).astype(int) for n, positives in zip(sizes, (3, 0, 5), strict=True)]
    features = [rng.normal(0.0, 1.0, (len(y), 3)) + 0.8 * y[:, None] for y in labels]
    return SaddleAUC(features, labels, float(np.concatenate(labels).mean()), sigmoid=sigmoid)


def identical(problem: Quadratic, copies: int) -> Quadratic:
    """`copies` clients that all hold the data of client 0."""
    repeat = lambda data: np.repeat(data[:1], copies, axis=0)  # noqa: E731
    return Quadratic(repeat(problem.hessians), repeat(problem.linear), problem.primal_dim)


def merged(problem: Quadratic) -> Quadratic:
    """One client that holds everybody's data."""
    d = problem.linear.shape[-1]
    return Quadratic(problem.hessians.reshape(1, -1, d, d), problem.linear.reshape(1, -1, d), problem.primal_dim)


def dimension(problem: Problem) -> int:
    return problem.primal_dim + problem.dual_dim


def point(problem: Problem, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0.0, 0.8, dimension(problem))


def whole(i: int, k: int) -> None:
    return None


def random_rows(steps: int, batch: int = 2, seed: int = 11, samples: int = 5) -> Rows:
    table = np.random.default_rng(seed).integers(samples, size=(8, steps, batch))
    return lambda i, k: table[i, k]


def everyone(problem: Problem) -> list[int]:
    return list(range(problem.num_clients))


def full_gradient(problem: Problem, z: Array) -> Array:
    return sum(problem.gradient(i, z) for i in range(problem.num_clients)) / problem.num_clients


def ascend_y(problem: Problem, step_primal: float, step_dual: float) -> Array:
    """Written out here on purpose: minus in x, plus in y."""
    return np.array([-step_primal] * problem.primal_dim + [step_dual] * problem.dual_dim)


def numerical_gradient(function: Callable[[Array], float], w: Array, h: float = 1e-5) -> Array:
    return np.array([(function(w + h * e) - function(w - h * e)) / (2.0 * h) for e in np.eye(len(w))])


def assert_relative(got: Array, expected: Array, tolerance: float = 1e-6) -> None:
    assert np.linalg.norm(got - expected) <= tolerance * np.linalg.norm(expected)


# Problems.


@pytest.mark.parametrize("problem", [make_pl(), make_auc(), make_auc(sigmoid=True)])
@pytest.mark.parametrize("rows", [None, [0, 4, 4], [5]])
def test_gradients_against_finite_differences(problem: Problem, rows: Index | None) -> None:
    for i in range(problem.num_clients):
        z = point(problem, seed=i)
        expected = numerical_gradient(lambda v, i=i: problem.value(i, v, rows), z)
        assert_relative(problem.gradient(i, z, rows), expected)


def test_synthetic_value_is_its_definition() -> None:
    problem = make_pl(mu=0.6, nu=1.7)
    z = point(problem)
    x, y = z[:4], z[4:]
    values = []
    for a, b, c in problem.data[1]:
        bump = sum(1.0 - np.exp(-(x[j] - a[j]) * (x[j] - a[j]) / 2.0 / 1.7) for j in range(4))
        values.append(bump + (x - a) @ np.outer(b, b) @ (y - c) - 0.3 * (y - c) @ (y - c))
    assert problem.value(1, z) == pytest.approx(np.mean(values), rel=1e-12)
    assert problem.value(1, z, [2, 0]) == pytest.approx((values[2] + values[0]) / 2.0, rel=1e-12)


@pytest.mark.parametrize("sigmoid", [False, True])
def test_saddle_value_is_its_definition(sigmoid: bool) -> None:
    problem = make_auc(sigmoid)
    z, tau, rows = point(problem), 8 / 24, np.array([0, 2, 4, 6, 7])
    w, bias, a, b, lam = z[:3], z[3], z[4], z[5], z[6]
    h = problem.features[0][rows] @ w + bias
    h = 1.0 / (1.0 + np.exp(-h)) if sigmoid else h
    positive, negative = problem.labels[0][rows] == 1, problem.labels[0][rows] == 0
    terms = (
        (1.0 - tau) * (h - a) ** 2 * positive
        - tau * (1.0 - tau) * lam**2
        + tau * (h - b) ** 2 * negative
        + 2.0 * (1.0 + lam) * tau * h * negative
        - 2.0 * (1.0 + lam) * (1.0 - tau) * h * positive
    )
    assert problem.prior == pytest.approx(tau)
    assert problem.value(0, z, rows) == pytest.approx(terms.mean(), rel=1e-12)


def test_phi_is_the_maximum_over_y() -> None:
    problem = make_pl()
    x = point(problem)[:4]
    best = problem.maximiser(x)
    np.testing.assert_allclose(full_gradient(problem, np.concatenate([x, best]))[4:], 0.0, atol=1e-12)
    value = lambda y: np.mean([problem.value(i, np.concatenate([x, y])) for i in range(3)])  # noqa: E731
    assert problem.phi(x) == pytest.approx(value(best), rel=1e-12)
    rng = np.random.default_rng(8)
    for _ in range(5):
        shift = rng.normal(size=4)
        gap = 1.3 / 2.0 * shift @ shift
        assert problem.phi(x) - value(best + shift) == pytest.approx(gap, rel=1e-9)


def test_closed_form_gradient_of_phi() -> None:
    problem = make_pl()
    for seed in range(3):
        x = point(problem, seed)[:4]
        gradient = problem.grad_phi(x)
        assert_relative(gradient, numerical_gradient(problem.phi, x))
        both = full_gradient(problem, np.concatenate([x, problem.maximiser(x)]))
        np.testing.assert_allclose(gradient, both[:4], rtol=1e-12)
        assert problem.grad_phi_sq(x) == pytest.approx(gradient @ gradient, rel=1e-12)


@pytest.mark.parametrize("sigmoid", [False, True])
def test_at_the_saddle_the_loss_is_the_pairwise_square_loss(sigmoid: bool) -> None:
    problem = make_auc(sigmoid)
    z = point(problem)
    scores = np.concatenate([problem.scores(z, X) for X in problem.features])
    labels, tau = np.concatenate(problem.labels), problem.prior
    z[-3:] = minimax.best_saddle(scores, labels)
    np.testing.assert_allclose(full_gradient(problem, z)[-3:], 0.0, atol=1e-13)
    value = lambda v: np.mean([problem.value(i, v) for i in range(3)])  # noqa: E731
    pairs = np.mean([(1.0 - s + t) ** 2 for s in scores[labels == 1] for t in scores[labels == 0]])
    assert value(z) / (tau * (1.0 - tau)) + 1.0 == pytest.approx(pairs, rel=1e-12)
    for j, sign in ((-3, 1.0), (-2, 1.0), (-1, -1.0)):
        for shift in (-0.3, 0.3):
            moved = z.copy()
            moved[j] += shift
            assert sign * (value(moved) - value(z)) == pytest.approx(tau * (1.0 - tau) * 0.09, rel=1e-9)


def test_clients_count_alike_whatever_their_size() -> None:
    problem = make_auc(sizes=(8, 3, 6))
    z = point(problem)
    expected = sum(numerical_gradient(lambda v, i=i: problem.value(i, v), z) for i in (0, 1, 2)) / 3.0
    assert_relative(minimax.mean_gradient(problem, [0, 1, 2])(z), expected)


# Estimators.


def test_schedules() -> None:
    assert [minimax.decayed(2.0, 0.5, t) for t in (0, 3, 8)] == pytest.approx([2.0, 1.0, 2.0 / 3.0])
    assert [minimax.storm_alpha(0.5, 0.5, t) for t in (0, 1, 4)] == pytest.approx([0.5, 0.25, 0.1])
    assert minimax.storm_alpha(10.0, 0.2, 3) == 1.0
    assert minimax.storm_alpha(10.0, 0.2, 999) == pytest.approx(10.0 / 1000.0**0.4)


def test_direction_descends_in_x_and_ascends_in_y() -> None:
    np.testing.assert_array_equal(minimax.direction(make_quadratic(2, 1), 0.1, 0.3), [-0.1, -0.1, 0.3])
    assert minimax.direction(make_quadratic(2, 0), 0.1, 0.3).shape == (2,)


def estimates(estimator: Estimator, problem: Problem, path: list[Array], sampled: list[list[int]]) -> list[Array]:
    """Along given points, with given clients S'_t."""
    return [
        estimator.update(t, z, path[max(t - 1, 0)], minimax.mean_gradient(problem, clients))
        for t, (z, clients) in enumerate(zip(path, sampled, strict=True))
    ]


SAMPLED = [[0, 1, 2], [2, 3], [0, 3], [1], [0, 1], [3]]


def test_storm_with_alpha_one_minibatch_and_spider_with_period_one_are_identical() -> None:
    problem = make_pl()
    path = [point(problem, t) for t in range(6)]
    sampled = [[0, 1], [2], [0, 2], [1], [2], [1, 2]]
    plain = estimates(minimax.MiniBatch(), problem, path, sampled)
    np.testing.assert_allclose(plain[2], (problem.gradient(0, path[2]) + problem.gradient(2, path[2])) / 2, rtol=1e-12)
    for estimator in (minimax.Storm(lambda t: 1.0), minimax.Spider(1), minimax.Svrg(1)):
        np.testing.assert_array_equal(estimates(estimator, problem, path, sampled), plain)


def test_estimators_with_some_clients_are_their_definitions() -> None:
    problem = make_quadratic()
    path = [point(problem, t) for t in range(6)]
    g = lambda t, s: np.mean([problem.gradient(i, path[s]) for i in SAMPLED[t]], axis=0)  # noqa: E731
    alpha = [0.9, 0.2, 0.6, 0.3, 0.5, 0.4]
    storm = estimates(minimax.Storm(alpha.__getitem__), problem, path, SAMPLED)
    for t in range(6):  # the error u_t - mean g(z_t) gathers what S'_s and S'_{s-1} disagree about
        error = sum(
            (np.prod([1.0 - a for a in alpha[s : t + 1]]) * (g(s - 1, s - 1) - g(s, s - 1)) for s in range(1, t + 1)),
            np.zeros(5),
        )
        np.testing.assert_allclose(storm[t], g(t, t) + error, rtol=1e-12)
    for t, spider in enumerate(estimates(minimax.Spider(4), problem, path, SAMPLED)):
        start = t - t % 4
        expected = g(start, start) + sum(g(s, s) - g(s, s - 1) for s in range(start + 1, t + 1))
        np.testing.assert_allclose(spider, expected, rtol=1e-12)
    for t, svrg in enumerate(estimates(minimax.Svrg(4), problem, path, SAMPLED)):
        start = t - t % 4
        expected = g(start, start) + g(t, t) - g(t, start)
        np.testing.assert_allclose(svrg, expected, rtol=1e-12)


ESTIMATORS: list[Callable[[], Estimator]] = [
    minimax.MiniBatch,
    lambda: minimax.Storm(lambda t: 0.0),
    lambda: minimax.Storm(lambda t: minimax.storm_alpha(0.7, 0.2, t)),
    lambda: minimax.Storm(lambda t: 0.9 if t % 2 else 0.05),
    lambda: minimax.Spider(3),
    lambda: minimax.Svrg(3),
]


@pytest.mark.parametrize("make", ESTIMATORS)
@pytest.mark.parametrize("problem", [make_pl(), make_auc(sigmoid=True), make_quadratic()])
def test_with_all_clients_every_estimate_is_the_gradient(make: Callable[[], Estimator], problem: Problem) -> None:
    path = [point(problem, t) for t in range(7)]
    found = estimates(make(), problem, path, [everyone(problem)] * 7)
    for z, estimate in zip(path, found, strict=True):
        np.testing.assert_allclose(estimate, full_gradient(problem, z), atol=1e-10)


# FedSGDA.


def test_one_local_step_moves_along_the_estimate_whatever_the_batch() -> None:
    problem = make_pl()
    z, estimate = point(problem), point(problem, 1)
    for seed in range(3):
        moved = minimax.fedsgda_round(problem, z, estimate, [0, 2], random_rows(1, seed=seed), 1, 0.2, 0.7)
        np.testing.assert_allclose(moved[:4], z[:4] - 0.2 * estimate[:4], rtol=1e-13)
        np.testing.assert_allclose(moved[4:], z[4:] + 0.7 * estimate[4:], rtol=1e-13)


@pytest.mark.parametrize("make", ESTIMATORS)
def test_all_clients_and_one_local_step_is_descent_ascent(make: Callable[[], Estimator]) -> None:
    problem, estimator, rows = make_pl(), make(), random_rows(1)
    z = previous = point(problem)
    expected = z
    for t in range(7):
        estimate = estimator.update(t, z, previous, minimax.mean_gradient(problem, [0, 1, 2]))
        steps = minimax.decayed(0.1, 0.2, t), minimax.decayed(0.3, 0.2, t)
        previous, z = z, minimax.fedsgda_round(problem, z, estimate, [t % 3], rows, 1, *steps)
        rate = (t + 1) ** -0.2
        expected = expected + ascend_y(problem, 0.1 * rate, 0.3 * rate) * full_gradient(problem, expected)
        np.testing.assert_allclose(z, expected, rtol=1e-11)
    assert np.linalg.norm(z - point(problem)) > 0.1


def test_local_steps_on_quadratics_against_the_closed_form() -> None:
    problem, rows, clients = make_quadratic(), random_rows(4), [0, 2, 3]
    z, estimate = point(problem), point(problem, 1)
    D = ascend_y(problem, 0.1, 0.2)
    ends = []
    for i in clients:  # e_{k+1} = (I + D H_k) e_k + D u, e_k = z_k - z
        sides = [np.eye(5) + D[:, None] * problem.means(i, rows(i, k))[0] for k in range(4)]
        products = [np.linalg.multi_dot([*sides[:j:-1], np.eye(5), np.eye(5)]) for j in range(4)]
        ends.append(z + sum(products) @ (D * estimate))
    found = minimax.fedsgda_round(problem, z, estimate, clients, rows, 4, 0.1, 0.2)
    np.testing.assert_allclose(found, np.mean(ends, axis=0), rtol=1e-12)


def test_identical_clients_correct_as_one_client_does() -> None:
    problem = make_pl()
    twins = SyntheticPL(np.repeat(problem.data[:1], 3, axis=0), nu=problem.nu, mu=problem.mu)
    z = point(problem)
    for estimate in (point(problem, 1), problem.gradient(0, z)):
        one = minimax.fedsgda_round(problem, z, estimate, [0], whole, 4, 0.1, 0.2)
        np.testing.assert_allclose(
            minimax.fedsgda_round(twins, z, estimate, [0, 1, 2], whole, 4, 0.1, 0.2), one, rtol=1e-13
        )
    plain = z  # the estimate is the gradient of each at z: descent ascent on one's own
    for _ in range(4):
        plain = plain + ascend_y(problem, 0.1, 0.2) * problem.gradient(0, plain)
    np.testing.assert_allclose(one, plain, rtol=1e-12)


@pytest.mark.parametrize("dual", [0, 2])
@pytest.mark.parametrize("make", [lambda: minimax.Spider(5), lambda: minimax.Svrg(5)])
def test_fedsgda_finds_the_solution_of_unequal_clients(make: Callable[[], Estimator], dual: int) -> None:
    problem, estimator = make_quadratic(dual=dual), make()
    rng = np.random.default_rng(6)
    z = previous = point(problem)
    for t in range(250):
        sampled = everyone(problem) if t % 5 == 0 else [int(rng.integers(4))]
        estimate = estimator.update(t, z, previous, minimax.mean_gradient(problem, sampled))
        chosen, rows = rng.choice(4, 2, replace=False), random_rows(3, seed=t)
        previous, z = z, minimax.fedsgda_round(problem, z, estimate, chosen, rows, 3, 0.05, 0.05)
    assert len(z) == 3 + dual
    np.testing.assert_allclose(z, problem.solution(), atol=1e-8)


def test_storm_finds_the_minimiser_without_a_dual() -> None:
    problem = make_quadratic(dual=0)
    assert problem.dual_dim == 0
    estimator = minimax.Storm(lambda t: minimax.storm_alpha(0.5, 0.2, t))
    rows = random_rows(3)
    z = previous = point(problem)
    for t in range(100):
        estimate = estimator.update(t, z, previous, minimax.mean_gradient(problem, everyone(problem)))
        previous, z = z, minimax.fedsgda_round(problem, z, estimate, [t % 4, (t + 1) % 4], rows, 3, 0.1, 0.1)
    np.testing.assert_allclose(z, problem.solution(), atol=1e-9)
    assert np.linalg.eigvalsh(problem.hessians.mean(axis=(0, 1))).min() > 0.0


# CoDA.


def test_coda_primal_step_minimises_its_proximal_model() -> None:
    problem, rows = make_quadratic(), random_rows(1)
    z, reference = point(problem), point(problem, 1)
    step, proximal = 0.3, 0.8
    moved = minimax.coda_round(problem, z, [2], rows, 1, step, 0.2, proximal, reference)
    g = problem.gradient(2, z, rows(2, 0))
    x, new = z[:3], moved[:3]
    np.testing.assert_allclose(g[:3] + (new - x) / step + proximal * (new - reference[:3]), 0.0, atol=1e-12)
    np.testing.assert_allclose(moved[3:], z[3:] + 0.2 * g[3:], rtol=1e-13)
    np.testing.assert_array_equal(
        minimax.coda_round(problem, z, [2], rows, 1, step, 0.2, proximal, reference[:3]), moved
    )


def test_coda_takes_its_steps_one_after_another_and_averages() -> None:
    problem, rows, clients = make_quadratic(), random_rows(3), [0, 3, 1]
    z, reference = point(problem), point(problem, 1)
    options = 0.2, 0.3, 0.5, reference, 1.5
    ends = []
    for i in clients:
        end = z
        for k in range(3):
            end = minimax.coda_round(problem, end, [i], lambda i, _, k=k: rows(i, k), 1, *options)
        ends.append(end)
    found = minimax.coda_round(problem, z, clients, rows, 3, *options)
    np.testing.assert_allclose(found, np.mean(ends, axis=0), rtol=1e-12)


def test_coda_scales_the_dual_gradient_only() -> None:
    problem, rows = make_quadratic(), random_rows(3)
    z, reference = point(problem), point(problem, 1)
    scaled = minimax.coda_round(problem, z, [0, 1], rows, 3, 0.2, 0.1, 0.5, reference, 4.0)
    np.testing.assert_allclose(
        scaled, minimax.coda_round(problem, z, [0, 1], rows, 3, 0.2, 0.4, 0.5, reference), rtol=1e-12
    )
    assert np.linalg.norm(scaled - minimax.coda_round(problem, z, [0, 1], rows, 3, 0.2, 0.1, 0.5, reference)) > 1e-3


def test_coda_rests_at_the_proximal_saddle_of_one_client() -> None:
    problem = make_quadratic(clients=1)
    reference = point(problem, 1)
    H, linear = problem.means(0)
    pull = np.array([0.7] * 3 + [0.0] * 2)
    z = point(problem)
    for _ in range(60):
        z = minimax.coda_round(problem, z, [0], whole, 5, 0.2, 0.2, 0.7, reference)
    np.testing.assert_allclose(z, np.linalg.solve(H + np.diag(pull), pull * reference - linear), atol=1e-9)


def test_coda_stages() -> None:
    found = [minimax.coda_stage(t, 4, 3.0, 2.0) for t in range(52)]
    assert found == [(0, 0, 1.0)] * 4 + [(1, 4, 0.5)] * 12 + [(2, 16, 0.25)] * 36
    starts = [minimax.coda_stage(t, 3, 1.5, 3.0)[1] for t in range(14)]
    assert starts == [0] * 3 + [3] * 4 + [7] * 7
    assert minimax.coda_stage(14, 3, 1.5, 3.0) == (3, 14, pytest.approx(1.0 / 27.0))
    assert [minimax.coda_stage(t, 2, 1.0, 1.0) for t in (0, 1, 2, 5)] == [(0, 0, 1.0)] * 2 + [(1, 2, 1.0), (2, 4, 1.0)]
    assert {minimax.coda_stage(t, 0, 3.0, 2.0) for t in (0, 7, 10**6)} == {(0, 0, 1.0)}
    with pytest.raises(ValueError, match="no rounds"):
        minimax.coda_stage(9, 2, 0.1, 2.0)


# CODASCA.


def descent_ascent(problem: Problem, z: Array, steps: int, rows: Rows, step: float, dual_step: float) -> Array:
    for k in range(steps):
        z = z + ascend_y(problem, step, dual_step) * problem.gradient(0, z, rows(0, k))
    return z


def test_codasca_with_one_client_is_descent_ascent() -> None:
    problem = make_quadratic(clients=1)
    state = minimax.codasca_start(problem, point(problem))
    expected = state.z
    for r in range(4):
        rows = random_rows(3, seed=r)
        state = minimax.codasca_round(problem, state, [0], rows, 3, 0.1, 0.2, 0.0, state.z)
        expected = descent_ascent(problem, expected, 3, rows, 0.1, 0.2)
        np.testing.assert_allclose(state.z, expected, rtol=1e-12)
        np.testing.assert_allclose(state.controls[0], state.control, rtol=1e-12)


def test_codasca_with_identical_clients_is_descent_ascent() -> None:
    problem = identical(make_quadratic(), 3)
    state = minimax.codasca_start(problem, point(problem))
    expected = state.z
    for _ in range(4):
        state = minimax.codasca_round(problem, state, [0, 1, 2], whole, 3, 0.1, 0.2, 0.0, state.z)
        expected = descent_ascent(problem, expected, 3, whole, 0.1, 0.2)
        np.testing.assert_allclose(state.z, expected, rtol=1e-12)


@pytest.mark.parametrize("clients", [[0, 1, 2, 3], [3], [0, 2]])
def test_codasca_with_exact_controls_takes_the_global_gradient_step(clients: list[int]) -> None:
    problem = make_quadratic()
    z = point(problem)
    controls = np.stack([problem.gradient(i, z) for i in range(4)])
    state = minimax.Codasca(z, controls.mean(axis=0), controls)
    after = minimax.codasca_round(problem, state, clients, whole, 1, 0.1, 0.2, 0.0, z)
    np.testing.assert_allclose(after.z, z + ascend_y(problem, 0.1, 0.2) * full_gradient(problem, z), rtol=1e-12)
    np.testing.assert_allclose(after.controls, controls, rtol=1e-13)
    np.testing.assert_allclose(after.control, state.control, rtol=1e-12)


def test_codasca_controls_are_mean_gradients_and_the_server_holds_their_mean() -> None:
    problem = make_quadratic()
    state = minimax.codasca_start(problem, point(problem))
    for r, clients in enumerate([[0, 1], [1, 3, 2], [2], [0, 1, 2, 3], [3, 0]]):
        rows = random_rows(3, seed=r)
        options = 0.1, 0.2, 0.4, point(problem, 1)
        after = minimax.codasca_round(problem, state, clients, rows, 3, *options, server_step=0.7)
        for i in range(4):
            if i in clients:
                alone = [minimax.codasca_round(problem, state, [i], rows, k, *options).z for k in (1, 2)]
                visited = [state.z, *alone]
                gradients = [problem.gradient(i, z, rows(i, k)) for k, z in enumerate(visited)]
                np.testing.assert_allclose(after.controls[i], np.mean(gradients, axis=0), rtol=1e-12)
            else:
                np.testing.assert_array_equal(after.controls[i], state.controls[i])
        np.testing.assert_allclose(after.control, after.controls.mean(axis=0), rtol=1e-12)
        ends = [minimax.codasca_round(problem, state, [i], rows, 3, *options).z for i in clients]
        np.testing.assert_allclose(after.z, 0.3 * state.z + 0.7 * np.mean(ends, axis=0), rtol=1e-12)
        state = after


def test_codasca_local_step_with_controls_and_proximal_term() -> None:
    problem, rows = make_quadratic(), random_rows(2)
    z, reference, proximal = point(problem), point(problem, 1), 0.6
    control, controls = point(problem, 2), np.stack([point(problem, 3 + i) for i in range(4)])
    after = minimax.codasca_round(
        problem, minimax.Codasca(z, control, controls), [1], rows, 2, 0.1, 0.2, proximal, reference
    )
    x, y = z[:3], z[3:]
    for k in range(2):
        g = problem.gradient(1, np.concatenate([x, y]), rows(1, k)) - controls[1] + control
        x, y = x - 0.1 * g[:3] - 0.1 * proximal * (x - reference[:3]), y + 0.2 * g[3:]
    np.testing.assert_allclose(after.z, np.concatenate([x, y]), rtol=1e-12)


def test_codasca_scales_gradients_and_controls_alike() -> None:
    problem = make_quadratic()
    scaled = plain = minimax.codasca_start(problem, point(problem))
    factor = np.array([1.0] * 3 + [4.0] * 2)
    for r in range(3):
        rows, clients = random_rows(3, seed=r), [r, r + 1]
        scaled = minimax.codasca_round(problem, scaled, clients, rows, 3, 0.1, 0.05, 0.0, scaled.z, scale_dual=4.0)
        plain = minimax.codasca_round(problem, plain, clients, rows, 3, 0.1, 0.2, 0.0, plain.z)
        np.testing.assert_allclose(scaled.z, plain.z, rtol=1e-12)
        np.testing.assert_allclose(scaled.controls, factor * plain.controls, rtol=1e-11)
        np.testing.assert_allclose(scaled.control, factor * plain.control, rtol=1e-11)


def test_codasca_finds_the_saddle_of_unequal_clients_where_coda_does_not() -> None:
    problem = make_quadratic()
    state = minimax.codasca_start(problem, point(problem))
    z = state.z
    for r in range(200):
        clients = [i for i in range(4) if i != r % 4]
        state = minimax.codasca_round(problem, state, clients, whole, 4, 0.05, 0.05, 0.0, state.z)
        z = minimax.coda_round(problem, z, clients, whole, 4, 0.05, 0.05, 0.0, z)
    np.testing.assert_allclose(state.z, problem.solution(), atol=1e-8)
    np.testing.assert_allclose(state.controls, [problem.gradient(i, state.z) for i in range(4)], atol=1e-7)
    assert np.linalg.norm(z - problem.solution()) > 1e-3


# LocalSGDAM.


def test_localsgdam_without_memory_is_coda_without_proximal_term() -> None:
    problem, batches = make_pl(), random_rows(13)
    eta, gamma_x, gamma_y, K = 0.25, 0.3, 0.5, 3
    z = expected = point(problem)
    momentum = None
    for r in range(4):
        z, momentum = minimax.localsgdam_round(
            problem, z, momentum, [1], batches, K, K * r, eta, gamma_x, gamma_y, 1.0 / eta, 1.0 / eta
        )
        rows = lambda i, k, r=r: batches(i, K * r + k)  # noqa: E731
        expected = minimax.coda_round(
            problem, expected, [1], rows, K, gamma_x * eta, gamma_y * eta, 0.0, np.zeros_like(z)
        )
        np.testing.assert_allclose(z, expected, rtol=1e-12)
        np.testing.assert_allclose(momentum, problem.gradient(1, z, batches(1, K * (r + 1))), rtol=1e-12)


def test_localsgdam_on_a_quadratic_against_powers_of_its_matrix() -> None:
    problem = make_quadratic(clients=1)
    eta, gamma_x, gamma_y, beta_x, beta_y = 0.3, 0.4, 0.5, 1.2, 2.1
    H, linear = problem.means(0)
    D, B = np.diag(ascend_y(problem, gamma_x * eta, gamma_y * eta)), np.diag([beta_x * eta] * 3 + [beta_y * eta] * 2)
    one = np.eye(5)
    step = np.block(  # (z, m, 1) -> (z + D m, (I - B) m + B (H (z + D m) + l), 1)
        [
            [one, D, np.zeros((5, 1))],
            [B @ H, one - B + B @ H @ D, (B @ linear)[:, None]],
            [np.zeros((1, 5)), np.zeros((1, 5)), np.ones((1, 1))],
        ]
    )
    z, momentum = point(problem), None
    start = np.concatenate([z, H @ z + linear, [1.0]])
    for r in range(3):
        z, momentum = minimax.localsgdam_round(
            problem, z, momentum, [0], whole, 4, 4 * r, eta, gamma_x, gamma_y, beta_x, beta_y
        )
        expected = np.linalg.matrix_power(step, 4 * (r + 1)) @ start
        np.testing.assert_allclose(z, expected[:5], rtol=1e-11)
        np.testing.assert_allclose(momentum, expected[5:10], rtol=1e-11)


def test_localsgdam_batches_are_counted_over_the_run() -> None:
    problem, batches = make_quadratic(), random_rows(5)
    options = 0.3, 0.4, 0.5, 1.2, 2.1
    asked: list[tuple[int, int]] = []

    def rows(i: int, j: int) -> Index | None:
        asked.append((i, j))
        return batches(i, j)

    z, momentum = minimax.localsgdam_round(problem, point(problem), None, [0, 2], rows, 2, 0, *options)
    assert asked == [(i, j) for i in (0, 2) for j in (0, 1, 2)]
    asked.clear()
    halves = [minimax.localsgdam_round(problem, z, momentum, [i], rows, 2, 2, *options) for i in (2, 3)]
    assert asked == [(i, j) for i in (2, 3) for j in (3, 4)]
    for got, parts in zip(
        minimax.localsgdam_round(problem, z, momentum, [2, 3], rows, 2, 2, *options),
        zip(*halves, strict=True),
        strict=True,
    ):
        np.testing.assert_allclose(got, np.mean(parts, axis=0), rtol=1e-13)


# All of them at once.


def test_clients_with_equal_hessians_behave_as_one_client_with_all_the_data() -> None:
    problem = make_quadratic(spread=0.0)
    centre, all_of_them = merged(problem), [0, 1, 2, 3]
    z, reference = point(problem), point(problem, 1)
    estimate = full_gradient(problem, z)
    fedsgda = [
        minimax.fedsgda_round(p, z, estimate, c, whole, 3, 0.1, 0.2) for p, c in ((problem, all_of_them), (centre, [0]))
    ]
    coda = [
        minimax.coda_round(p, z, c, whole, 3, 0.1, 0.2, 0.5, reference, 2.0)
        for p, c in ((problem, all_of_them), (centre, [0]))
    ]
    np.testing.assert_allclose(fedsgda[0], fedsgda[1], rtol=1e-12)
    np.testing.assert_allclose(coda[0], coda[1], rtol=1e-12)
    ends = []
    for p, c in ((problem, all_of_them), (centre, [0])):
        state, pair = minimax.codasca_start(p, z), (z, None)
        for r in range(3):
            state = minimax.codasca_round(p, state, c, whole, 3, 0.1, 0.2, 0.5, reference, 0.8, 2.0)
            pair = minimax.localsgdam_round(p, *pair, c, whole, 3, 3 * r, 0.3, 0.4, 0.5, 1.2, 2.1)
        ends.append(np.concatenate([state.z, state.control, *pair]))
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-11)


def test_arguments_are_left_alone() -> None:
    problem, rows = make_quadratic(), random_rows(4)
    z, reference, momentum = (point(problem, seed) for seed in range(3))
    state = minimax.Codasca(z, momentum, np.stack([point(problem, 3 + i) for i in range(4)]))
    arrays = [z, reference, momentum, state.controls]
    copies = [array.copy() for array in arrays]
    minimax.fedsgda_round(problem, z, reference, [0, 1], rows, 3, 0.1, 0.2)
    minimax.coda_round(problem, z, [0, 1], rows, 3, 0.1, 0.2, 0.5, reference)
    minimax.codasca_round(problem, state, [0, 1], rows, 3, 0.1, 0.2, 0.5, reference)
    minimax.localsgdam_round(problem, z, momentum, [0, 1], rows, 3, 0, 0.3, 0.4, 0.5, 1.2, 2.1)
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
