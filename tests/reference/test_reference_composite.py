"""The NumPy reference of composite federated learning against finite differences, closed forms and special cases."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from . import composite, scgdam
from .composite import Composite, FedDA, Prox, Smooth
from .minimax import Array, Index, Rows

DIM, SAMPLES = 6, 8
GROUPS = [[0, 3], [1], [2, 4, 5]]
# the prox, and what it is the prox of
PENALTIES: dict[str, tuple[Prox, Callable[[Array], float]]] = {
    "none": (composite.none(), lambda x: 0.0),
    "l1": (composite.l1(0.05), lambda x: 0.05 * np.abs(x).sum()),
    "squared-l2": (composite.squared_l2(0.3), lambda x: 0.15 * x @ x),
    "elastic-net": (composite.elastic_net(0.1, 0.4), lambda x: 0.04 * np.abs(x).sum() + 0.03 * x @ x),
    "group-lasso": (
        composite.group_lasso(0.05, GROUPS),
        lambda x: 0.05 * sum(np.sqrt(len(g)) * np.linalg.norm(x[g]) for g in GROUPS),
    ),
    "nuclear-norm": (composite.nuclear_norm(0.05, (2, 3)), lambda x: 0.05 * np.linalg.norm(x.reshape(2, 3), "nuc")),
    "box": (composite.box(-0.2, 0.3), lambda x: within(np.all((x >= -0.2) & (x <= 0.3)))),
    "l2-ball": (composite.l2_ball(0.4), lambda x: within(np.linalg.norm(x) <= 0.4 + 1e-12)),
    "simplex": (composite.simplex(), lambda x: within(np.all(x >= 0.0) and abs(x.sum() - 1.0) < 1e-12)),
    "nonnegative": (composite.nonnegative(), lambda x: within(np.all(x >= 0.0))),
}
each_penalty = pytest.mark.parametrize("name", PENALTIES)
each_loss = pytest.mark.parametrize("loss", ["logistic", "squared"])


def within(inside: Any) -> float:
    return 0.0 if inside else np.inf


def make(loss: str = "logistic", clients: int = 4) -> Smooth:
    """Clients with different features and different label vectors."""
    rng = np.random.default_rng(4)
    features = [rng.normal(0.4 * i, 1.0, (SAMPLES, DIM)) for i in range(clients)]
    scores = [A @ rng.normal(0.3, 1.0, DIM) for A in features]
    return Smooth(features, [np.sign(s) for s in scores] if loss == "logistic" else scores, 0.1, loss)


def vector(seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0.0, 0.8, DIM)


def whole(i: int, t: int) -> None:
    return None


def random_rows(seed: int) -> Rows:
    table = np.random.default_rng(seed).integers(SAMPLES, size=(4, 60, 2))
    return lambda i, t: table[i, t]


def far(got: Array, other: Array) -> float:
    return float(np.max(np.abs(got - other)))


@each_loss
@pytest.mark.parametrize("rows", [None, [0, 4, 4]])
def test_gradients_against_finite_differences(loss: str, rows: Index | None) -> None:
    problem, x, h = make(loss), vector(), 1e-5
    A, b = problem.samples(2, rows)
    s = A @ x
    losses = np.log(1.0 + np.exp(-b * s)) if loss == "logistic" else (s - b) ** 2 / 2.0
    assert problem.value(2, x, rows) == pytest.approx(losses.mean() + 0.05 * x @ x, rel=1e-13)
    expected = [(problem.value(2, x + h * e, rows) - problem.value(2, x - h * e, rows)) / (2 * h) for e in np.eye(DIM)]
    np.testing.assert_allclose(problem.gradient(2, x, rows), expected, rtol=1e-6, atol=1e-8)


@each_penalty
@pytest.mark.parametrize("step", [0.25, 2.0])
def test_a_prox_minimises_its_strongly_convex_objective(name: str, step: float) -> None:
    """step g(u) + ||u - x||^2 / 2 grows from its minimum p by ||u - p||^2 / 2 at least, at random and feasible u."""
    prox, value = PENALTIES[name]
    for seed in range(10):
        x = vector(seed)
        p = prox(x, step)
        least = step * value(p) + np.sum((p - x) ** 2) / 2.0
        for scale in (1e-3, 0.1, 1.0):
            moved = p + np.random.default_rng(seed).normal(0.0, scale, DIM)
            for u in (moved, prox(moved, step), prox(moved, 0.0)):
                growth = step * value(u) + np.sum((u - x) ** 2) / 2.0 - least
                assert growth >= np.sum((u - p) ** 2) / 2.0 - 1e-12


@each_loss
@each_penalty
def test_the_optimum_is_a_fixed_point_for_every_step(loss: str, name: str) -> None:
    problem, (prox, _) = make(loss), PENALTIES[name]
    x = composite.optimum(problem, prox)
    for step in (0.1, 3.0):
        assert far(prox(x - step * problem.mean_gradient(x), step), x) < 1e-14 * (1.0 + 10.0 * step)


def test_the_optimum_of_the_pooled_squares_is_that_of_the_normal_equations() -> None:
    problem = make("squared")
    A, b = np.concatenate(problem.features), np.concatenate(problem.labels)
    for weight, prox in ((0.0, composite.none()), (0.3, composite.squared_l2(0.3))):
        expected = np.linalg.solve(A.T @ A / len(A) + (0.1 + weight) * np.eye(DIM), A.T @ b / len(A))
        assert composite.optimality(composite.optimum(problem, prox), expected) < 1e-13


# Algorithm 1.


def run(
    problem: Smooth, prox: Prox, etas: Sequence[float], start: Array | None = None, rows: Any = None, **options: Any
) -> list[Composite]:
    """The state after every round, one step size a round."""
    state, states = composite.composite_start(problem, vector() if start is None else start), []
    for r, eta in enumerate(etas):
        batches = whole if rows is None else rows(r)
        state = composite.composite_round(problem, state, prox, batches, eta=eta, **{"tau": 3} | options)
        states.append(state)
    return states


@pytest.mark.parametrize("etas", [[0.2] * 6, [0.2, 0.4, 0.1, 0.3, 0.3, 0.1]])
@each_penalty
def test_one_step_is_proximal_gradient_descent(name: str, etas: list[float]) -> None:
    problem, (prox, _), eta_g = make(), PENALTIES[name], 1.5
    x = prox(vector(), etas[0] * eta_g)
    for eta, state in zip(etas, run(problem, prox, etas, tau=1, eta_g=eta_g), strict=True):
        x = prox(x - eta * eta_g * problem.mean_gradient(x), eta * eta_g)
        assert far(composite.composite_point(state, prox), x) < 1e-13


@pytest.mark.parametrize("tau", [1, 5])
@each_penalty
def test_one_client_stays_at_the_optimum(name: str, tau: int) -> None:
    """So the parameter of the local prox is (t + 1) eta."""
    problem, (prox, _), eta_g = make(clients=1), PENALTIES[name], 1.2
    best = composite.optimum(problem, prox)
    start = best - 0.2 * eta_g * tau * problem.gradient(0, best)
    for state in run(problem, prox, [0.2, 0.4, 0.1], start, tau=tau, eta_g=eta_g):
        assert far(composite.composite_point(state, prox), best) < 1e-13


def test_without_a_penalty_it_is_scaffold() -> None:
    problem, eta, eta_g = make(), 0.05, 1.3

    class Adapter:
        num_clients, ce_gradient = problem.num_clients, staticmethod(problem.gradient)

    adapter: Any = Adapter()
    other = scgdam.scaffold_start(adapter, vector())
    for r, state in enumerate(run(problem, composite.none(), [eta] * 12, rows=random_rows, eta_g=eta_g)):
        other = scgdam.scaffold_round(adapter, other, range(4), random_rows(r), 3, eta, eta_g)
        assert far(state.x_bar, other.w) < 1e-12
        assert far(state.corrections, other.control - other.controls) < 1e-12
        assert np.abs(state.corrections.mean(axis=0)).max() < 1e-13


@pytest.mark.parametrize("name", ["l1", "box"])
def test_it_finds_the_optimum_of_unequal_clients_and_the_baselines_do_not(name: str) -> None:
    problem, (prox, _) = make(), PENALTIES[name]
    best = composite.optimum(problem, prox)
    assert composite.optimality(composite.composite_point(run(problem, prox, [0.1] * 800)[-1], prox), best) < 1e-11
    x, state = vector(), FedDA(vector())
    for _ in range(200):
        x = composite.fedmid_round(problem, x, prox, whole, 3, 0.1)
        state = composite.fedda_round(problem, state, prox, whole, 3, 0.1)
    assert composite.optimality(x, best) > 1e-3
    assert composite.optimality(composite.fedda_point(state, prox), best) > 1e-3


# The baselines.


@each_penalty
def test_fedmid_s_proxes_take_each_step_and_the_round_s_sum(name: str) -> None:
    problem, (prox, _), eta, eta_g = make(clients=2), PENALTIES[name], 0.2, 1.3
    ends = []
    for i in range(2):
        z = vector()
        for t in range(2):
            z = prox(z - eta * problem.gradient(i, z, random_rows(0)(i, t)), eta)
        ends.append(z)
    moved = vector() + eta_g * (np.mean(ends, axis=0) - vector())
    for server, expected in (("round", prox(moved, eta_g * eta * 2)), ("none", moved)):
        got = composite.fedmid_round(problem, vector(), prox, random_rows(0), 2, eta, eta_g, server)
        assert far(got, expected) < 1e-14


@each_penalty
def test_fedda_with_one_client_is_dual_averaging(name: str) -> None:
    """tau steps a round: x_k = P_{k eta g}(x_0 - eta times the sum of all gradients)."""
    problem, (prox, _), eta = make(clients=1), PENALTIES[name], 0.2
    state, total, x = FedDA(vector()), np.zeros(DIM), prox(vector(), 0.0)
    for k in range(1, 13):
        total = total + problem.gradient(0, x)
        x = prox(vector() - eta * total, k * eta)
        if k % 4 == 0:
            state = composite.fedda_round(problem, state, prox, whole, 4, eta)
            assert far(composite.fedda_point(state, prox), x) < 1e-13


@pytest.mark.parametrize("mu", [0.0, 0.1])
@each_penalty
def test_two_vectors_of_fast_fedda_are_one(name: str, mu: float) -> None:
    problem, (prox, _), gamma = make(), PENALTIES[name], 2.5
    state, dual, count = composite.fast_fedda_start(vector()), gamma * vector(), 0
    for r in range(6):
        state = composite.fast_fedda_round(problem, state, prox, random_rows(r), 3, gamma, mu)
        dual, count = composite.fast_fedda_dual_round(problem, dual, count, prox, random_rows(r), 3, gamma, mu)
        point = composite.fast_fedda_point(state, prox, gamma, mu)
        assert count == state.count
        assert far(composite.fast_fedda_prox(dual, count, prox, gamma, mu), point) < 1e-13
