"""The client halves of the methods that train a network's scores, each of which is a module of `methods`."""

from __future__ import annotations

from dataclasses import replace

from flwr.common import Scalar

from clients.base import ScoringClient
from methods.composite import COMPOSITE
from methods.fast_fedda import FAST_FEDDA
from methods.fedda import FEDDA, FEDMID
from methods.fedprox import FEDPROX, PROXIMAL_MU
from methods.fedx import FEDX1, FEDX2, SCORING, SCORING_ROUND
from methods.local_pair import LOCAL_PAIR
from methods.local_sgd import LOCAL_SGD
from methods.scaffold import SCAFFOLD
from methods.sgdm import LOCAL_SGDM
from payloads.record import FloatArray
from payloads.wire import PHASE, ROUND
from problems.objectives.classification import RATIO_LOSS


class CompositeClient(ScoringClient):
    """Composite FL: corrected gradients at the post-proximal point move the pre-proximal point, which is sent."""

    method = COMPOSITE


class FedMidClient(ScoringClient):
    """FedMid: proximal SGD."""

    method = FEDMID


class FedDAClient(ScoringClient):
    """FedDA: steps of a dual point."""

    method = FEDDA


class FastFedDAClient(ScoringClient):
    """Fast-FedDA: dual averaging over all points and gradients of the run."""

    method = FAST_FEDDA


class FedProxClient(ScoringClient):
    """K steps of SGD on the loss plus mu/2 |w - w_server|^2. mu may come from Flower's own FedProx strategy."""

    method = FEDPROX

    def received(self, config: dict[str, Scalar]) -> float | None:
        mu = config.get(PROXIMAL_MU)
        return None if mu is None else float(mu)


class FedX1Client(ScoringClient):
    """FedX, Algorithm 1: linear f. Nothing is kept between rounds."""

    method = FEDX1

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        """One round; round 0 is the scoring round, whether or not the message names the phase."""
        phase: dict[str, Scalar] = {PHASE: SCORING} if config[ROUND] == SCORING_ROUND else {}
        return super().fit(parameters, config | phase)


class FedX2Client(FedX1Client):
    """FedX, Algorithms 2 and 3: any f, with u tracked for every positive and a momentum."""

    method = FEDX2


class LocalPairClient(ScoringClient):
    """The pairwise losses on the site's own pairs: mini-batch SGD for linear f; u and momentum for non-linear f."""

    method = LOCAL_PAIR


class LocalSGDClient(ScoringClient):
    """K steps of SGD; nothing but the model travels."""

    method = LOCAL_SGD


class LocalSGDMClient(ScoringClient):
    """K steps along the momentum, which starts as the server's or, in round 1, as the first gradient."""

    method = LOCAL_SGDM


class LocalSGDMRatioClient(LocalSGDMClient):
    """`LocalSGDMClient` on the ratio loss."""

    method = replace(LOCAL_SGDM, loss=RATIO_LOSS)


class ScaffoldClient(ScoringClient):
    """SCAFFOLD: K steps whose gradients are corrected by c - c_i; the client keeps c_i, zeros at first."""

    method = SCAFFOLD
