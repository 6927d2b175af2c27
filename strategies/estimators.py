"""FedSGDA's global gradient estimators: (u_t, v_t) as one flat vector, from the mean over the round's clients.

All of them have one form,

    estimate_t = carry_t + mean_i [ g_i(z_t) - weight_t * g_i(reference_t) ],

so an estimator says what to ask the clients for, and what to add to their answer. Both halves of the difference are
over the same clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from payloads.fedsgda import STORM_RHO, EstimatorState, FedSGDASettings

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Question:
    """What the clients of a gradient phase are asked for.

    Attributes:
        reference: (d,) the second point, or None.
        weight: what the gradient there is multiplied by; 0 without a reference.
        large: the question goes to a large batch of clients.
    """

    reference: Vector | None = None
    weight: float = 0.0
    large: bool = False


class GradientEstimator(ABC):
    """Base of the estimators; float64, whatever travels.

    Attributes:
        rho: the decay of the steps that ``fedsgda.rho = "auto"`` means.
        periodic: uses large batches, every ``fedsgda.period`` rounds.
    """

    rho = 0.0
    periodic = False

    def __init__(self, settings: FedSGDASettings) -> None:
        self.settings = settings
        self.decay = settings.decay(self.rho)
        # of the round before
        self.previous: Vector | None = None
        self.estimate: Vector | None = None

    @abstractmethod
    def question(self, t: int) -> Question:
        """What to ask in round t = 0, 1, ..."""

    @abstractmethod
    def combined(self, t: int, collected: Vector) -> Vector:
        """(d,) the estimate of round t from the mean of the clients' answers."""

    def update(self, t: int, point: Vector, collected: Vector) -> Vector:
        """The estimate at the point (d,) of round t, remembered for the next."""
        self.estimate = self.combined(t, collected)
        self.previous = point
        return self.estimate

    def snapshot(self) -> EstimatorState | None:
        """What the next round needs, or None before the first."""
        if self.previous is None or self.estimate is None:
            return None
        return EstimatorState(previous=self.previous, estimate=self.estimate)

    def restore(self, state: EstimatorState) -> None:
        """Continue from a `snapshot`."""
        self.previous, self.estimate = state.previous.astype(np.float64), state.estimate.astype(np.float64)

    def starts(self, t: int) -> bool:
        """Whether round t begins a period."""
        return t % self.settings.period == 0


class Minibatch(GradientEstimator):
    """The mean of the clients' gradients; nothing is sent or computed at another point."""

    def question(self, t: int) -> Question:
        return Question()

    def combined(self, t: int, collected: Vector) -> Vector:
        return collected


class Storm(GradientEstimator):
    """(1 - alpha_t) (estimate_{t-1} - mean g_i(z_{t-1})) + mean g_i(z_t) (Cutkosky and Orabona 2019)."""

    rho = STORM_RHO

    def alpha(self, t: int) -> float:
        """alpha_t = beta_t = min(1, c_alpha / (t + 1)^(2 rho)); 1 in round 0."""
        if self.previous is None:
            return 1.0
        power: float = (t + 1) ** (2 * self.decay)
        return min(1.0, self.settings.alpha_constant / power)

    def question(self, t: int) -> Question:
        weight = 1.0 - self.alpha(t)
        return Question(self.previous, weight) if weight else Question()

    def combined(self, t: int, collected: Vector) -> Vector:
        weight = 1.0 - self.alpha(t)
        return collected + weight * self.estimate if self.estimate is not None and weight else collected


class Spider(GradientEstimator):
    """Every ``period`` rounds the mean over a large batch, else estimate_{t-1} + mean [g_i(z_t) - g_i(z_{t-1})]
    (Fang, Li, Lin, Zhang 2018; the paper's Appendix B)."""

    periodic = True

    def question(self, t: int) -> Question:
        return Question(large=True) if self.starts(t) else Question(self.previous, 1.0)

    def combined(self, t: int, collected: Vector) -> Vector:
        if self.starts(t):
            return collected
        assert self.estimate is not None
        return self.estimate + collected


class Svrg(GradientEstimator):
    """Every ``period`` rounds a snapshot with its mean over a large batch, else that mean +
    mean [g_i(z_t) - g_i(snapshot)] (Johnson and Zhang 2013; the paper's Remark 1)."""

    periodic = True

    def __init__(self, settings: FedSGDASettings) -> None:
        super().__init__(settings)
        self.kept: tuple[Vector, Vector] | None = None

    def question(self, t: int) -> Question:
        if self.starts(t):
            return Question(large=True)
        assert self.kept is not None
        return Question(self.kept[0], 1.0)

    def combined(self, t: int, collected: Vector) -> Vector:
        if self.starts(t):
            return collected
        assert self.kept is not None
        return self.kept[1] + collected

    def update(self, t: int, point: Vector, collected: Vector) -> Vector:
        estimate = super().update(t, point, collected)
        if self.starts(t):
            self.kept = (point, estimate)
        return estimate

    def snapshot(self) -> EstimatorState | None:
        if self.previous is None or self.estimate is None or self.kept is None:
            return None
        point, gradient = self.kept
        return EstimatorState(
            previous=self.previous, estimate=self.estimate, snapshot=point, snapshot_gradient=gradient
        )

    def restore(self, state: EstimatorState) -> None:
        super().restore(state)
        if state.snapshot is not None and state.snapshot_gradient is not None:
            self.kept = (state.snapshot.astype(np.float64), state.snapshot_gradient.astype(np.float64))
