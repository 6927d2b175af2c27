"""The client halves of FedSGDA; `methods.fedsgda` is the method."""

from __future__ import annotations

from clients.minimax import MinimaxClient
from methods.fedsgda import MINIBATCH, STORM, make_method


class FedSGDAClient(MinimaxClient):
    """What all estimators ask of a client; they differ in the decay that ``fedsgda.rho = "auto"`` means."""

    method = make_method(MINIBATCH)


class FedSGDAStormClient(FedSGDAClient):
    """The client of FedSGDA-STORM, whose steps decay by default."""

    method = make_method(STORM)
