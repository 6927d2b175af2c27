"""FedProx: the rows of the registry."""

from __future__ import annotations

from apps.algorithms import Algorithm
from clients.fedprox import FedProxClient
from problems.objectives.classification import CROSS_ENTROPY
from strategies.fedprox import FedProx

ROWS = {
    "fedprox": Algorithm(
        FedProx,
        FedProxClient,
        "fedprox",
        (CROSS_ENTROPY,),
        "local SGD on cross-entropy with a pull to the server's model, averaged by samples (FedProx, Li et al. 2020)",
        "nothing",
    ),
}
