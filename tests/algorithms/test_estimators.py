"""The gradient estimators alone: what they ask for and what they make of it, against the NumPy reference, at points
and with clients that have nothing to do with each other from round to round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from payloads.fedsgda import EstimatorState, FedSGDASettings
from payloads.record import PayloadError
from strategies.estimators import GradientEstimator, Minibatch, Spider, Storm, Svrg
from tests.reference import minimax
from tests.reference.minimax import Array

EXACT: dict[str, float] = {"rtol": 1e-12, "atol": 1e-12}
CLIENTS, DIM, ROUNDS = 5, 4, 11
KINDS: dict[str, type[GradientEstimator]] = {"mb": Minibatch, "storm": Storm, "spider": Spider, "svrg": Svrg}
SETTINGS = [
    FedSGDASettings(),
    FedSGDASettings(alpha_constant=0.3, rho=0.0, period=3),
    FedSGDASettings(alpha_constant=2.5, rho=0.45, period=4),
    FedSGDASettings(alpha_constant=1e9, rho=0.2, period=1),
]

each_kind = pytest.mark.parametrize("name", list(KINDS))
each_settings = pytest.mark.parametrize("settings", SETTINGS, ids=["default", "constant", "decay", "no-memory"])


def gradient(client: int, z: Array) -> Array:
    """A nonlinear field of its own for every client."""
    return np.sin((client + 1) * z) + client * z


def alpha(settings: FedSGDASettings, t: int) -> float:
    return minimax.storm_alpha(settings.alpha_constant, 1 / 3 if settings.rho == "auto" else float(settings.rho), t)


def reference(name: str, settings: FedSGDASettings) -> minimax.Estimator:
    match name:
        case "mb":
            return minimax.MiniBatch()
        case "storm":
            return minimax.Storm(lambda t: alpha(settings, t))
        case "spider":
            return minimax.Spider(settings.period)
    return minimax.Svrg(settings.period)


@dataclass
class Step:
    """A round: the point, the clients, and what the estimator made of their answers."""

    z: Array
    clients: list[int]
    estimate: Array


def advance(estimator: GradientEstimator, t: int) -> Step:
    """Round t of `estimator`; its point and its clients depend on t alone."""
    rng = np.random.default_rng(t)
    z, clients = rng.normal(size=DIM), rng.choice(CLIENTS, 2, replace=False).tolist()
    question = estimator.question(t)
    answers = []
    for client in clients:
        answer = gradient(client, z)
        if question.reference is not None:
            answer = answer - question.weight * gradient(client, question.reference)
        answers.append(answer)
    return Step(z, clients, estimator.update(t, z, np.mean(answers, axis=0)))


@each_settings
@each_kind
def test_the_estimates_are_the_reference_s(name: str, settings: FedSGDASettings) -> None:
    estimator, expected, previous = KINDS[name](settings), reference(name, settings), np.empty(0)
    for t in range(ROUNDS):
        assert estimator.question(t).large == (name in ("spider", "svrg") and t % settings.period == 0)
        step = advance(estimator, t)
        mean_gradient = lambda z, step=step: np.mean([gradient(i, z) for i in step.clients], axis=0)  # noqa: E731
        estimate = expected.update(t, step.z, previous if t else step.z, mean_gradient)
        np.testing.assert_allclose(step.estimate, estimate, **EXACT)
        previous = step.z


def test_alpha_by_hand() -> None:
    """min(1, c / (t + 1)^(2 rho)), t = 0, 1, 2, 3, 8, with rho = 1/2: c / (t + 1); 1 in round 0."""
    storm = Storm(FedSGDASettings(alpha_constant=0.5, rho=0.5))
    assert storm.alpha(0) == 1.0
    storm = Storm(FedSGDASettings(alpha_constant=2.0, rho=0.5))
    advance(storm, 0)
    assert [storm.alpha(t) for t in (0, 1, 2, 3, 8)] == pytest.approx([1.0, 1.0, 2 / 3, 1 / 2, 2 / 9], rel=1e-15)


# State.


@each_settings
@each_kind
def test_a_restored_estimator_goes_on_to_the_bit(name: str, settings: FedSGDASettings) -> None:
    """After every round: at a period's end, in its first round, in the middle."""
    kept, restored = KINDS[name](settings), KINDS[name](settings)
    assert kept.snapshot() is None
    for t in range(ROUNDS):
        left, right = advance(kept, t), advance(restored, t)
        assert left.estimate.tobytes() == right.estimate.tobytes()
        state = restored.snapshot()
        assert isinstance(state, EstimatorState)
        record = EstimatorState.from_record(state.to_record(), {"d": DIM})
        restored = KINDS[name](settings)
        restored.restore(record)


def test_a_state_of_unequal_lengths_is_refused() -> None:
    with pytest.raises(PayloadError, match=r"EstimatorState.estimate: got shape \(3,\), expected \(4\)"):
        EstimatorState(previous=np.zeros(4), estimate=np.zeros(3)).check()
