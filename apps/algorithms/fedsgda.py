"""FedSGDA: the rows of the registry."""

from __future__ import annotations

from apps.algorithms import Algorithm
from clients.fedsgda import FedSGDAClient, FedSGDAStormClient
from problems.minimax import AUC_MINIMAX
from strategies.fedsgda import FedSGDAMB, FedSGDASPIDER, FedSGDASTORM, FedSGDASVRG

ROWS = {
    "fedsgda-mb": Algorithm(
        FedSGDAMB,
        FedSGDAClient,
        "fedsgda",
        (AUC_MINIMAX,),
        "nonconvex-PL minimax, a few clients a round, minibatch estimator (FedSGDA, Frameworks 1-3)",
        "a local gradient; the global estimate",
    ),
    "fedsgda-storm": Algorithm(
        FedSGDASTORM,
        FedSGDAStormClient,
        "fedsgda",
        (AUC_MINIMAX,),
        "the same with the STORM estimator, which needs no large batch",
        "a difference of local gradients; the point before, the global estimate",
    ),
    "fedsgda-spider": Algorithm(
        FedSGDASPIDER,
        FedSGDAClient,
        "fedsgda",
        (AUC_MINIMAX,),
        "the same with the SPIDER estimator and a periodic large batch of clients (Appendix B)",
        "a difference of local gradients; the point before, the global estimate",
    ),
    "fedsgda-svrg": Algorithm(
        FedSGDASVRG,
        FedSGDAClient,
        "fedsgda",
        (AUC_MINIMAX,),
        "the same with the SVRG estimator and a periodic large batch of clients (Remark 1)",
        "a difference of local gradients; the last snapshot, the global estimate",
    ),
}
