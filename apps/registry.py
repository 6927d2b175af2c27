"""The table behind "swap strategies with one key": run-config name -> what it starts.

Adding an algorithm is one row here plus its modules: payload, client, strategy.
"""

from __future__ import annotations

from dataclasses import dataclass

from clients.base import PayloadClient
from clients.fedx import FedX1Client, FedX2Client
from clients.local_sgd import LocalSGDClient
from clients.pairwise import LocalPairClient
from payloads.fedx import FedXSettings
from payloads.settings import Settings
from problems.objectives.classification import CROSS_ENTROPY
from problems.objectives.pairwise import LINEAR, PAIRWISE_LOSSES
from strategies.base import PayloadStrategy
from strategies.fedx import FedX1, FedX2
from strategies.local_sgd import LocalSGD
from strategies.pairwise import LocalPair


@dataclass(frozen=True)
class Algorithm:
    """One row of the table.

    Attributes:
        strategy, client: the two halves.
        table: the run-config table of its own settings, or "" for none.
        settings: the model that table is parsed into.
        losses: the losses it can minimise; the client's ``default_loss`` is what ``loss = "auto"`` means.
        description: one line for ``python -m simulations list``.
        sends: what travels beside the model.
    """

    strategy: type[PayloadStrategy]
    client: type[PayloadClient]
    table: str
    settings: type[Settings]
    losses: tuple[str, ...]
    description: str
    sends: str


ALGORITHMS: dict[str, Algorithm] = {
    "fedx1": Algorithm(
        FedX1,
        FedX1Client,
        "fedx",
        FedXSettings,
        tuple(LINEAR),
        "pairwise risk with linear f (AUC) over all sites' pairs (FedX, Algorithm 1)",
        "prediction sets of positives and negatives",
    ),
    "fedx2": Algorithm(
        FedX2,
        FedX2Client,
        "fedx",
        FedXSettings,
        tuple(PAIRWISE_LOSSES),
        "compositional pairwise risk (partial AUC, AUPRC, p-norm push) over all sites' pairs (FedX, Algorithm 2)",
        "prediction sets, inner-function estimates u, momentum",
    ),
    "local-pair": Algorithm(
        LocalPair,
        LocalPairClient,
        "fedx",
        FedXSettings,
        tuple(PAIRWISE_LOSSES),
        "the same pairwise losses on each site's own pairs only (FedX's baseline)",
        "momentum, for non-linear f",
    ),
    "local-sgd": Algorithm(
        LocalSGD,
        LocalSGDClient,
        "",
        Settings,
        (CROSS_ENTROPY,),
        "local SGD on cross-entropy with plain averaging (Stich 2019)",
        "nothing",
    ),
}
