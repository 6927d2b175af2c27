"""Local SGD: the rows of the registry."""

from __future__ import annotations

from apps.algorithms import Algorithm
from clients.local_sgd import LocalSGDClient
from problems.objectives.classification import CROSS_ENTROPY
from strategies.local_sgd import LocalSGD

ROWS = {
    "local-sgd": Algorithm(
        LocalSGD,
        LocalSGDClient,
        "",
        (CROSS_ENTROPY,),
        "local SGD on cross-entropy with plain averaging (Stich 2019)",
        "nothing",
    ),
}
