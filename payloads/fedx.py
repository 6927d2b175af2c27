"""FedX's records and settings (Guo, Jin, Luo, Yang: "FedX: Federated Learning for Compositional Pairwise Risk
Optimization", Algorithms 1-3).

| paper                    | here                                        |
|--------------------------|---------------------------------------------|
| H_1, H_2 (histories)     | ``positive_scores``, ``partner_scores``      |
| U (inner estimates)      | ``positive_u`` (log u for ``kl-opauc``)      |
| R_{i,1}, R_{i,2}, P      | the pool: the same names in `FedXPool`       |
| G                        | ``momentum``                                |
| omega_1i, omega_2j       | ``positive_weights``, ``partner_weights``   |
| gamma, beta, lambda, tau | the same in `FedXSettings`                  |
| B_1, B_2                 | ``positive_batch_size``, ``negative_batch_size`` |

"Partners" are the elements of S_2: the negatives, or every sample for ``auprc``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from pydantic import Field

from payloads.record import BoolArray, FloatArray, IntArray, Payload, array
from payloads.settings import Settings

# The exchange before round 1: every client scores K batches with the initial model and takes no step (lines 3-4).
SCORING_ROUND, SCORING = 0, "scoring"


class FedXSettings(Settings):
    """Hyper-parameters of FedX1, FedX2 and their local and centralised counterparts (table ``fedx``)."""

    # the estimators
    gamma: float = Field(0.9, gt=0, le=1, description="weight of a new observation in u, in (0, 1] (FedX2)")
    beta: float = Field(0.1, gt=0, le=1, description="weight of a new gradient in the momentum, in (0, 1] (FedX2)")
    # the objective
    lambda_: float = Field(3.0, gt=0, description="temperature of kl-opauc, a number > 0")
    margin: float = Field(1.0, ge=0, description="margin of the hinge losses, a number >= 0")
    surrogate: Literal["squared-hinge", "logistic", "psm"] = Field(
        "squared-hinge", description="surrogate inside auprc and p-norm-push: squared-hinge, logistic or psm"
    )
    power: float = Field(2.0, ge=1, description="p of p-norm-push, a number >= 1")
    # batches and histories
    positive_batch_size: int = Field(16, ge=1, description="positives a local step takes, an integer >= 1")
    negative_batch_size: int = Field(16, ge=1, description="negatives a local step takes, an integer >= 1")
    tau: int = Field(1, ge=1, description="rounds of predictions the pool keeps, an integer >= 1")
    history_size: int = Field(
        0, ge=0, description="predictions of each kind a client sends a round, an integer >= 0 (0: all)"
    )
    independent_history: bool = Field(
        False,
        description="true: record predictions of an independent sample (Algorithm 2, line 14); or false",
    )
    prediction_noise: float = Field(
        0.0, ge=0, description="standard deviation of Gaussian noise on the scores that a client sends, a number >= 0"
    )

    @property
    def objective_options(self) -> dict[str, Any]:
        """What the objectives read of it, by their names for it."""
        return {
            "margin": self.margin,
            "temperature": self.lambda_,
            "surrogate": self.surrogate,
            "power": self.power,
        }


@dataclasses.dataclass(frozen=True, eq=False)
class FedXPredictions(Payload):
    """Up: the predictions a client made in a round, and its momentum. Letters: p positives, q partners, k = 1
    or 2 inner components, d parameters."""

    positive_scores: FloatArray = array("p")
    partner_scores: FloatArray = array("q")
    partner_labels: BoolArray | None = array("q", kind="bool", optional=True)  # auprc only
    positive_u: FloatArray | None = array("p", "k", optional=True)  # FedX2, from its first step on; none with noise
    momentum: FloatArray | None = array("d", optional=True)  # FedX2


@dataclasses.dataclass(frozen=True, eq=False)
class FedXPool(Payload):
    """Down: the pool of the last ``tau`` rounds. Entries are grouped in runs, one a contributing client and
    round, each with its length and the weight its entries carry."""

    # all sites together: clients N, positives |S_1|, partners |S_2|
    totals: IntArray = array(3, kind="int")
    # S_1: scores, inner estimates, and whether a run has estimates yet (those of the scoring round have none)
    positive_scores: FloatArray = array("p")
    positive_lengths: IntArray = array("r", kind="int")
    positive_weights: FloatArray = array("r")
    positive_tracked: BoolArray | None = array("r", kind="bool", optional=True)
    positive_u: FloatArray | None = array("p", "k", optional=True)
    # S_2: scores, and labels where partners are of both classes
    partner_scores: FloatArray = array("q")
    partner_lengths: IntArray = array("s", kind="int")
    partner_weights: FloatArray = array("s")
    partner_labels: BoolArray | None = array("q", kind="bool", optional=True)
    # FedX2, from round 2 on: the average of the clients' momenta
    momentum: FloatArray | None = array("d", optional=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Momentum(Payload):
    """Both ways: the momentum of a local method, averaged with the model. Absent before the first round."""

    momentum: FloatArray | None = array("d", optional=True)


@dataclasses.dataclass(frozen=True, eq=False)
class InnerEstimates(Payload):
    """Client state: u of every local positive (log u for ``kl-opauc``), and which have been observed."""

    u: FloatArray = array("n", "k")
    observed: BoolArray = array("n", kind="bool")
