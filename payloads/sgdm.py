"""The records and settings of local SGD with momentum, on the cross-entropy and on the ratio loss (Wang, Xu, Wang, Zhu,
"Addressing Class Imbalance in Federated Learning", AAAI 2021).

| method                                  | here                                        |
|-----------------------------------------|---------------------------------------------|
| w                                       | the message's model                         |
| m                                       | ``momentum`` of `SGDMDown`, `LocalMomentum` |
| beta, the weight of a new gradient in m | ``momentum`` of `SGDMSettings`              |
| alpha and beta of the ratio loss        | ``ratio_alpha``, ``ratio_beta``             |
"""

from __future__ import annotations

import dataclasses

from pydantic import Field

from payloads.record import FloatArray, IntArray, Payload, array
from payloads.settings import Settings


class SGDMSettings(Settings):
    """Hyper-parameters of local SGD with momentum (table ``sgdm``)."""

    momentum: float = Field(0.1, gt=0, le=1, description="weight of a new gradient in the momentum, in (0, 1]")
    ratio_alpha: float = Field(1.0, ge=0, description="ratio-loss: weight of every sample, a number >= 0")
    ratio_beta: float = Field(
        0.1, ge=0, description="ratio-loss: weight added, times the other class's samples over its own, a number >= 0"
    )


@dataclasses.dataclass(frozen=True, eq=False)
class SGDMDown(Payload):
    """Down. The momentum is absent in round 1."""

    # negatives and positives of all sites together, for the ratio loss
    class_counts: IntArray | None = array(2, kind="int", optional=True)
    momentum: FloatArray | None = array("d", optional=True)


@dataclasses.dataclass(frozen=True, eq=False)
class LocalMomentum(Payload):
    """Up, and what the server keeps: m."""

    momentum: FloatArray = array("d")
