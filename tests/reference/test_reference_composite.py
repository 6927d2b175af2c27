"""The NumPy reference of composite federated learning against finite differences, closed forms and special cases."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from . import composite, scgdam
from .composite import Composite, FastFedDA, FedDA, Prox, Smooth
from .minimax import Array, Index, Rows

DIM = 6
GROUPS = [[0, 3], [1], [2, 4, 5]]
PENALTIES: dict[str, Prox] = {
    "none": composite.none(),
    "l1": composite.l1(0.05),
    "squared-l2": composite.squared_l2(0.3),
    "elastic-net": composite.elastic_net(0.1, 0.4),
    "group-lasso": composite.group_lasso(0.05, GROUPS),
    "nuclear-norm": composite.nuclear_norm(0.05, (2, 3)),
    "box": composite.box(-0.2, 0.3),
    "l2-ball": composite.l2_ball(0.4),
    "simplex": composite.simplex(),
    "nonnegative": composite.nonnegative(),
}
SETS = ("box", "l2-ball", "simplex", "nonnegative")
LOSS = pytest.mark.parametrize("loss", ["logistic", "squared"])
PENALTY = pytest.mark.parametrize("name", PENALTIES)
CURVED = pytest.mark.parametrize("name", [name for name in PENALTIES if name not in (*SETS, "none")])
BATCHES = pytest.mark.parametrize("rows", [None, [0, 4, 4], [5]])


def make(loss: str = "logistic", clients: int = 4, sizes: Sequence[int] = (8, 8, 8, 8), ridge: float = 0.1) -> Smooth:
    """Clients with different features and different label vectors; read-only, so that a change in place fails."""
    rng = np.random.default_rng(4)
    features, labels = [], []
    for i in range(clients):
        A = rng.normal(0.4 * i, 1.0, (sizes[i], DIM))
        s = A @ rng.normal(0.3, 1.0, DIM)
        features.append(frozen(A))
        labels.append(frozen(np.sign(s) if loss == "logistic" else s))
    return Smooth(features, labels, ridge, loss)


def identical(problem: Smooth, copies: int) -> Smooth:
    """`copies` clients that all hold the data of client 0."""
    return Smooth(problem.features[:1] * copies, problem.labels[:1] * copies, problem.ridge, problem.loss)


def frozen(x: Array) -> Array:
    x.flags.writeable = False
    return x


def vector(seed: int = 0, size: int = DIM) -> Array:
    return frozen(np.random.default_rng(seed).normal(0.0, 0.8, size))


def whole(i: int, t: int) -> None:
    return None


def random_rows(seed: int, batch: int = 2, samples: int = 8) -> Rows:
    """The batches of every client and every local step differ; one seed a round."""
    table = np.random.default_rng(seed).integers(samples, size=(40, 60, batch))
    return lambda i, t: table[i, t]


def mean_gradient(problem: Smooth, points: Sequence[Array], rows: Sequence[Index | None]) -> Array:
    """The mean over the clients, each at its own point and batch."""
    gradients = [problem.gradient(i, x, batch) for i, (x, batch) in enumerate(zip(points, rows, strict=True))]
    return sum(gradients) / len(gradients)


def far(got: Array, other: Array) -> float:
    return float(np.max(np.abs(got - other)))


# Problem.


@LOSS
@BATCHES
def test_gradients_against_finite_differences(loss: str, rows: Index | None) -> None:
    problem, h = make(loss), 1e-5
    for i in range(4):
        x = vector(i)
        expected = [
            (problem.value(i, x + h * e, rows) - problem.value(i, x - h * e, rows)) / (2.0 * h) for e in np.eye(DIM)
        ]
        np.testing.assert_allclose(problem.gradient(i, x, rows), expected, rtol=1e-6, atol=1e-8)


def test_values_are_their_definitions() -> None:
    logistic, squared, x = make("logistic"), make("squared"), vector()
    ridge = 0.1 / 2.0 * sum(x_j**2 for x_j in x)
    losses = [
        np.log(1.0 + np.exp(-b * sum(a * x))) for a, b in zip(logistic.features[2], logistic.labels[2], strict=True)
    ]
    assert logistic.value(2, x) == pytest.approx(sum(losses) / 8 + ridge, rel=1e-13)
    assert logistic.value(2, x, [1, 6]) == pytest.approx((losses[1] + losses[6]) / 2 + ridge, rel=1e-13)
    losses = [(sum(a * x) - b) ** 2 / 2.0 for a, b in zip(squared.features[1], squared.labels[1], strict=True)]
    assert squared.value(1, x) == pytest.approx(sum(losses) / 8 + ridge, rel=1e-13)


def test_large_scores_overflow_nowhere() -> None:
    problem = Smooth([np.array([[1.0], [-1.0]])], [np.array([1.0, 1.0])])
    # ln(1 + exp(-1e4)) = 0 and ln(1 + exp(1e4)) = 1e4; the slopes are 0 and -b a = 1
    assert problem.value(0, np.array([1e4])) == pytest.approx(5e3)
    np.testing.assert_allclose(problem.gradient(0, np.array([1e4])), [0.5])


@LOSS
def test_the_mean_over_clients_is_plain(loss: str) -> None:
    problem, x = make(loss, sizes=(3, 8, 2, 5)), vector()
    values = [problem.value(i, x) for i in range(4)]
    assert problem.mean_value(x) == pytest.approx(sum(values) / 4, rel=1e-14)
    np.testing.assert_allclose(problem.mean_gradient(x), mean_gradient(problem, [x] * 4, [None] * 4), rtol=1e-13)
    samples = np.concatenate(problem.features), np.concatenate(problem.labels)
    assert Smooth([samples[0]], [samples[1]], 0.1, loss).mean_value(x) != pytest.approx(problem.mean_value(x), rel=1e-3)


@LOSS
def test_smoothness_bounds_the_gradient_and_is_attained_at_zero(loss: str) -> None:
    problem, h = make(loss), 1e-4
    for clients in (None, [2], [0, 3]):
        chosen = range(4) if clients is None else clients
        gradient = lambda x, chosen=chosen: sum(problem.gradient(i, x) for i in chosen) / len(chosen)  # noqa: E731
        hessian = np.array([(gradient(h * e) - gradient(-h * e)) / (2.0 * h) for e in np.eye(DIM)])
        assert problem.smoothness(clients) == pytest.approx(
            np.linalg.eigvalsh((hessian + hessian.T) / 2.0)[-1], rel=1e-6
        )
        for seed in range(5):
            x, y = vector(seed), vector(seed + 10)
            change = np.linalg.norm(gradient(x) - gradient(y))
            assert change <= problem.smoothness(clients) * np.linalg.norm(x - y)


def test_unknown_loss() -> None:
    with pytest.raises(ValueError, match="unknown loss 'hinge'"):
        Smooth([np.eye(2)], [np.ones(2)], loss="hinge")


# Synthetic(alpha, beta).


def test_synthetic_is_its_definition() -> None:
    features, labels = composite.synthetic(np.random.default_rng(3), 5, 40, 0.25, 0.09, dim=7)
    rng, moved = np.random.default_rng(3), 0
    for A, b in zip(features, labels, strict=True):
        u, B = 0.5 * rng.standard_normal(), 0.3 * rng.standard_normal()  # the roots of alpha and beta
        w, c, v = u + rng.standard_normal(7), u + rng.standard_normal(), B + rng.standard_normal(7)
        raw = [v + [e / np.sqrt((j + 1) ** 1.2) for j, e in enumerate(rng.standard_normal(7))] for _ in range(40)]
        np.testing.assert_allclose(b, [1.0 if sum(w * a) + c >= 0 else -1.0 for a in raw])
        np.testing.assert_allclose(A, [a / np.sqrt(sum(a * a)) for a in raw], rtol=1e-12)
        moved += sum(np.sign(A @ w + c) != b)
    assert moved > 0  # so the labels tell raw features from scaled ones


def test_synthetic_shapes_and_values() -> None:
    features, labels = composite.synthetic(np.random.default_rng(0), 3, 20, 10.0, 10.0)
    assert [A.shape for A in features] == [(20, 60)] * 3
    assert {value for b in labels for value in b} <= {-1.0, 1.0}
    np.testing.assert_allclose(np.linalg.norm(features, axis=2), 1.0, rtol=1e-14)


# Penalties.

# Of a norm g = weight ||.||, p = P_{step g}(x) is where s = (x - p) / step has dual norm <= weight and <s, p> = g(p).
NORMS: dict[str, tuple[Callable[[float], Prox], Callable[[Array], float], Callable[[Array], float]]] = {
    "l1": (composite.l1, lambda p: sum(abs(p)), lambda s: max(abs(s))),
    "group-lasso": (
        lambda weight: composite.group_lasso(weight, GROUPS),
        lambda p: sum(np.sqrt(len(g)) * np.linalg.norm(p[g]) for g in GROUPS),
        lambda s: max(np.linalg.norm(s[g]) / np.sqrt(len(g)) for g in GROUPS),
    ),
    "nuclear-norm": (
        lambda weight: composite.nuclear_norm(weight, (2, 3)),
        lambda p: np.linalg.norm(p.reshape(2, 3), "nuc"),
        lambda s: np.linalg.norm(s.reshape(2, 3), 2),
    ),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("step", [0.25, 2.0])
@pytest.mark.parametrize("weight", [0.1, 0.4])
def test_proxes_of_norms_by_their_dual(name: str, step: float, weight: float) -> None:
    build, norm, dual = NORMS[name]
    for seed in range(10):
        x = vector(seed)
        p = build(weight)(x, step)
        s = (x - p) / step
        assert dual(s) <= weight * (1.0 + 1e-12)
        assert s @ p == pytest.approx(weight * norm(p), abs=1e-13)


def test_proxes_of_norms_reach_zero_in_parts() -> None:
    x = np.array([0.5, -0.1, -2.0, 0.3, 0.1, 0.0])
    np.testing.assert_allclose(composite.l1(0.2)(x, 1.0), [0.3, 0.0, -1.8, 0.1, 0.0, 0.0], atol=1e-15)
    p = composite.group_lasso(0.5, GROUPS)(x, 1.0)
    # thresholds 0.5 sqrt(size): the norm 0.583 of (0.5, 0.3) is below 0.707, 0.1 below 0.5, 2.0025 above 0.866
    np.testing.assert_array_equal(p == 0.0, [True, True, False, True, False, True])
    matrix = np.outer([1.0, 2.0], [2.0, 1.0, -1.0]) + 0.01 * np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    p = composite.nuclear_norm(0.1, (2, 3))(matrix.ravel(), 1.0)
    assert (np.linalg.matrix_rank(matrix), np.linalg.matrix_rank(p.reshape(2, 3), tol=1e-12)) == (2, 1)


def test_entries_outside_all_groups_are_free() -> None:
    p = composite.group_lasso(10.0, [[1, 2]])(vector(), 1.0)
    np.testing.assert_array_equal(p, [vector()[0], 0.0, 0.0, *vector()[3:]])


@pytest.mark.parametrize("step", [0.25, 2.0])
@pytest.mark.parametrize("ratio", [0.0, 0.4, 1.0])
def test_the_prox_of_the_elastic_net_by_its_subdifferential(step: float, ratio: float) -> None:
    weight, zeros = 0.6, 0
    for seed in range(10):
        x = vector(seed)
        p = composite.elastic_net(weight, ratio)(x, step)
        s = (x - p) / step - weight * (1.0 - ratio) * p  # of weight ratio |p_j|
        for s_j, p_j in zip(s, p, strict=True):
            if p_j == 0.0:
                assert abs(s_j) <= weight * ratio * (1.0 + 1e-12)
            else:
                assert s_j == pytest.approx(weight * ratio * np.sign(p_j), abs=1e-13)
        zeros += sum(p == 0.0)
    assert (zeros > 0) == (ratio > 0.0)


def test_the_prox_of_the_square_by_its_gradient() -> None:
    p = composite.squared_l2(0.7)(vector(), 1.5)
    np.testing.assert_allclose((vector() - p) / 1.5, 0.7 * p, rtol=1e-13)


# p is the projection of x on a convex set where p is in it and (x - p).(q - p) <= 0 for every q in it.


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_projections_by_their_variational_inequality(scale: float) -> None:
    for seed in range(10):
        x = scale * vector(seed)
        p = composite.box(-0.2, 0.3)(x, 1.0)
        assert np.all((p >= -0.2) & (p <= 0.3))
        assert max((x - p) @ (np.array(q) - p) for q in product([-0.2, 0.3], repeat=DIM)) <= 1e-14  # its corners
        p = composite.simplex(1.5)(x, 1.0)
        assert np.all(p >= 0.0)
        assert p.sum() == pytest.approx(1.5, rel=1e-14)
        assert max((x - p) @ (1.5 * q - p) for q in np.eye(DIM)) <= 1e-14  # its corners
        p = composite.l2_ball(0.4)(x, 1.0)
        assert np.linalg.norm(p) <= 0.4 * (1.0 + 1e-14)
        assert 0.4 * np.linalg.norm(x - p) - (x - p) @ p <= 1e-14  # the largest (x - p).q is 0.4 ||x - p||
        p = composite.nonnegative()(x, 1.0)
        assert np.all(p >= 0.0)
        assert np.all(x - p <= 0.0)  # q = p + a unit vector
        assert (x - p) @ p == 0.0  # q = 0 and q = 2 p


@PENALTY
def test_proxes_and_their_step(name: str) -> None:
    prox, x = PENALTIES[name], 2.0 * vector()
    copied = prox(x, 0.7)
    assert not np.shares_memory(copied, x)
    if name in (*SETS, "none"):
        np.testing.assert_array_equal(copied, prox(x, 0.01))  # whatever the step
        assert (far(copied, x) > 0.1) == (name in SETS)
    else:
        np.testing.assert_allclose(prox(x, 0.0), x, rtol=1e-13)
        assert far(copied, prox(x, 0.01)) > 1e-3


@PENALTY
def test_proxes_at_zero(name: str) -> None:
    expected = np.full(DIM, 1.0 / DIM) if name == "simplex" else np.zeros(DIM)
    np.testing.assert_allclose(PENALTIES[name](frozen(np.zeros(DIM)), 0.7), expected, rtol=1e-15)


# Optimum.


@LOSS
@PENALTY
def test_the_optimum_is_a_fixed_point_for_every_step(loss: str, name: str) -> None:
    problem, prox = make(loss), PENALTIES[name]
    x = composite.optimum(problem, prox)
    for step in (0.1, 1.0, 3.0):
        assert far(prox(x - step * problem.mean_gradient(x), step), x) < 1e-14 * (1.0 + 10.0 * step)
    assert composite.optimality(x, x) == 0.0


def test_the_optimum_in_closed_form() -> None:
    problem, penalty = make("squared"), 0.3
    second = sum(A.T @ A / 8 for A in problem.features) / 4
    cross = sum(A.T @ b / 8 for A, b in zip(problem.features, problem.labels, strict=True)) / 4
    expected = np.linalg.solve(second + 0.1 * np.eye(DIM), cross)
    assert composite.optimality(composite.optimum(problem, composite.none()), expected) < 1e-13
    expected = np.linalg.solve(second + (0.1 + penalty) * np.eye(DIM), cross)
    assert composite.optimality(composite.optimum(problem, composite.squared_l2(penalty)), expected) < 1e-13
    # 0 is optimal where no entry of grad f(0) = -cross is larger than the weight
    assert not composite.optimum(problem, composite.l1(1.01 * np.max(np.abs(cross)))).any()
    assert composite.optimum(problem, composite.l1(0.99 * np.max(np.abs(cross)))).any()


def test_an_optimum_that_is_not_reached() -> None:
    with pytest.raises(RuntimeError, match="not reached"):
        composite.optimum(make(), composite.none(), limit=5)


# Algorithm 1.


def run(
    problem: Smooth, prox: Prox, rounds: int, x_bar: Array | None = None, stochastic: bool = False, **options: Any
) -> list[Composite]:
    """All states, the first included; tau 3, eta 0.3 unless told. `eta` may be one number a round."""
    options = {"tau": 3, "eta": 0.3} | options
    etas = np.broadcast_to(options.pop("eta"), (rounds,))
    states = [composite.composite_start(problem, vector() if x_bar is None else x_bar)]
    for r in range(rounds):
        rows = random_rows(r) if stochastic else whole
        states.append(composite.composite_round(problem, states[-1], prox, rows, eta=float(etas[r]), **options))
    return states


def points(states: Sequence[Composite], prox: Prox) -> list[Array]:
    return [composite.composite_point(state, prox) for state in states[1:]]


@PENALTY
def test_the_rounds_are_equations_2_to_4(name: str) -> None:
    """The compact form of the paper: the corrections never appear, only mean gradients of the round before."""
    problem, prox, tau, eta, eta_g = make(), PENALTIES[name], 3, 0.3, 1.4
    states = run(problem, prox, 4, stochastic=True, tau=tau, eta=eta, eta_g=eta_g)
    x_bar, before = vector(), np.zeros((tau, 4, DIM))
    for r in range(4):
        start = prox(x_bar, tau * eta * eta_g)
        z = z_hat = np.tile(start, (4, 1))
        seen = np.zeros((tau, 4, DIM))
        for t in range(tau):
            seen[t] = [problem.gradient(i, z[i], random_rows(r)(i, t)) for i in range(4)]
            own, mean = sum(before) / tau, sum(sum(g) / 4 for g in before) / tau
            z_hat = z_hat - eta * (seen[t] + mean - own)
            z = np.array([prox(z_i, (t + 1) * eta) for z_i in z_hat])
        x_bar, before = start - eta_g * eta * sum(sum(g) / 4 for g in seen), seen
        assert far(states[r + 1].x_bar, x_bar) < 1e-14
        assert far(states[r + 1].gradients, sum(seen) / tau) < 1e-14


@pytest.mark.parametrize("stochastic", [False, True])
@PENALTY
def test_the_corrections_sum_to_zero(name: str, stochastic: bool) -> None:
    for state in run(make(), PENALTIES[name], 20, stochastic=stochastic, eta_g=1.4)[2:]:
        assert np.max(np.abs(state.corrections.sum(axis=0))) < 1e-13
        assert np.max(np.abs(state.corrections)) > 1e-2


@pytest.mark.parametrize("clients", [1, 4])
@pytest.mark.parametrize("eta_g", [1.0, 0.6])
@PENALTY
def test_one_local_step_is_proximal_gradient_descent(name: str, clients: int, eta_g: float) -> None:
    """The steps may change: the prox of a point has the step that made it."""
    problem, prox, etas = make(clients=clients), PENALTIES[name], [0.3, 0.3, 0.5, 0.1, 0.4, 0.2]
    x = prox(vector(), etas[0] * eta_g)
    for eta, got in zip(etas, points(run(problem, prox, 6, tau=1, eta=etas, eta_g=eta_g), prox), strict=True):
        x = prox(x - eta * eta_g * problem.mean_gradient(x), eta * eta_g)
        assert far(got, x) < 1e-13


@pytest.mark.parametrize("tau", [1, 2, 5])
@pytest.mark.parametrize("etas", [[0.2] * 5, [0.2, 0.4, 0.1, 0.3, 0.3]])
@PENALTY
def test_one_client_stays_at_the_optimum(name: str, etas: list[float], tau: int) -> None:
    problem, prox, eta_g = make(clients=1), PENALTIES[name], 1.2
    best = composite.optimum(problem, prox)
    x_bar = best - etas[0] * eta_g * tau * problem.gradient(0, best)
    for x in points(run(problem, prox, 5, x_bar, tau=tau, eta=etas, eta_g=eta_g), prox):
        assert far(x, best) < 1e-13


@pytest.mark.parametrize("multiple", [1.0, 5.0])
@CURVED
def test_one_client_leaves_the_optimum_with_a_constant_local_parameter(name: str, multiple: float) -> None:
    """eta and eta~ in the place of (t + 1) eta."""
    problem, prox = make(clients=1), PENALTIES[name]
    best = composite.optimum(problem, prox)
    x_bar = best - 0.2 * 5 * problem.gradient(0, best)
    states = run(problem, prox, 20, x_bar, tau=5, eta=0.2, local=lambda t, eta: multiple * eta)
    assert far(points(states, prox)[-1], best) > 1e-4
    assert far(points(run(problem, prox, 20, x_bar, tau=5, eta=0.2), prox)[-1], best) < 1e-13


class ScaffoldProblem:
    """What `scgdam.scaffold_round` asks of a problem."""

    def __init__(self, problem: Smooth) -> None:
        self.num_clients, self.ce_gradient = problem.num_clients, problem.gradient


@pytest.mark.parametrize("stochastic", [False, True])
@LOSS
def test_without_a_penalty_it_is_scaffold(loss: str, stochastic: bool) -> None:
    problem, eta, eta_g = make(loss), 0.05, 1.3
    adapter: Any = ScaffoldProblem(problem)
    states = run(problem, composite.none(), 12, stochastic=stochastic, tau=4, eta=eta, eta_g=eta_g)
    other = scgdam.scaffold_start(adapter, vector())
    for r, state in enumerate(states[1:]):
        rows = random_rows(r) if stochastic else whole
        other = scgdam.scaffold_round(adapter, other, range(4), rows, 4, eta, eta_g)
        assert far(state.x_bar, other.w) < 1e-12
        assert far(state.corrections, other.control - other.controls) < 1e-12


@PENALTY
def test_identical_clients_are_one_worker(name: str) -> None:
    problem, prox = identical(make(), 3), PENALTIES[name]
    one = run(make(clients=1), prox, 8)
    for state, expected in zip(run(problem, prox, 8), one, strict=True):
        assert far(state.x_bar, expected.x_bar) < 1e-14
        assert np.max(np.abs(state.corrections)) < 1e-14


def test_the_output_needs_a_round() -> None:
    with pytest.raises(ValueError, match="no round"):
        composite.composite_point(composite.composite_start(make(), vector()), composite.none())


# Lost clients.


def test_a_round_that_lost_a_client_is_discarded() -> None:
    problem, prox = make(), PENALTIES["l1"]
    before = run(problem, prox, 3)[-1]
    for delivered in ([], [0, 1, 3], [2], [0, 0, 1, 3]):
        assert composite.composite_round(problem, before, prox, whole, 3, 0.3, delivered=delivered) is before
    for rule in ("keep", "update"):  # there is nothing to average
        assert composite.composite_round(problem, before, prox, whole, 3, 0.3, delivered=[], partial=rule) is before
    again = composite.composite_round(problem, before, prox, whole, 3, 0.3, delivered=[3, 2, 1, 0])
    np.testing.assert_array_equal(again.x_bar, run(problem, prox, 4)[-1].x_bar)


@pytest.mark.parametrize("tau", [1, 3])
def test_a_client_that_was_away_and_keeps_its_correction_does_no_harm(tau: int) -> None:
    problem, prox = make(), PENALTIES["l1"]
    state = run(problem, prox, 3, tau=tau)[-1]
    kept = state.corrections[2]
    state = composite.composite_round(problem, state, prox, whole, tau, 0.3, delivered=[0, 1, 3], partial="keep")
    np.testing.assert_array_equal(state.corrections[2], kept)
    assert np.max(np.abs(state.corrections.mean(axis=0))) < 1e-15
    for _ in range(600):
        state = composite.composite_round(problem, state, prox, whole, tau, 0.3)
    assert composite.optimality(composite.composite_point(state, prox), composite.optimum(problem, prox)) < 1e-12


@pytest.mark.parametrize("tau", [1, 3])
def test_a_correction_updated_without_the_round_leaves_a_permanent_error(tau: int) -> None:
    problem, prox = make(), PENALTIES["l1"]
    best = composite.optimum(problem, prox)
    state = run(problem, prox, 3, tau=tau)[-1]
    state = composite.composite_round(problem, state, prox, whole, tau, 0.3, delivered=[0, 1, 3], partial="update")
    error = state.corrections.mean(axis=0)
    assert np.linalg.norm(error) > 1e-2
    found = []
    for r in range(1200):
        state = composite.composite_round(problem, state, prox, whole, tau, 0.3)
        if r in (599, 1199):
            found.append(composite.composite_point(state, prox))
    assert far(state.corrections.mean(axis=0), error) < 1e-13
    assert far(found[0], found[1]) < 1e-12
    assert composite.optimality(found[1], best) > 1e-2
    if tau == 1:  # it is the optimum of f + <error, x> + g
        assert far(prox(found[1] - problem.mean_gradient(found[1]) - error, 1.0), found[1]) < 1e-12


# FedMid.


@pytest.mark.parametrize("server", ["round", "step", "none"])
def test_fedmid_without_a_penalty_is_federated_averaging(server: str) -> None:
    problem, tau, eta, eta_g = make(), 3, 0.2, 1.3
    x = average = vector()
    for r in range(5):
        x = composite.fedmid_round(problem, x, composite.none(), random_rows(r), tau, eta, eta_g, server)
        ends = []
        for i in range(4):
            z = average
            for t in range(tau):
                z = z - eta * problem.gradient(i, z, random_rows(r)(i, t))
            ends.append(z)
        average = (1.0 - eta_g) * average + eta_g * sum(ends) / 4
        assert far(x, average) < 1e-14


@CURVED
def test_the_proxes_of_fedmid(name: str) -> None:
    """Two steps of two clients, written out."""
    problem, prox, x, eta, eta_g = make(clients=2), PENALTIES[name], vector(), 0.2, 1.3
    z0 = prox(x - eta * problem.gradient(0, x), eta)
    z0 = prox(z0 - eta * problem.gradient(0, z0), eta)
    z1 = prox(x - eta * problem.gradient(1, x), eta)
    z1 = prox(z1 - eta * problem.gradient(1, z1), eta)
    mean = x + eta_g * ((z0 + z1) / 2.0 - x)
    expected = {"round": prox(mean, 1.3 * 0.2 * 2), "step": prox(mean, 1.3 * 0.2), "none": mean}
    for server, point in expected.items():
        got = composite.fedmid_round(problem, x, prox, whole, 2, eta, eta_g, server)
        assert far(got, point) < 1e-14
    assert far(composite.fedmid_round(problem, x, prox, whole, 2, eta, eta_g), expected["round"]) < 1e-14
    assert min(far(expected["round"], expected["step"]), far(expected["step"], expected["none"])) > 1e-3


def test_unknown_rules() -> None:
    problem = make()
    start = composite.composite_start(problem, vector())
    with pytest.raises(ValueError, match="unknown rule 'both'"):
        composite.fedmid_round(problem, vector(), composite.none(), whole, 1, 0.1, server="both")
    with pytest.raises(ValueError, match="unknown rule 'drop'"):
        composite.composite_round(problem, start, composite.none(), whole, 1, 0.1, partial="drop")


# FedDA.


@PENALTY
def test_fedda_with_one_client_is_dual_averaging(name: str) -> None:
    """tau steps a round or tau rounds of one step: x_k = P_{k eta g}(x_0 - eta times the sum of all gradients)."""
    problem, prox, eta, x = make(clients=1), PENALTIES[name], 0.2, vector()
    single, several = FedDA(x), FedDA(x)
    total = np.zeros(DIM)
    x = prox(x, 0.0)
    for k in range(1, 13):
        total = total + problem.gradient(0, x)
        x = prox(vector() - eta * total, k * eta)
        single = composite.fedda_round(problem, single, prox, whole, 1, eta)
        assert far(composite.fedda_point(single, prox), x) < 1e-13
        if k % 4 == 0:
            several = composite.fedda_round(problem, several, prox, whole, 4, eta)
            assert far(composite.fedda_point(several, prox), x) < 1e-13


def test_fedda_with_one_client_and_no_penalty_is_gradient_descent() -> None:
    problem, x, state = make(clients=1), vector(), FedDA(vector())
    for _ in range(10):
        x = x - 0.2 * problem.gradient(0, x)
        state = composite.fedda_round(problem, state, composite.none(), whole, 1, 0.2)
        assert far(composite.fedda_point(state, composite.none()), x) < 1e-14


@PENALTY
def test_the_parameters_of_fedda(name: str) -> None:
    """Round r, step k: the prox has eta_g eta r K + eta k."""
    problem, prox, K, eta, eta_g = make(), PENALTIES[name], 3, 0.2, 1.3
    state, z = FedDA(vector()), vector()
    for r in range(4):
        state = composite.fedda_round(problem, state, prox, random_rows(r), K, eta, eta_g)
        sums = []
        for i in range(4):
            total = np.zeros(DIM)
            for k in range(K):
                w = prox(z - eta * total, eta_g * eta * r * K + eta * k)
                total = total + problem.gradient(i, w, random_rows(r)(i, k))
            sums.append(total)
        z = z - eta_g * eta * sum(sums) / 4
        assert far(state.z, z) < 1e-14
        assert far(composite.fedda_point(state, prox), prox(z, eta_g * eta * (r + 1) * K)) < 1e-13


# Fast-FedDA.


def fast_run(problem: Smooth, prox: Prox, rounds: int, x: Array, tau: int, gamma: float, mu: float) -> list[FastFedDA]:
    states = [composite.fast_fedda_start(x)]
    for r in range(rounds):
        states.append(composite.fast_fedda_round(problem, states[-1], prox, random_rows(r), tau, gamma, mu))
    return states


@pytest.mark.parametrize("mu", [0.0, 0.1])
@PENALTY
def test_two_vectors_of_fast_fedda_are_one(name: str, mu: float) -> None:
    problem, prox, x, gamma = make(), PENALTIES[name], vector(), 2.5
    dual, count = gamma * x, 0
    for r, state in enumerate(fast_run(problem, prox, 6, x, 3, gamma, mu)[1:]):
        dual, count = composite.fast_fedda_dual_round(problem, dual, count, prox, random_rows(r), 3, gamma, mu)
        assert count == state.count == 3 * (r + 1)
        assert far(dual, gamma * x + mu / 2.0 * state.points - state.gradients) < 1e-13
        point = composite.fast_fedda_point(state, prox, gamma, mu)
        assert far(composite.fast_fedda_prox(dual, count, prox, gamma, mu), point) < 1e-13


@pytest.mark.parametrize("name", NORMS)
def test_the_point_of_fast_fedda_is_an_argmin(name: str) -> None:
    """The sum of <g_s, w> + mu/4 ||w - w_s||^2 + g(w) over s, + gamma/2 ||w - x_0||^2, is mu t/2 + gamma convex."""
    problem, gamma, mu, weight = make(clients=1), 2.0, 0.3, 0.05
    build, norm, _ = NORMS[name]
    prox = build(weight)
    x, rng = vector(), np.random.default_rng(1)
    state, history = composite.fast_fedda_start(x), []
    for t in range(6):
        w = composite.fast_fedda_point(state, prox, gamma, mu)

        def objective(v: Array) -> float:
            model = sum(g_s @ v + mu / 4.0 * np.sum((v - w_s) ** 2) + weight * norm(v) for g_s, w_s in history)
            return float(model + gamma / 2.0 * np.sum((v - x) ** 2))

        for scale in (1e-3, 1e-1, 1.0):
            for move in rng.normal(0.0, scale, (20, DIM)):
                growth = (mu * t / 2.0 + gamma) / 2.0 * (move @ move)
                assert objective(w + move) - objective(w) >= growth - 1e-13
        history.append((problem.gradient(0, w), w))
        state = composite.fast_fedda_round(problem, state, prox, whole, 1, gamma, mu)
        np.testing.assert_allclose(state.points, sum(w_s for _, w_s in history), rtol=1e-12)


def test_fast_fedda_without_strong_convexity_and_penalty_is_gradient_descent() -> None:
    problem, x, gamma = make(clients=1), vector(), 5.0
    state = composite.fast_fedda_start(x)
    for _ in range(10):
        x = x - problem.gradient(0, x) / gamma
        state = composite.fast_fedda_round(problem, state, composite.none(), whole, 1, gamma, 0.0)
        assert far(composite.fast_fedda_point(state, composite.none(), gamma, 0.0), x) < 1e-14


@pytest.mark.parametrize("mu", [0.0, 0.1])
@PENALTY
def test_one_client_of_fast_fedda_stays_at_the_optimum(name: str, mu: float) -> None:
    problem, prox, gamma = make(clients=1), PENALTIES[name], 5.0
    best = composite.optimum(problem, prox)
    state = composite.fast_fedda_start(best)
    for _ in range(10):
        state = composite.fast_fedda_round(problem, state, prox, whole, 3, gamma, mu)
        assert far(composite.fast_fedda_point(state, prox, gamma, mu), best) < 1e-12


# Problem (6).

THETA_1, THETA_2, TAU = 1e-4, 1e-2, 5


def sparse_logistic(clients: int, samples: int) -> tuple[Smooth, Prox, Array]:
    """(6) with (alpha, beta) = (10, 10), and its optimum."""
    data = composite.synthetic(np.random.default_rng(0), clients, samples, 10.0, 10.0)
    problem, prox = Smooth(*data, ridge=THETA_2), composite.l1(THETA_1)
    return problem, prox, composite.optimum(problem, prox)


@pytest.mark.parametrize(("clients", "samples"), [(10, 100), pytest.param(30, 2000, marks=pytest.mark.slow)])
def test_linear_convergence_where_the_baselines_stall(clients: int, samples: int) -> None:
    """From 0 with tau = 5, eta = eta_g = 1 and full gradients: the optimality after 600 rounds."""
    problem, prox, best = sparse_logistic(clients, samples)
    states = run(problem, prox, 600, np.zeros(60), tau=TAU, eta=1.0)
    curve = np.array([composite.optimality(x, best) for x in points(states, prox)])
    assert (curve[399] / curve[199]) ** (1 / 200) == pytest.approx(1.0 - TAU * THETA_2, abs=0.005)
    assert curve[449] < 1e-10
    assert curve[549] < 1e-12

    servers = ("round", "step", "none")
    mids, fedda, fast = [np.zeros(60)] * 3, FedDA(np.zeros(60)), composite.fast_fedda_start(np.zeros(60))
    for _ in range(600):
        mids = [
            composite.fedmid_round(problem, x, prox, whole, TAU, 1.0, server=server)
            for x, server in zip(mids, servers, strict=True)
        ]
        fedda = composite.fedda_round(problem, fedda, prox, whole, TAU, 1.0)
        fast = composite.fast_fedda_round(problem, fast, prox, whole, TAU, 1.0, THETA_2)
    between = composite.optimality(composite.fast_fedda_point(fast, prox, 1.0, THETA_2), best)
    stalled = [composite.optimality(x, best) for x in (*mids, composite.fedda_point(fedda, prox))]
    assert 0.15 < min(stalled) <= max(stalled) < 0.4
    assert 1e-3 < between < min(stalled) / 3.0


@pytest.mark.parametrize("multiple", [1.0, float(TAU)])
def test_a_constant_local_parameter_loses_exact_convergence(multiple: float) -> None:
    """eta and eta~ in the place of (t + 1) eta; the test before is the comparison."""
    problem, prox, best = sparse_logistic(10, 100)
    states = run(problem, prox, 500, np.zeros(60), tau=TAU, eta=1.0, local=lambda t, eta: multiple * eta)
    middle, end = (composite.optimality(composite.composite_point(states[r], prox), best) for r in (400, 500))
    assert end > 1e-5
    assert end == pytest.approx(middle, rel=1e-3)
