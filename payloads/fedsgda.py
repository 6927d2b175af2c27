"""FedSGDA's records and settings (Xie, Zhang, Zhang, Shen, Qian: "A Federated Learning Framework for Nonconvex-PL
Minimax Problems", Frameworks 1-3).

| paper                              | here                                                  |
|------------------------------------|-------------------------------------------------------|
| (x_t, y_t), one flat point z       | the message's model                                   |
| (u_t, v_t)                         | ``estimate``                                          |
| (x_{t-1}, y_{t-1}); SVRG: snapshot | ``reference``                                         |
| 1 - alpha_t; SPIDER and SVRG: 1    | ``weight``                                            |
| local gradients                    | ``gradient``: at z, minus weight times at ``reference`` |
| c_eta, c_gamma, c_alpha, rho       | ``primal_step``, ``dual_step``, ``alpha_constant``, ``rho`` |
| m, S-hat (Appendix B)              | ``period``, ``large_batch``                           |

The paper's clients send their gradients at both points; every estimator uses nothing but one combination of the two, so
that is what travels: half the bytes.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from pydantic import Field, field_validator

from payloads.record import FloatArray, Payload, array
from payloads.settings import Settings

# the exchange before a round's own: clients send gradients and take no step
GRADIENTS = "gradients"
# the decay of the steps that storm's theory asks for
STORM_RHO = 1 / 3


class FedSGDASettings(Settings):
    """Hyper-parameters of FedSGDA (table ``fedsgda``); step sizes in round t = 0, 1, ... are constant / (t + 1)^rho."""

    primal_step: float = Field(0.1, gt=0, description="constant of the step in x, a number > 0")
    dual_step: float = Field(0.1, gt=0, description="constant of the step in y, a number > 0")
    alpha_constant: float = Field(
        1.0, gt=0, description="constant of storm's alpha_t = min(1, constant / (t + 1)^(2 rho)), a number > 0"
    )
    rho: float | Literal["auto"] = Field(
        "auto", description="decay of the steps, a number in [0, 1), or auto: 1/3 for storm, 0 for the others"
    )
    period: int = Field(10, ge=1, description="rounds from one large batch to the next, an integer >= 1 (spider, svrg)")
    large_batch: int | Literal["auto"] = Field(
        "auto", description="clients of a large batch, an integer >= 1, or auto: all (spider, svrg)"
    )

    def decay(self, auto: float) -> float:
        """rho, with what "auto" means for an estimator."""
        return auto if isinstance(self.rho, str) else self.rho

    @field_validator("rho")
    @classmethod
    def _decay(cls, rho: float | str) -> float | str:
        if not isinstance(rho, str) and not 0 <= rho < 1:
            raise ValueError("outside [0, 1)")
        return rho

    @field_validator("large_batch")
    @classmethod
    def _clients(cls, clients: int | str) -> int | str:
        if not isinstance(clients, str) and clients < 1:
            raise ValueError("below 1")
        return clients


@dataclasses.dataclass(frozen=True, eq=False)
class FedSGDADown(Payload):
    """Down. The gradient phase sends the reference point and its weight, where the estimator has one; the update
    phase sends the estimate."""

    # the share p of positives and the mean number n / N of samples of all sites, where f_i needs them
    population: FloatArray | None = array(2, optional=True)
    reference: FloatArray | None = array("d", optional=True)
    weight: FloatArray | None = array(1, optional=True)
    estimate: FloatArray | None = array("d", optional=True)


@dataclasses.dataclass(frozen=True, eq=False)
class LocalGradient(Payload):
    """Up, in the gradient phase: g_i(z) - weight * g_i(reference), each over all of the client's samples."""

    gradient: FloatArray = array("d")


@dataclasses.dataclass(frozen=True, eq=False)
class EstimatorState(Payload):
    """What the server keeps from round to round: the last point and estimate; SVRG: the snapshot and its gradient."""

    previous: FloatArray = array("d")
    estimate: FloatArray = array("d")
    snapshot: FloatArray | None = array("d", optional=True)
    snapshot_gradient: FloatArray | None = array("d", optional=True)
