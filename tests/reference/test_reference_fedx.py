"""The NumPy reference of FedX against finite differences, closed forms and coinciding special cases."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from . import fedx
from .fedx import Array, Client, Index, Objective, Round, Score

LINEAR = ["square", "psm", "squared-hinge", "logistic"]
NONLINEAR = [
    fedx.objective("kl-opauc", margin=0.7, lam=2.0),
    fedx.objective("auprc", margin=1.5),
    fedx.objective("auprc", surrogate="logistic"),
    fedx.objective("auprc", surrogate="psm"),
    fedx.objective("p-norm-push", margin=1.5, p=3.0),
    fedx.objective("p-norm-push", p=2.5, surrogate="logistic"),
]
W = np.array([0.3, -0.5, 0.2, 0.4])
SIZES = [
    (6, 9),
    (2, 5),
    (0, 4),
    (3, 14),
]  # positives and negatives of each client: unequal, one without positives


def score(w: Array, X: Array) -> Array:
    return np.tanh(X @ w[:-1]) + w[-1] * X[:, 0] ** 2


def jacobian(w: Array, X: Array) -> Array:
    slope = 1.0 - np.tanh(X @ w[:-1]) ** 2
    return np.concatenate([slope[:, None] * X, X[:, :1] ** 2], axis=1)


def linear_score(w: Array, X: Array) -> Array:
    return X @ w


def linear_jacobian(w: Array, X: Array) -> Array:
    return X


def make_clients(name: str, sizes: list[tuple[int, int]] = SIZES) -> list[Client]:
    rng = np.random.default_rng(7)
    clients = []
    for n1, n2 in sizes:
        X1, X2 = rng.normal(0.3, 1.0, (n1, 3)), rng.normal(-0.3, 1.0, (n2, 3))
        if name == "auprc":  # S2 = all samples
            clients.append((X1, np.concatenate([X1, X2]), np.repeat([1.0, 0.0], [n1, n2])))
        else:
            clients.append((X1, X2, np.zeros(n2)))
    return clients


def numerical_gradient(function: Callable[[Array], float], w: Array, h: float = 1e-5) -> Array:
    return np.array([(function(w + h * e) - function(w - h * e)) / (2.0 * h) for e in np.eye(len(w))])


def full_gradient(objective: Objective, clients: list[Client], score: Score = score, w: Array = W) -> Array:
    return numerical_gradient(lambda v: fedx.full_objective(objective, score, v, clients), w)


def run(
    algorithm: Callable,
    objective: Objective,
    clients: list[Client],
    rounds: int = 1,
    step: float = 0.0,
    **options: Any,
) -> list[Round]:
    """Batches of everything, split over the local steps, the whole pool drawn.

    Client i passes i + 1 times over its samples: its gradients stay, the pool's weights become unequal.
    """
    local_steps = options.pop("local_steps", 1)
    records: list[Round] = []

    def batches(i: int, r: int, k: int) -> tuple[Index, Index]:
        X1, X2, _ = clients[i]
        return (
            np.tile(np.arange(len(X1))[k::local_steps], i + 1),
            np.tile(np.arange(len(X2))[k::local_steps], i + 1),
        )

    def draws(i: int, r: int, k: int) -> tuple[Index, Index]:
        return np.arange(len(records[-1].positives.score)), np.arange(len(records[-1].partners.score))

    options = {"score": score, "jacobian": jacobian, "w": W, "batches": batches, "draws": draws} | options
    for record in algorithm(
        objective=objective,
        clients=clients,
        rounds=rounds,
        local_steps=local_steps,
        learning_rate=lambda t: step,
        **options,
    ):
        records.append(record)
    return records


def random_run(algorithm: Callable, objective: Objective, clients: list[Client], **options: Any) -> list[Round]:
    """Small random batches and draws, decaying steps, three of the four clients a round: everything moves."""
    rng = np.random.default_rng(3)
    records: list[Round] = []

    def batches(i: int, r: int, k: int) -> tuple[Index, Index]:
        n1, n2 = len(clients[i][0]), len(clients[i][1])
        return rng.choice(n1, min(n1, 2), replace=False), rng.choice(n2, 4, replace=False)

    def draws(i: int, r: int, k: int) -> tuple[Index, Index]:
        return (
            rng.choice(len(records[-1].positives.score), 5, replace=False),
            rng.choice(len(records[-1].partners.score), 6, replace=False),
        )

    shared: dict[str, Any] = {
        "objective": objective,
        "clients": clients,
        "rounds": 6,
        "local_steps": 3,
        "learning_rate": lambda t: 0.1 / (1 + t),
        "batches": batches,
        "participants": lambda r: [i for i in range(4) if i != r % 4],
        "score": score,
        "jacobian": jacobian,
        "w": W,
    }
    if algorithm in (fedx.fedx1, fedx.fedx2):
        shared |= {"draws": draws, "tau": 2}
    for record in algorithm(**(shared | options)):
        records.append(record)
    return records


def mean_gradient(record: Round) -> Array:
    return np.mean([step.gradient for steps in record.steps.values() for step in steps], axis=0)


@pytest.mark.parametrize("name", fedx.LOSSES)
def test_pairwise_losses_have_the_right_derivatives(name: str) -> None:
    loss = fedx.LOSSES[name]
    a, b = np.array([[-2.1], [0.4], [1.7]]), np.array([[-1.3, 0.2, 2.6, 0.9]])
    h = 1e-6
    value, d1, d2 = loss(a, b, 0.75)
    np.testing.assert_allclose(d1, (loss(a + h, b, 0.75)[0] - loss(a - h, b, 0.75)[0]) / (2 * h), atol=1e-8)
    np.testing.assert_allclose(d2, (loss(a, b + h, 0.75)[0] - loss(a, b - h, 0.75)[0]) / (2 * h), atol=1e-8)
    closed = {
        "square": (1.0 - a + b) ** 2,
        "psm": 1.0 / (1.0 + np.exp(a - b)),
        "squared-hinge": np.where(b + 0.75 > a, (b + 0.75 - a) ** 2, 0.0),
        "logistic": np.log(1.0 + np.exp(b - a)),
    }
    np.testing.assert_allclose(value, closed[name], rtol=1e-12)


@pytest.mark.parametrize("objective", [*map(fedx.objective, LINEAR), *NONLINEAR])
def test_objectives_have_the_right_derivatives(objective: Objective) -> None:
    a, b, y = np.array([-0.7, 0.4, 1.1]), np.array([-1.3, 0.2, 0.6, 0.9]), np.array([0.0, 1.0, 1.0, 0.0])
    h = 1e-6
    inner, d1, d2 = objective.inner(a, b, y)
    assert inner.shape == d1.shape == d2.shape == (3, 4, objective.m)
    difference = objective.inner(a + h, b, y)[0] - objective.inner(a - h, b, y)[0]
    np.testing.assert_allclose(d1, difference / (2 * h), atol=1e-8)
    difference = objective.inner(a, b + h, y)[0] - objective.inner(a, b - h, y)[0]
    np.testing.assert_allclose(d2, difference / (2 * h), atol=1e-8)
    u = np.array([0.4, 1.3, 2.2])[:, None] * np.array([[1.0, 1.7]])[:, : objective.m]
    for c in range(objective.m):
        e = h * np.eye(objective.m)[c]
        numerical = (objective.f(u + e) - objective.f(u - e)) / (2 * h)
        np.testing.assert_allclose(objective.grad_f(u)[:, c], numerical, atol=1e-8)


def test_kl_opauc_in_logarithms_is_kl_opauc() -> None:
    logarithmic = fedx.objective("kl-opauc", lam=0.9)
    plain = logarithmic._replace(exponent=None)
    a, b, y, weight = (
        np.array([-0.7, 0.4]),
        np.array([-1.3, 0.2, 0.6]),
        np.zeros(3),
        np.array([0.5, 1.0, 2.0]),
    )
    u, log_u = (fedx.inner_mean(o, a, b, y, weight) for o in (plain, logarithmic))
    np.testing.assert_allclose(np.exp(log_u), u, rtol=1e-13)
    old = np.array([[3.0], [np.nan]])
    for gamma in (0.3, 1.0):
        moved = np.exp(fedx.track(logarithmic, np.log(old), log_u, gamma))
        np.testing.assert_allclose(moved, fedx.track(plain, old, u, gamma), rtol=1e-13)
        np.testing.assert_allclose(moved[:, 0], [(1 - gamma) * 3.0 + gamma * u[0, 0], u[1, 0]], rtol=1e-13)
    for got, expected in zip(fedx.chain(logarithmic, log_u, a, b, y), fedx.chain(plain, u, a, b, y), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-13)


def test_full_objective_is_its_definition() -> None:
    clients = make_clients("auprc")
    X1, X2, y2 = fedx.union(clients)
    expected = 0.0
    for z in score(W, X1):
        s = np.maximum(1.0 - z + score(W, X2), 0.0) ** 2
        expected -= s[y2 == 1].sum() / s.sum() / len(X1)
    assert fedx.full_objective(fedx.objective("auprc"), score, W, clients) == pytest.approx(expected, rel=1e-12)
    clients = make_clients("kl-opauc")
    X1, X2, _ = fedx.union(clients)
    expected = 0.0
    for z in score(W, X1):
        inner = np.mean(np.exp(np.maximum(1.0 - z + score(W, X2), 0.0) ** 2 / 3.0))
        expected += 3.0 * np.log(inner) / len(X1)
    found = fedx.full_objective(fedx.objective("kl-opauc", lam=3.0), score, W, clients)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", LINEAR)
def test_fedx1_first_step_is_the_full_gradient(name: str) -> None:
    objective, clients = fedx.objective(name, margin=0.7), make_clients(name)
    record = run(fedx.fedx1, objective, clients, step=0.1)[1]
    expected = full_gradient(objective, clients)
    np.testing.assert_allclose(mean_gradient(record), expected, atol=1e-9)
    np.testing.assert_allclose(record.w, W - 0.1 * expected, atol=1e-9)


@pytest.mark.parametrize("objective", NONLINEAR)
def test_fedx2_first_step_is_the_full_gradient(objective: Objective) -> None:
    clients = make_clients(objective.name)
    record = run(fedx.fedx2, objective, clients, step=0.1)[1]
    expected = full_gradient(objective, clients)
    np.testing.assert_allclose(mean_gradient(record), expected, atol=1e-8)
    np.testing.assert_allclose(record.w, W - 0.1 * expected, atol=1e-9)
    np.testing.assert_allclose(record.momentum, expected, atol=1e-8)


@pytest.mark.parametrize("objective", NONLINEAR)
def test_fedx2_is_the_full_gradient_with_the_recorded_u(objective: Objective) -> None:
    clients = make_clients(objective.name)
    expected = full_gradient(objective, clients)
    for record in run(fedx.fedx2, objective, clients, rounds=3, tau=2, gamma=0.4, beta=0.3)[1:]:
        np.testing.assert_allclose(mean_gradient(record), expected, atol=1e-8)


@pytest.mark.parametrize("name", LINEAR)
def test_pool_weights_with_several_steps_and_rounds(name: str) -> None:
    objective, clients = fedx.objective(name), make_clients(name, [(6, 8), (2, 4), (0, 4), (4, 14)])
    for record in run(fedx.fedx1, objective, clients, rounds=3, tau=2, local_steps=2)[1:]:
        np.testing.assert_allclose(mean_gradient(record), full_gradient(objective, clients), atol=1e-9)
        assert len(record.positives.score) == 2 * (6 + 2 * 2 + 3 * 0 + 4 * 4)
        assert len(record.partners.score) == 2 * (8 + 2 * 4 + 3 * 4 + 4 * 14)
        assert record.positives.weight.mean() == pytest.approx(1.0) == pytest.approx(record.partners.weight.mean())


def test_pool_weights_are_omegas_when_all_contribute_equally_and_unbiased_when_some_take_part() -> None:
    objective, clients = fedx.objective("square"), make_clients("square")
    omega1, omega2 = fedx.omegas(clients)
    np.testing.assert_allclose(omega1, 4 * np.array([6, 2, 0, 3]) / 11)
    entries = [(j, np.zeros(5), np.zeros(5)) for j in range(4)]
    np.testing.assert_allclose(fedx.pool([entries, entries], omega2).weight, np.tile(np.repeat(omega2, 5), 2))
    pairs = list(itertools.combinations(range(4), 2))
    gradients = []
    for first, second in itertools.product(pairs, pairs):
        chosen = {1: list(first), 2: list(second)}
        record = run(fedx.fedx1, objective, clients, rounds=2, participants=chosen.__getitem__)[2]
        assert list(record.steps) == record.participants == chosen[2]
        gradients.append(mean_gradient(record))
    np.testing.assert_allclose(np.mean(gradients, axis=0), full_gradient(objective, clients), atol=1e-9)


def test_the_pool_is_first_in_first_out_by_round_client_and_step() -> None:
    clients = make_clients("kl-opauc")
    records = random_run(fedx.fedx2, fedx.objective("kl-opauc", lam=2.0), clients, gamma=0.5, beta=0.3, tau=3)
    kept = [(r, i, step) for r in records[-3:] for i in r.participants for step in r.steps[i]]
    np.testing.assert_array_equal(records[-1].positives.score, np.concatenate([s.scores[0] for _, _, s in kept]))
    np.testing.assert_array_equal(records[-1].partners.score, np.concatenate([s.scores[1] for _, _, s in kept]))
    assert not np.isnan(records[-1].positives.extra).any()
    assert np.isnan(records[0].positives.extra).all()
    assert [r.round for r in records] == list(range(7))
    visited = [np.sum(~np.isnan(step.u)) for step in records[1].steps[3]]
    assert visited[0] == 2
    assert visited == sorted(visited)
    assert visited[-1] == 3


def test_fedx2_in_logarithms_is_fedx2() -> None:
    objective, clients = fedx.objective("kl-opauc", lam=4.0), make_clients("kl-opauc")
    options: dict[str, Any] = {"gamma": 0.4, "beta": 0.3}
    logarithmic = random_run(fedx.fedx2, objective, clients, **options)
    plain = random_run(fedx.fedx2, objective._replace(exponent=None), clients, **options)
    for one, other in zip(logarithmic, plain, strict=True):
        np.testing.assert_allclose(one.w, other.w, rtol=1e-11)
    assert np.linalg.norm(one.w - W) > 0.01


@pytest.mark.parametrize("name", LINEAR)
def test_fedx2_of_a_linear_f_is_fedx1(name: str) -> None:
    objective, clients = fedx.objective(name), make_clients(name)
    first = random_run(fedx.fedx1, objective, clients)
    for one, other in zip(first, random_run(fedx.fedx2, objective, clients, gamma=0.3, beta=1.0), strict=True):
        np.testing.assert_allclose(one.w, other.w, rtol=1e-12)


def test_large_lambda_is_fedx1_with_the_squared_hinge() -> None:
    clients = make_clients("squared-hinge")
    linear, kl = fedx.objective("squared-hinge"), fedx.objective("kl-opauc", lam=1e12)
    first = run(fedx.fedx1, linear, clients, rounds=4, step=0.1, tau=2)
    second = run(fedx.fedx2, kl, clients, rounds=4, step=0.1, tau=2, gamma=0.4)
    for one, other in zip(first[1:], second[1:], strict=True):
        np.testing.assert_allclose(mean_gradient(one), mean_gradient(other), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [100.0, 1e4])
def test_kl_opauc_stays_finite_at_any_score(scale: float) -> None:
    objective, clients = fedx.objective("kl-opauc", lam=0.1), make_clients("kl-opauc")
    clients = [(scale * np.sign(X1), scale * np.sign(X2), y) for X1, X2, y in clients]
    options: dict[str, Any] = {
        "score": linear_score,
        "jacobian": linear_jacobian,
        "w": np.array([1.0, -1.0, 1.0]),
        "gamma": 0.3,
    }
    for record in random_run(fedx.fedx2, objective, clients, beta=0.5, **options):
        assert np.abs(record.positives.score).max() >= scale
        assert np.isfinite(record.w).all()
        for step in (step for steps in record.steps.values() for step in steps if step.gradient is not None):
            assert np.isfinite(step.gradient).all()
            assert not np.isinf(step.u).any()


def test_the_lazy_ratio_is_bounded_by_the_number_of_partners() -> None:
    objective = fedx.objective("kl-opauc", lam=0.1)
    a, b, y, log_u = np.zeros(2), np.array([50.0, -3.0]), np.zeros(2), np.array([[0.0], [1.0]])
    _, d2 = fedx.chain(objective, log_u, a, b, y, bound=32)
    np.testing.assert_allclose(d2, [[32 * 2 * 51.0, 0.0]] * 2, rtol=1e-12)


@pytest.mark.parametrize("algorithm", [fedx.fedx2, fedx.local_pair])
def test_momentum_starts_at_the_first_gradient_then_moves(algorithm: Callable) -> None:
    objective, clients = fedx.objective("kl-opauc", lam=2.0), make_clients("kl-opauc")
    start, average = W, None
    for record in random_run(algorithm, objective, clients, gamma=0.5, beta=0.3):
        if record.round == 0:
            continue
        for steps in record.steps.values():
            w, momentum = start, average
            for k, step in enumerate(steps):
                momentum = step.gradient if momentum is None else 0.7 * momentum + 0.3 * step.gradient
                w = w - 0.1 / (1 + 3 * (record.round - 1) + k) * momentum
                np.testing.assert_allclose(step.momentum, momentum, rtol=1e-12)
                np.testing.assert_allclose(step.w, w, rtol=1e-12)
        average = np.mean([steps[-1].momentum for steps in record.steps.values()], axis=0)
        start = np.mean([steps[-1].w for steps in record.steps.values()], axis=0)
        np.testing.assert_allclose(record.momentum, average, rtol=1e-12)
        np.testing.assert_allclose(record.w, start, rtol=1e-12)


def test_positives_without_any_u_contribute_zero_when_no_partner_is_drawn() -> None:
    objective, clients = fedx.objective("kl-opauc"), make_clients("kl-opauc")
    nothing, something = np.arange(0), np.arange(3)
    options: dict[str, Any] = {"score": score, "jacobian": jacobian, "w": W, "rounds": 1, "local_steps": 1}
    batches = lambda i, r, k: (np.arange(len(clients[i][0])), np.arange(len(clients[i][1])))  # noqa: E731
    for drawn in ((something, nothing), (nothing, nothing)):
        draws = lambda i, r, k, drawn=drawn: drawn  # noqa: E731
        *_, last = fedx.fedx2(
            objective, clients=clients, learning_rate=lambda t: 0.1, batches=batches, draws=draws, **options
        )
        np.testing.assert_array_equal(last.w, W)


@pytest.mark.parametrize("name", LINEAR)
def test_local_pair_of_a_linear_f_has_no_momentum(name: str) -> None:
    objective, clients = fedx.objective(name), make_clients(name)
    plain = random_run(fedx.local_pair, objective, clients)
    for one, other in zip(plain, random_run(fedx.local_pair, objective, clients, gamma=0.3, beta=0.3), strict=True):
        np.testing.assert_array_equal(one.w, other.w)
        assert one.momentum is other.momentum is None


@pytest.mark.parametrize("objective", [*map(fedx.objective, LINEAR), *NONLINEAR])
def test_centralised_full_batch_is_gradient_descent(objective: Objective) -> None:
    clients = make_clients(objective.name)
    X1, X2, _ = fedx.union(clients)
    everything = np.arange(len(X1)), np.arange(len(X2))
    algorithm = fedx.pairwise_sgd if objective.linear else fedx.sox
    options: dict[str, Any] = {"rounds": 2, "local_steps": 3, "learning_rate": lambda t: 0.002 / (1 + t)}
    records = algorithm(objective, score, jacobian, clients, W, batches=lambda i, r, k: everything, **options)
    w = W
    for t, step in enumerate(step for record in records for step in record.steps[0]):
        w = w - 0.002 / (1 + t) * full_gradient(objective, clients, w=w)
        np.testing.assert_allclose(step.w, w, atol=1e-8)


@pytest.mark.parametrize("objective", [*map(fedx.objective, LINEAR), *NONLINEAR])
def test_one_client_first_step_is_that_of_local_pairs(objective: Objective) -> None:
    clients = make_clients(objective.name, [(6, 9)])
    fedx_record = run(fedx.fedx1 if objective.linear else fedx.fedx2, objective, clients, step=0.1)[1]
    everything = np.arange(6), np.arange(len(clients[0][1]))
    (local,) = fedx.local_pair(
        objective, score, jacobian, clients, W, 1, 1, lambda t: 0.1, batches=lambda i, r, k: everything
    )
    np.testing.assert_allclose(fedx_record.w, local.w, rtol=1e-12)


def test_local_pair_is_the_mean_of_clients_on_their_own() -> None:
    objective, clients = fedx.objective("kl-opauc", lam=2.0), make_clients("kl-opauc")
    whole = [(np.arange(len(X1)), np.arange(len(X2))) for X1, X2, _ in clients]
    (record,) = fedx.local_pair(
        objective, score, jacobian, clients, W, 1, 1, lambda t: 0.1, batches=lambda i, r, k: whole[i]
    )
    alone = [full_gradient(objective, [client]) if len(client[0]) else np.zeros(4) for client in clients]
    np.testing.assert_allclose(record.w, W - 0.1 * np.mean(alone, axis=0), atol=1e-9)


def test_local_sgd_is_gradient_descent_on_the_cross_entropy() -> None:
    rng = np.random.default_rng(1)
    clients = [(rng.normal(size=(n, 3)), (rng.random(n) < 0.4).astype(float)) for n in (7, 4)]

    def entropy(w: Array, X: Array, y: Array) -> float:
        p = 1.0 / (1.0 + np.exp(-score(w, X)))
        return float(-np.mean(y * np.log(p) + (1.0 - y) * np.log(1.0 - p)))

    whole = [np.arange(len(y)) for _, y in clients]
    records = fedx.local_sgd(score, jacobian, clients, W, 2, 2, lambda t: 0.1 / (1 + t), lambda i, r, k: whole[i])
    w = W
    for record in records:
        ends = []
        for X, y in clients:
            end = w
            for k in range(2):
                rate = 0.1 / (1 + 2 * (record.round - 1) + k)
                end = end - rate * numerical_gradient(lambda v, X=X, y=y: entropy(v, X, y), end)
            ends.append(end)
        w = np.mean(ends, axis=0)
        np.testing.assert_allclose(record.w, w, atol=1e-9)
