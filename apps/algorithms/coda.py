"""CoDA and CODASCA: the rows of the registry."""

from __future__ import annotations

from apps.algorithms import Algorithm
from clients.coda import CodaClient, CodascaClient
from problems.minimax import AUC_MINIMAX
from strategies.coda import Coda, Codasca

ROWS = {
    "coda": Algorithm(
        Coda,
        CodaClient,
        "coda",
        (AUC_MINIMAX,),
        "minimax AUC by local descent ascent with all clients, stage by stage (CoDA, Guo et al. 2020)",
        "the stage's reference point; class sums of scores between stages",
    ),
    "codasca": Algorithm(
        Codasca,
        CodascaClient,
        "coda",
        (AUC_MINIMAX,),
        "the same with control variates against unequal sites (CODASCA, Yuan et al. 2021)",
        "control variates; the stage's reference point; class sums of scores between stages",
    ),
}
