"""LocalSGDAM: the rows of the registry."""

from __future__ import annotations

from apps.algorithms import Algorithm
from clients.sgdam import LocalSGDAMClient
from problems.minimax import AUC_MINIMAX
from strategies.sgdam import LocalSGDAM

ROWS = {
    "local-sgdam": Algorithm(
        LocalSGDAM,
        LocalSGDAMClient,
        "sgdam",
        (AUC_MINIMAX,),
        "local descent ascent with momentum and plain averaging (LocalSGDAM, Sharma et al. 2022)",
        "momentum",
    ),
}
