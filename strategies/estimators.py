"""FedSGDA's global gradient estimators: (u_t, v_t) as one flat vector, from the mean over the round's clients.

All of them have one form,

    estimate_t = carry_t + mean_i [ g_i(z_t) - weight_t * g_i(reference_t) ],

so an estimator says what to ask the clients for, and what to add to their answer. Both halves of the difference are
over the same clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from payloads.fedsgda import STORM_RHO, EstimatorState, FedSGDASettings
from payloads.record import FloatArray


@dataclass(frozen=True)
class Question:
    """What the clients of a gradient phase are asked for.

    Attributes:
        reference: (d,) the second point, or None.
        weight: what the gradient there is multiplied by; 0 without a reference.
        large: the question goes to a large batch of clients.
    """

    reference: FloatArray | None = None
    weight: float = 0.0
    large: bool = False


class GradientEstimator(ABC):
    """Base of the estimators: functions of the round t = 0, 1, ... and of what the round before left, None in round 0.
    The server's vectors are float64, whatever travels.

    Attributes:
        rho: the decay of the steps that ``fedsgda.rho = "auto"`` means.
        periodic: uses large batches, every ``fedsgda.period`` rounds.
    """

    rho = 0.0
    periodic = False

    def __init__(self, settings: FedSGDASettings) -> None:
        self.settings = settings
        self.decay = settings.decay(self.rho)

    @abstractmethod
    def question(self, t: int, state: EstimatorState | None) -> Question:
        """What to ask in round t."""

    @abstractmethod
    def combined(self, t: int, state: EstimatorState | None, collected: FloatArray) -> FloatArray:
        """(d,) the estimate of round t from the mean of the clients' answers."""

    def update(self, t: int, state: EstimatorState | None, point: FloatArray, collected: FloatArray) -> EstimatorState:
        """What round t leaves: its point (d,) and the estimate there."""
        return EstimatorState(previous=point, estimate=self.combined(t, state, collected))

    def starts(self, t: int) -> bool:
        """Whether round t begins a period."""
        return t % self.settings.period == 0


class Minibatch(GradientEstimator):
    """The mean of the clients' gradients; nothing is sent or computed at another point."""

    def question(self, t: int, state: EstimatorState | None) -> Question:
        return Question()

    def combined(self, t: int, state: EstimatorState | None, collected: FloatArray) -> FloatArray:
        return collected


class Storm(GradientEstimator):
    """(1 - alpha_t) (estimate_{t-1} - mean g_i(z_{t-1})) + mean g_i(z_t) (Cutkosky and Orabona 2019), with
    alpha_t = beta_t = min(1, c_alpha / (t + 1)^(2 rho)), and 1 in round 0."""

    rho = STORM_RHO

    def alpha(self, t: int) -> float:
        """alpha_t of a round after the first."""
        power: float = (t + 1) ** (2 * self.decay)
        return min(1.0, self.settings.alpha_constant / power)

    def question(self, t: int, state: EstimatorState | None) -> Question:
        if state is None or self.alpha(t) == 1:
            return Question()
        return Question(state.previous, 1.0 - self.alpha(t))

    def combined(self, t: int, state: EstimatorState | None, collected: FloatArray) -> FloatArray:
        if state is None or self.alpha(t) == 1:
            return collected
        return collected + (1.0 - self.alpha(t)) * state.estimate


class Spider(GradientEstimator):
    """Every ``period`` rounds the mean over a large batch, else estimate_{t-1} + mean [g_i(z_t) - g_i(z_{t-1})]
    (Fang, Li, Lin, Zhang 2018; the paper's Appendix B)."""

    periodic = True

    def question(self, t: int, state: EstimatorState | None) -> Question:
        if state is None or self.starts(t):
            return Question(large=True)
        return Question(state.previous, 1.0)

    def combined(self, t: int, state: EstimatorState | None, collected: FloatArray) -> FloatArray:
        return collected if state is None or self.starts(t) else state.estimate + collected


class Svrg(GradientEstimator):
    """Every ``period`` rounds a snapshot with its mean over a large batch, else that mean +
    mean [g_i(z_t) - g_i(snapshot)] (Johnson and Zhang 2013; the paper's Remark 1)."""

    periodic = True

    def question(self, t: int, state: EstimatorState | None) -> Question:
        if state is None or self.starts(t):
            return Question(large=True)
        return Question(state.snapshot, 1.0)

    def combined(self, t: int, state: EstimatorState | None, collected: FloatArray) -> FloatArray:
        if state is None or self.starts(t):
            return collected
        assert state.snapshot_gradient is not None
        return state.snapshot_gradient + collected

    def update(self, t: int, state: EstimatorState | None, point: FloatArray, collected: FloatArray) -> EstimatorState:
        new = super().update(t, state, point, collected)
        if state is None or self.starts(t):
            return replace(new, snapshot=point, snapshot_gradient=new.estimate)
        return replace(new, snapshot=state.snapshot, snapshot_gradient=state.snapshot_gradient)
