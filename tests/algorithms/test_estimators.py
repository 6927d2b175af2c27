"""The gradient estimators alone: STORM's weights by hand, and settings for which two estimators coincide."""

import numpy as np
import pytest

from methods.estimators import (
    MINIBATCH,
    SPIDER,
    STORM,
    SVRG,
    Estimator,
    EstimatorState,
    FedSGDASettings,
    alpha,
    ask_storm,
)
from methods.fedsgda import LocalGradient, estimate
from tests.reference.minimax import Array

CLIENTS, DIM, ROUNDS = 5, 4, 11
KINDS: dict[str, Estimator] = {"mb": MINIBATCH, "storm": STORM, "spider": SPIDER, "svrg": SVRG}
SETTINGS = [
    FedSGDASettings(),
    FedSGDASettings(alpha_constant=0.3, rho=0.0, period=3),
    FedSGDASettings(alpha_constant=2.5, rho=0.45, period=4),
    FedSGDASettings(alpha_constant=1e9, rho=0.2, period=1),
]

each_kind = pytest.mark.parametrize("name", list(KINDS))
each_settings = pytest.mark.parametrize("settings", SETTINGS, ids=["default", "constant", "decay", "no-memory"])


def gradient(client: int, z: Array) -> Array:
    """Return a client's gradient: each client has a different nonlinear field."""
    return np.sin((client + 1) * z) + client * z


def advance(
    estimator: Estimator, t: int, state: EstimatorState | None, settings: FedSGDASettings, count: int = 2
) -> EstimatorState:
    """Return the state after round t, whose point and clients depend on t alone."""
    rng = np.random.default_rng(t)
    z, clients = rng.normal(size=DIM), rng.choice(CLIENTS, count, replace=False).tolist()
    question = estimator.question(t, state, settings)
    answers = []
    for client in clients:
        answer = gradient(client, z)
        if question.reference is not None:
            answer = answer - question.weight * gradient(client, question.reference)
        answers.append(LocalGradient(gradient=answer))
    return estimate(question, state, z, answers)


def test_alpha_by_hand() -> None:
    """min(1, c / (t + 1)^(2 rho)), t = 0, 1, 2, 3, 8, with rho = 1/2: c / (t + 1); round 0 asks for no second point."""
    settings = FedSGDASettings(alpha_constant=2.0, rho=0.5)
    assert ask_storm(0, None, settings).weight == 0
    assert [alpha(t, settings) for t in (0, 1, 2, 3, 8)] == pytest.approx([1.0, 1.0, 2 / 3, 1 / 2, 2 / 9], rel=1e-15)


@each_settings
@each_kind
def test_of_all_clients_it_is_the_mean_gradient(name: str, settings: FedSGDASettings) -> None:
    state = None
    for t in range(ROUNDS):
        state, z = advance(KINDS[name], t, state, settings, CLIENTS), np.random.default_rng(t).normal(size=DIM)
        expected = np.mean([gradient(client, z) for client in range(CLIENTS)], axis=0)
        np.testing.assert_allclose(state.estimate, expected, rtol=1e-10, atol=1e-12)


def test_storm_that_forgets_nothing_is_spider_and_svrg_is_not() -> None:
    settings = FedSGDASettings(alpha_constant=1e-300, rho=0.0, period=100)
    storm = spider = svrg = None
    for t in range(ROUNDS):
        storm, spider, svrg = (
            advance(kind, t, state, settings) for kind, state in ((STORM, storm), (SPIDER, spider), (SVRG, svrg))
        )
        np.testing.assert_allclose(storm.estimate, spider.estimate, rtol=1e-10)
        assert np.allclose(svrg.estimate, spider.estimate, rtol=1e-10) is (t < 2)
