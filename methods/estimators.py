"""The gradient estimators of FedSGDA, `methods.fedsgda`, with their settings and state. All have the form

    estimate_t = carry_t + mean_i [ g_i(z_t) - weight_t * g_i(reference_t) ],

in which z_t is the server's point in round t, g_i is client i's gradient, and the same clients compute both gradients.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Float64
from pydantic import Field, PositiveInt

from payloads.record import FloatArray, Payload, array
from payloads.settings import Settings, setting


class FedSGDASettings(Settings):
    """Hyper-parameters of FedSGDA (table ``fedsgda``); step sizes in round t = 0, 1, ... are constant / (t + 1)^rho."""

    primal_step: float = setting("The constant of the step in x.", 0.1, gt=0)
    dual_step: float = setting("The constant of the step in y.", 0.1, gt=0)
    alpha_constant: float = setting("The constant of storm's alpha_t = min(1, constant / (t + 1)^(2 rho)).", 1.0, gt=0)
    rho: Annotated[float, Field(ge=0, lt=1)] | Literal["auto"] = setting(
        "The decay of the steps. auto: 1/3 for fedsgda-storm, else 0.", "auto"
    )
    period: int = setting("The rounds from one large batch of clients to the next (spider, svrg).", 10, ge=1)
    large_batch: PositiveInt | Literal["auto"] = setting(
        "The clients of a large batch (spider, svrg). auto: all.", "auto"
    )

    def decay(self, auto: float) -> float:
        """Return rho.

        Args:
            auto: The estimator's default, the meaning of the setting "auto".
        """
        return auto if isinstance(self.rho, str) else self.rho


@dataclass(frozen=True, eq=False)
class EstimatorState(Payload):
    """The server's state, in float64: the last point and estimate; for SVRG also the snapshot and its gradient."""

    previous: FloatArray = array("d")
    estimate: FloatArray = array("d")
    snapshot: FloatArray | None = array("d", optional=True)
    snapshot_gradient: FloatArray | None = array("d", optional=True)


@dataclass(frozen=True)
class Question:
    """An estimator's question to the clients in a gradient phase, and the term to add to the mean of their answers.

    Attributes:
        reference: The second point, or None.
        weight: The factor of the gradient at the reference; 0 without a reference.
        carry: The term to add, or None.
        large: Whether to ask a large batch of clients.
        snapshot: Whether to keep the round's point and estimate as the snapshot.
    """

    reference: Float64[np.ndarray, "d"] | None = None
    weight: float = 0.0
    carry: Float64[np.ndarray, "d"] | None = None
    large: bool = False
    snapshot: bool = False


@dataclass(frozen=True)
class Estimator:
    """A gradient estimator.

    Attributes:
        question: (t, state, settings) -> the question of round t = 0, 1, ..., given the state after round t - 1.
        points: The maximum number of points at which the estimator needs gradients.
        rho: The decay of the steps with ``fedsgda.rho = "auto"``.
        periodic: Whether the estimator asks a large batch of clients every ``fedsgda.period`` rounds.
    """

    question: Callable[[int, EstimatorState | None, FedSGDASettings], Question]
    points: int = 2
    rho: float = 0.0
    periodic: bool = False


def ask_minibatch(t: int, state: EstimatorState | None, settings: FedSGDASettings) -> Question:
    """Ask for mean g_i(z_t), without a second point."""
    return Question()


def alpha(t: int, settings: FedSGDASettings) -> float:
    """Return alpha_t = beta_t = min(1, c_alpha / (t + 1)^(2 rho)).

    Args:
        t: The round, counted from 0. Round 0 uses 1 instead, since a previous estimate is missing.
        settings: The settings; provide c_alpha and rho.
    """
    return min(1.0, settings.alpha_constant / math.pow(t + 1, 2 * settings.decay(STORM.rho)))


def ask_storm(t: int, state: EstimatorState | None, settings: FedSGDASettings) -> Question:
    """Ask for (1 - alpha_t) (estimate_{t-1} - mean g_i(z_{t-1})) + mean g_i(z_t) (Cutkosky and Orabona 2019)."""
    weight = 1.0 - alpha(t, settings)
    if state is None or weight == 0:
        return Question()
    return Question(state.previous, weight, weight * state.estimate)


def ask_spider(t: int, state: EstimatorState | None, settings: FedSGDASettings) -> Question:
    """Ask for the mean over a large batch every ``period`` rounds, else for
    estimate_{t-1} + mean [g_i(z_t) - g_i(z_{t-1})] (Fang, Li, Lin, Zhang 2018; the paper's Appendix B)."""
    if state is None or t % settings.period == 0:
        return Question(large=True)
    return Question(state.previous, 1.0, state.estimate)


def ask_svrg(t: int, state: EstimatorState | None, settings: FedSGDASettings) -> Question:
    """Ask for a snapshot with its mean over a large batch every ``period`` rounds, else for the snapshot's mean +
    mean [g_i(z_t) - g_i(snapshot)] (Johnson and Zhang 2013; the paper's Remark 1)."""
    if state is None or t % settings.period == 0:
        return Question(large=True, snapshot=True)
    return Question(state.snapshot, 1.0, state.snapshot_gradient)


MINIBATCH = Estimator(ask_minibatch, points=1)
STORM = Estimator(ask_storm, rho=1 / 3)
SPIDER = Estimator(ask_spider, periodic=True)
SVRG = Estimator(ask_svrg, periodic=True)
