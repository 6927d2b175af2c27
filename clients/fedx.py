"""The client half of FedX; `methods.fedx` is the method."""

from __future__ import annotations

from flwr.common import Scalar

from clients.base import ScoringClient
from methods.fedx import FEDX1, FEDX2, SCORING, SCORING_ROUND
from payloads.record import FloatArray
from payloads.wire import PHASE, ROUND


class FedX1Client(ScoringClient):
    """Algorithm 1: linear f. Nothing is kept between rounds."""

    method = FEDX1

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        """One round; round 0 is the scoring round, whether or not the message names the phase."""
        phase: dict[str, Scalar] = {PHASE: SCORING} if config[ROUND] == SCORING_ROUND else {}
        return super().fit(parameters, config | phase)


class FedX2Client(FedX1Client):
    """Algorithms 2 and 3: any f, with u tracked for every positive and a momentum."""

    method = FEDX2
