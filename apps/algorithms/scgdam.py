"""LocalSCGDAM: the rows of the registry."""

from __future__ import annotations

from apps.algorithms import Algorithm
from clients.scgdam import LocalSCGDAMClient
from problems.minimax import COMPOSITIONAL_AUC
from strategies.scgdam import LocalSCGDAM

ROWS = {
    "local-scgdam": Algorithm(
        LocalSCGDAM,
        LocalSCGDAMClient,
        "scgdam",
        (COMPOSITIONAL_AUC,),
        "minimax AUC one cross-entropy step from the model, with momentum (LocalSCGDAM, Zhang et al. 2023)",
        "the inner estimate, momentum",
    ),
}
