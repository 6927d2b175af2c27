"""FedX, and the same losses without a pool: the rows of the registry."""

from __future__ import annotations

from apps.algorithms import Algorithm
from clients.fedx import FedX1Client, FedX2Client
from clients.pairwise import LocalPairClient
from problems.objectives.pairwise import LINEAR, PAIRWISE_LOSSES
from strategies.fedx import FedX1, FedX2
from strategies.pairwise import LocalPair

ROWS = {
    "fedx1": Algorithm(
        FedX1,
        FedX1Client,
        "fedx",
        tuple(LINEAR),
        "pairwise risk with linear f (AUC) over all sites' pairs (FedX, Algorithm 1)",
        "prediction sets of positives and negatives",
    ),
    "fedx2": Algorithm(
        FedX2,
        FedX2Client,
        "fedx",
        tuple(PAIRWISE_LOSSES),
        "compositional pairwise risk (partial AUC, AUPRC, p-norm push) over all sites' pairs (FedX, Algorithm 2)",
        "prediction sets, inner-function estimates u, momentum",
    ),
    "local-pair": Algorithm(
        LocalPair,
        LocalPairClient,
        "fedx",
        tuple(PAIRWISE_LOSSES),
        "the same pairwise losses on each site's own pairs only (FedX's baseline)",
        "momentum, for non-linear f",
    ),
}
