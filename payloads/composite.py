"""Records, settings and step sizes of composite federated learning: a smooth f plus a penalty g that has a prox.

Zhang, Hu, Johansson, "Composite Federated Learning with Heterogeneous Data" (2023), Algorithm 1, and its baselines.

| paper                       | here                                                             |
|-----------------------------|------------------------------------------------------------------|
| x-bar^r, pre-proximal       | the message's model; post-proximal: `CompositeStrategy.output`    |
| z-hat_{i,tau}^r             | the reply's model                                                |
| c_i^r                       | `CorrectionState`                                                |
| eta, eta_g, tau             | ``learning-rate``, ``server-learning-rate``, ``local-steps``     |
| eta-tilde = eta eta_g tau   | `StepSizes.between`                                              |
| theta_1, theta_2            | ``weight``, ``ridge``                                            |
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from payloads.record import FloatArray, IntArray, Payload, array
from payloads.settings import Settings, TrainingSettings

# the exchange before round 1: clients send how smooth their f_i is
SMOOTHNESS = "smoothness"

PenaltyName = Literal[
    "none",
    "l1",
    "l2",
    "elastic-net",
    "group-lasso",
    "nuclear-norm",
    "box",
    "l2-ball",
    "simplex",
    "nonnegative",
]


class CompositeSettings(Settings):
    """What is minimised beside the loss (table ``composite``): ridge/2 ||x||^2, which belongs to f, and the penalty."""

    penalty: PenaltyName = Field("l1", description=f"one of {', '.join(get_args(PenaltyName))}")
    weight: float = Field(1e-4, ge=0, description="the penalty's factor, a number >= 0 (no effect on constraint sets)")
    ridge: float = Field(0.01, ge=0, description="factor of the smooth term ||x||^2 / 2, a number >= 0")
    parameters: str = Field(
        "auto",
        min_length=1,
        description="what penalty and ridge act on: auto (all but biases), all, or names with commas",
    )
    ratio: float = Field(0.5, ge=0, le=1, description="share of l1 in elastic-net, in [0, 1]")
    groups: Literal["rows", "columns"] = Field(
        "rows", description="group-lasso's groups: rows (the weights of a unit) or columns (those of an input)"
    )
    lower: float | Literal["none"] = Field("none", description="lower bound of box, a number, or none")
    upper: float | Literal["none"] = Field("none", description="upper bound of box, a number >= lower, or none")
    radius: float = Field(1.0, gt=0, description="radius of l2-ball, sum of simplex, a number > 0")
    strong_convexity: float | Literal["auto"] = Field(
        "auto", description="fast-fedda's mu, a number >= 0, or auto: composite.ridge"
    )
    anchor_weight: float | Literal["auto"] = Field(
        "auto", description="fast-fedda's gamma, inverse of its first step, a number > 0, or auto: 1 / learning-rate"
    )

    @field_validator("strong_convexity")
    @classmethod
    def _convexity(cls, mu: float | str) -> float | str:
        if not isinstance(mu, str) and mu < 0:
            raise ValueError("below 0")
        return mu

    @field_validator("anchor_weight")
    @classmethod
    def _anchor(cls, gamma: float | str) -> float | str:
        if not isinstance(gamma, str) and gamma <= 0:
            raise ValueError("not above 0")
        return gamma

    @property
    def penalty_options(self) -> dict[str, Any]:
        """The arguments of `problems.penalties.make_penalty`."""
        names = ("weight", "ratio", "radius", "groups", "parameters")
        bounds = {
            "lower": -math.inf if isinstance(self.lower, str) else self.lower,
            "upper": math.inf if isinstance(self.upper, str) else self.upper,
        }
        return {**{name: getattr(self, name) for name in names}, **bounds}

    @property
    def mu(self) -> float:
        """fast-fedda's strong convexity."""
        return self.ridge if isinstance(self.strong_convexity, str) else self.strong_convexity


@dataclasses.dataclass(frozen=True)
class StepSizes:
    """Steps and prox parameters, by round, counted from 1, or by local iteration of the run, counted from 0.

    A round's step size is that of its first local iteration: learning-rate drops take effect between rounds.
    """

    training: TrainingSettings
    composite: CompositeSettings

    def local(self, server_round: int) -> float:
        """eta in a round."""
        training = self.training
        return training.learning_rate_at((server_round - 1) * training.local_steps)

    def between(self, server_round: int) -> float:
        """eta-tilde = eta eta_g tau of the round that made a model: the prox parameter from one round to the next.

        Of round 0, which made the initial model, it is round 1's.
        """
        training = self.training
        return self.local(max(server_round, 1)) * training.server_learning_rate * training.local_steps

    def until(self, server_round: int) -> float:
        """The sum of eta-tilde over the rounds from 1 to this one."""
        if self.training.lr_decay == 1:
            return server_round * self.between(1)
        return sum(self.between(number) for number in range(1, server_round + 1))

    def weight(self, iteration: int) -> float:
        """fast-fedda's b_t = gamma + mu t / 2 after t iterations."""
        gamma = self.composite.anchor_weight
        anchor = 1 / self.training.learning_rate if isinstance(gamma, str) else gamma
        return anchor + self.composite.mu * iteration / 2

    def averaged(self, iteration: int) -> float:
        """fast-fedda's prox parameter t / b_t after t iterations."""
        return iteration / self.weight(iteration)


@dataclasses.dataclass(frozen=True, eq=False)
class CorrectionState(Payload):
    """What a client keeps of its newest round r; that round counts once a later round's model has come down."""

    server_round: IntArray = array(1, kind="int")
    # c_i^r, for a round that is made again
    correction: FloatArray = array("d")
    # P(x-bar^r) and the mean of the round's gradients, which make c_i^{r+1}
    start: FloatArray = array("d")
    gradient: FloatArray = array("d")


@dataclasses.dataclass(frozen=True, eq=False)
class Smoothness(Payload):
    """Up, before round 1: a Lipschitz constant of the gradient of f_i, where one is known."""

    estimate: FloatArray | None = array(1, optional=True)
