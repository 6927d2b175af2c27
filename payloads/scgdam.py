"""LocalSCGDAM's records and settings (Zhang, Zhang, Yang, Souvenir, Gao, "Federated Compositional Deep AUC
Maximization", NeurIPS 2023, Algorithm 1).

| paper                                      | here                                                            |
|--------------------------------------------|-----------------------------------------------------------------|
| x = (w, w1, w2) and y = w3, one flat point | the message's model, (d,)                                       |
| h, the estimate of g(x)                    | ``inner``, (p,), p = d - 1                                      |
| (u, v), one vector                         | ``momentum``, (d,)                                              |
| eta, gamma_x, gamma_y                      | the same: a step is gamma_x eta in x, gamma_y eta in y          |
| beta_x, beta_y                             | the same: a new gradient weighs beta_x eta in u, beta_y eta in v|
| alpha                                      | the same: a new g(x; xi) weighs alpha eta in h                  |
| rho                                        | the same: g(x) = (w - rho grad CE(w), w1, w2)                   |
| p (communication period)                   | ``local-steps``                                                 |

The network at h is another network than that at w: it has batch-norm statistics of its own, ``inner_buffers``.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from payloads.record import FloatArray, Payload, array
from payloads.sgdam import SGDAMSettings, as_weight


class SCGDAMSettings(SGDAMSettings):
    """Hyper-parameters of LocalSCGDAM (table ``scgdam``); the defaults are the paper's Table 2, which has no rho."""

    alpha: float = Field(
        3.0,
        gt=0,
        validate_default=True,
        description="weight of a new inner point in its estimate, in units of eta, a number > 0 with eta * alpha <= 1",
    )
    rho: float = Field(0.01, ge=0, description="step of the inner descent on the cross-entropy, a number >= 0")
    hessian: Literal["exact", "identity"] = Field(
        "exact", description="exact (Hessian-vector products) or identity (the inner step counts as constant)"
    )
    independent_batches: bool = Field(
        False, description="true: the inner and the outer function take a batch each; false: they share one"
    )
    headline: Literal["outer", "inner"] = Field(
        "outer", description="whose metrics the log and the curves show: outer (the model w) or inner (the estimate h)"
    )

    @field_validator("alpha")
    @classmethod
    def _estimate(cls, factor: float, info: ValidationInfo) -> float:
        return as_weight(factor, info)


@dataclasses.dataclass(frozen=True, eq=False)
class SCGDAMDown(Payload):
    """Down. In round 1 there is the population only."""

    # the share p of positives and the mean number n / N of samples of all sites
    population: FloatArray | None = array(2, optional=True)
    inner: FloatArray | None = array("p", optional=True)
    momentum: FloatArray | None = array("d", optional=True)
    # of a network that has batch-norm statistics
    inner_buffers: FloatArray | None = array("b", optional=True)


@dataclasses.dataclass(frozen=True, eq=False)
class CompositionalUp(Payload):
    """Up: h, (u, v) as one vector, and the statistics at h."""

    inner: FloatArray = array("p")
    momentum: FloatArray = array("d")
    inner_buffers: FloatArray | None = array("b", optional=True)


@dataclasses.dataclass(frozen=True, eq=False)
class CompositionalState(Payload):
    """What the server keeps: their means. ``inner`` is (h, y), a flat point as the network takes it."""

    inner: FloatArray = array("d")
    momentum: FloatArray = array("d")
    inner_buffers: FloatArray | None = array("b", optional=True)
