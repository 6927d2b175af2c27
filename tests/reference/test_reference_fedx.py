"""The NumPy reference of FedX against finite differences, closed forms and coinciding special cases."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from . import fedx
from .fedx import Array, Client, Index, Objective, Round

LINEAR = [fedx.objective(name, margin=0.7) for name in fedx.LOSSES]
NONLINEAR = [
    fedx.objective("kl-opauc", margin=0.7, lam=2.0),
    fedx.objective("auprc", margin=1.5),
    fedx.objective("auprc", surrogate="logistic"),
    fedx.objective("auprc", surrogate="psm"),
    fedx.objective("p-norm-push", margin=1.5, p=3.0),
    fedx.objective("p-norm-push", p=2.5, surrogate="logistic"),
]
each_objective = pytest.mark.parametrize("objective", [*LINEAR, *NONLINEAR])
W = np.array([0.3, -0.5, 0.2, 0.4])
# positives and negatives of each client: unequal, one without positives
SIZES = [(6, 9), (2, 5), (0, 4), (3, 14)]


def score(w: Array, X: Array) -> Array:
    return np.tanh(X @ w[:-1]) + w[-1] * X[:, 0] ** 2


def jacobian(w: Array, X: Array) -> Array:
    slope = 1.0 - np.tanh(X @ w[:-1]) ** 2
    return np.concatenate([slope[:, None] * X, X[:, :1] ** 2], axis=1)


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


def full_gradient(objective: Objective, clients: list[Client], w: Array = W) -> Array:
    return numerical_gradient(lambda v: fedx.full_objective(objective, score, v, clients), w)


def run(algorithm: Callable, objective: Objective, clients: list[Client], step: float = 0.0, **options: Any) -> Any:
    """Batches of everything, split over the local steps, the whole pool drawn.

    Client i passes i + 1 times over its samples: its gradients stay, the pool's weights become unequal.
    """
    options = {"rounds": 1, "local_steps": 1} | options
    records: list[Round] = []

    def batches(i: int, r: int, k: int) -> tuple[Index, Index]:
        X1, X2, _ = clients[i]
        mine = slice(k, None, options["local_steps"])
        return np.tile(np.arange(len(X1))[mine], i + 1), np.tile(np.arange(len(X2))[mine], i + 1)

    def draws(i: int, r: int, k: int) -> tuple[Index, Index]:
        return np.arange(len(records[-1].positives.score)), np.arange(len(records[-1].partners.score))

    shared = {"batches": batches, "draws": draws, "learning_rate": lambda t: step}
    for record in algorithm(objective, score, jacobian, clients, W, **shared, **options):
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
        pools = len(records[-1].positives.score), len(records[-1].partners.score)
        return rng.choice(pools[0], 5, replace=False), rng.choice(pools[1], 6, replace=False)

    shared = {"draws": draws, "tau": 2} if algorithm is not fedx.local_pair else {}
    shared |= {"batches": batches, "learning_rate": lambda t: 0.1 / (1 + t), "rounds": 6, "local_steps": 3}
    participants = lambda r: [i for i in range(4) if i != r % 4]  # noqa: E731
    for record in algorithm(objective, score, jacobian, clients, W, participants=participants, **(shared | options)):
        records.append(record)
    return records


def mean_gradient(record: Round) -> Array:
    return np.mean([step.gradient for steps in record.steps.values() for step in steps], axis=0)


def test_full_objectives_are_their_definitions() -> None:
    definitions: dict[
        str, Callable[[Array, Array], float]
    ] = {  # of t = h(positive) - h(partners), the partners' labels
        "square": lambda t, y: np.mean((1 - t) ** 2),
        "psm": lambda t, y: np.mean(1 / (1 + np.exp(t))),
        "squared-hinge": lambda t, y: np.mean(np.maximum(1 - t, 0) ** 2),
        "logistic": lambda t, y: np.mean(np.log(1 + np.exp(-t))),
        "kl-opauc": lambda t, y: 3 * np.log(np.mean(np.exp(np.maximum(1 - t, 0) ** 2 / 3))),
        "auprc": lambda t, y: -np.sum(np.maximum(1 - t[y == 1], 0) ** 2) / np.sum(np.maximum(1 - t, 0) ** 2),
        "p-norm-push": lambda t, y: np.mean(np.maximum(1 - t, 0) ** 2) ** 2,
    }
    for name, definition in definitions.items():
        clients = make_clients(name)
        X1, X2, y2 = fedx.union(clients)
        expected = np.mean([definition(z - score(W, X2), y2) for z in score(W, X1)])
        found = fedx.full_objective(fedx.objective(name, lam=3.0), score, W, clients)
        assert found == pytest.approx(expected, rel=1e-12)


def test_fedx2_in_logarithms_is_fedx2_and_its_lazy_ratio_is_bounded() -> None:
    objective, clients = fedx.objective("kl-opauc", lam=4.0), make_clients("kl-opauc")
    logarithmic, plain = (
        random_run(fedx.fedx2, one, clients, gamma=0.4, beta=0.3)
        for one in (objective, objective._replace(exponent=None))
    )
    for one, other in zip(logarithmic, plain, strict=True):
        np.testing.assert_allclose(one.w, other.w, rtol=1e-11)
    log_u, sharp = np.array([[0.0], [1.0]]), fedx.objective("kl-opauc", lam=0.1)
    _, d2 = fedx.chain(sharp, log_u, np.zeros(2), np.array([50.0, -3.0]), np.zeros(2), bound=32)
    np.testing.assert_allclose(d2, [[32 * 2 * 51.0, 0.0]] * 2, rtol=1e-12)


def test_pool_weights_are_unbiased_over_all_pairs_of_participants() -> None:
    objective, clients, gradients = fedx.objective("square"), make_clients("square"), []
    pairs = list(itertools.combinations(range(4), 2))
    for first, second in itertools.product(pairs, pairs):
        chosen = {1: list(first), 2: list(second)}
        gradients.append(
            mean_gradient(run(fedx.fedx1, objective, clients, rounds=2, participants=chosen.__getitem__)[2])
        )
    np.testing.assert_allclose(np.mean(gradients, axis=0), full_gradient(objective, clients), atol=1e-9)


@each_objective
def test_centralised_full_batch_is_gradient_descent_and_one_client_s_first_step(objective: Objective) -> None:
    clients = make_clients(objective.name, [(6, 9)])
    everything = np.arange(6), np.arange(len(clients[0][1]))
    rate: Callable[[int], float] = lambda t: 0.002 / (1 + t)  # noqa: E731
    records = fedx.local_pair(objective, score, jacobian, clients, W, 2, 3, rate, lambda i, r, k: everything)
    w = W
    for t, step in enumerate(step for record in records for step in record.steps[0]):
        w = w - 0.002 / (1 + t) * full_gradient(objective, clients, w)
        np.testing.assert_allclose(step.w, w, atol=1e-8)
    (local,) = fedx.local_pair(objective, score, jacobian, clients, W, 1, 1, lambda t: 0.1, lambda i, r, k: everything)
    federated = run(fedx.fedx1 if objective.linear else fedx.fedx2, objective, clients, step=0.1)[1]
    np.testing.assert_allclose(federated.w, local.w, rtol=1e-12)
