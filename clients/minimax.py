"""The client halves of the minimax methods, each of which is a module of `methods`."""

from __future__ import annotations

from typing import Any

from flwr.common import Scalar

from clients.base import MethodClient
from methods.coda import CODA
from methods.codasca import CODASCA
from methods.fedsgda import MINIBATCH, STORM, make_method
from methods.scgdam import LOCAL_SCGDAM
from methods.sgdam import LOCAL_SGDAM
from payloads.record import FloatArray
from problems.minimax import Oracle


class MinimaxClient(MethodClient[Oracle]):
    """Base of the minimax clients: ``model`` is the oracle of the site's f_i, whose point is z = (x, y)."""

    def received(self, config: dict[str, Scalar]) -> Any:
        """The record sent beside the model, or an empty one."""
        assert self.down is not None
        return self.inbox or self.down()

    def evaluate(self, parameters: list[FloatArray], config: dict[str, Scalar]) -> tuple[float, int, dict[str, Scalar]]:
        """The value of f_i over all of the site's samples, with the site's own prior and weight 1."""
        self.model.load(parameters)
        return self.model.weigh(self.site.class_counts[1] / len(self.site)).value(), len(self.site), {}


class CodaClient(MinimaxClient):
    """CoDA: K proximal steps in x, ascent in y."""

    method = CODA


class CodascaClient(MinimaxClient):
    """CODASCA: K steps whose gradients are corrected by c - c_k; the client keeps c_k, zeros at first."""

    method = CODASCA


class FedSGDAClient(MinimaxClient):
    """The client for all estimators of FedSGDA; they differ in the decay that ``fedsgda.rho = "auto"`` means."""

    method = make_method(MINIBATCH)


class FedSGDAStormClient(FedSGDAClient):
    """The client of FedSGDA-STORM, whose steps decay by default."""

    method = make_method(STORM)


class LocalSCGDAMClient(MinimaxClient):
    """K steps of x, y, h, u and v; its oracle is a `CompositionalOracle`."""

    method = LOCAL_SCGDAM


class LocalSGDAMClient(MinimaxClient):
    """K steps along the momentum (u, v)."""

    method = LOCAL_SGDAM
