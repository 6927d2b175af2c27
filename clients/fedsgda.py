"""FedSGDA's client half (Xie et al., "A Federated Learning Framework for Nonconvex-PL Minimax Problems",
Frameworks 2 and 3)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from flwr.common import Scalar
from torch import Tensor

from clients.minimax import MinimaxClient
from payloads.fedsgda import GRADIENTS, STORM_RHO, FedSGDADown, FedSGDASettings, LocalGradient
from payloads.record import FloatArray, Payload
from payloads.wire import PHASE
from problems.minimax import Oracle
from problems.minimax.oracle import direction


class FedSGDAClient(MinimaxClient):
    """What all estimators ask of a client; they differ in the decay that ``fedsgda.rho = "auto"`` means.

    ``learning-rate`` has no effect: the steps in x and y have constants of their own.
    """

    down = FedSGDADown
    phases: ClassVar[dict[str, type[Payload]]] = {GRADIENTS: LocalGradient}
    rho: ClassVar[float] = 0.0

    settings_type = FedSGDASettings
    settings: FedSGDASettings

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        server_round = self.begin(parameters, config)
        inbox = self.inbox or FedSGDADown()
        self.inform(inbox.population)
        if config.get(PHASE) == GRADIENTS:
            self.outbox = LocalGradient(gradient=self.collect(inbox).cpu().numpy())
            return [], len(self.site), {}
        if inbox.estimate is None:
            raise ValueError("FedSGDA's update phase needs the server's estimate")
        self.update(server_round, self.vector(inbox.estimate))
        return self.fitted()

    def collect(self, inbox: FedSGDADown) -> Tensor:
        """(d,) Framework 2: the gradient of f_i at z, minus weight times that at the reference point."""
        oracle = self.model
        if inbox.reference is None or inbox.weight is None:
            return oracle.gradient(None).clone()  # the oracle's own is overwritten by the next
        with _replayed(oracle):
            other = oracle.gradient_at(self.vector(inbox.reference), None)
        return oracle.gradient(None) - float(inbox.weight[0]) * other

    def update(self, server_round: int, estimate: Tensor) -> None:
        """Framework 3: K steps along local(z_k) - local(z) + estimate, the same mini-batch in both gradients."""
        oracle, fedsgda = self.model, self.settings
        shrink = server_round ** fedsgda.decay(self.rho)  # (t + 1)^rho
        signs = direction(oracle, fedsgda.primal_step / shrink, fedsgda.dual_step / shrink)
        sampler, start = self.sampler(), oracle.parameters.clone()
        batches = [sampler.batch(iteration) for iteration in self.local_iterations(server_round)]
        if not oracle.has_buffers:
            # At the first step both gradients are one, so neither is needed.
            oracle.parameters.addcmul_(signs, estimate)
            batches = batches[1:]
        others = oracle.gradients_at(start, batches)
        for batch in batches:
            with _replayed(oracle):
                other = next(others)
            oracle.parameters.addcmul_(signs, oracle.gradient(batch) - other + estimate)


class FedSGDAStormClient(FedSGDAClient):
    """The client of FedSGDA-STORM, whose steps decay by default."""

    rho = STORM_RHO


def _replayed(oracle: Oracle) -> AbstractContextManager[None]:
    """What is drawn after this (dropout) repeats what was drawn within."""
    if not oracle.stochastic:
        return nullcontext()
    return torch.random.fork_rng(devices=[oracle.device] if oracle.device.type == "cuda" else [])
