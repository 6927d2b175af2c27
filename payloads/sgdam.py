"""LocalSGDAM's records and settings (Sharma, Panda, Joshi, Varshney, "Federated Minimax Optimization: Improved
Convergence Analyses and Algorithms", ICML 2022), in the form of LocalSCGDAM (Zhang, Zhang, Yang, Souvenir, Gao,
"Federated Compositional Deep AUC Maximization", NeurIPS 2023, Algorithm 1) without its inner function.

| paper                    | here                                                              |
|--------------------------|-------------------------------------------------------------------|
| (x, y), one flat point z | the message's model                                               |
| (u, v), one vector       | ``momentum``                                                      |
| eta, gamma_x, gamma_y    | the same: a step is gamma_x eta in x, gamma_y eta in y            |
| beta_x, beta_y           | the same: a new gradient weighs beta_x eta in u, beta_y eta in v  |
| p (communication period) | ``local-steps``                                                   |
"""

from __future__ import annotations

import dataclasses

from pydantic import Field, ValidationInfo, field_validator

from payloads.record import FloatArray, Payload, array
from payloads.settings import Settings


def as_weight(factor: float, info: ValidationInfo) -> float:
    """A factor whose product with eta is a weight of new values."""
    if "eta" in info.data and not 0 < factor * info.data["eta"] <= 1:
        raise ValueError("its product with eta lies outside (0, 1]")
    return factor


class SGDAMSettings(Settings):
    """Hyper-parameters of LocalSGDAM (table ``sgdam``)."""

    eta: float = Field(0.3, gt=0, description="scale of steps and of the weights of new values, a number > 0")
    gamma_x: float = Field(0.33, gt=0, description="step in x, in units of eta, a number > 0")
    gamma_y: float = Field(0.33, gt=0, description="step in y, in units of eta, a number > 0")
    beta_x: float = Field(
        3.3,
        gt=0,
        validate_default=True,
        description="weight of a new gradient in x's momentum, in units of eta, a number > 0 with eta * beta-x <= 1",
    )
    beta_y: float = Field(
        3.3,
        gt=0,
        validate_default=True,
        description="weight of a new gradient in y's momentum, in units of eta, a number > 0 with eta * beta-y <= 1",
    )

    @field_validator("beta_x", "beta_y")
    @classmethod
    def _momenta(cls, factor: float, info: ValidationInfo) -> float:
        return as_weight(factor, info)


@dataclasses.dataclass(frozen=True, eq=False)
class SGDAMDown(Payload):
    """Down. The momentum is absent in round 1."""

    # the share p of positives and the mean number n / N of samples of all sites, where f_i needs them
    population: FloatArray | None = array(2, optional=True)
    momentum: FloatArray | None = array("d", optional=True)


@dataclasses.dataclass(frozen=True, eq=False)
class SaddleMomentum(Payload):
    """Up, and what the server keeps: (u, v) as one vector."""

    momentum: FloatArray = array("d")
