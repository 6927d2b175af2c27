"""The NumPy reference of composite federated learning against finite differences, closed forms and special cases."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from . import composite
from .composite import Composite, Prox, Smooth
from .minimax import Array, Index

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


@pytest.mark.parametrize("tau", [1, 5])
@each_penalty
def test_one_client_stays_at_the_optimum(name: str, tau: int) -> None:
    """So the parameter of the local prox is (t + 1) eta."""
    problem, (prox, _), eta_g = make(clients=1), PENALTIES[name], 1.2
    best = composite.optimum(problem, prox)
    start = best - 0.2 * eta_g * tau * problem.gradient(0, best)
    for state in run(problem, prox, [0.2, 0.4, 0.1], start, tau=tau, eta_g=eta_g):
        assert far(composite.composite_point(state, prox), best) < 1e-13
