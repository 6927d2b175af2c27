"""SCAFFOLD's client half (Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning", ICML 2020, Option II), and the handling of control variates that CODASCA's client has too."""

from __future__ import annotations

from typing import Any

import torch
from flwr.common import Scalar
from torch import Tensor

from clients.base import PayloadClient
from clients.local_sgd import SampleLossClient
from payloads.coda import ControlChange, ControlVariate
from payloads.record import FloatArray


def recall_control(client: PayloadClient[Any], received: FloatArray | None) -> tuple[Tensor, Tensor]:
    """(d,) c_i, zeros before the client's first round, and the correction c - c_i."""
    kept = None if client.state is None else client.state.check({"d": len(client.model.parameters)}).control
    own = client.vector_or_zeros(kept)
    return own, client.vector_or_zeros(received) - own


def keep_control(client: PayloadClient[Any], own: Tensor, control: Tensor) -> None:
    """Keep the new c_i as the client's state and send what it is more than the old one."""
    client.outbox = ControlChange(change=(control - own).cpu().numpy())
    client.state = ControlVariate(control=control.cpu().numpy())


class ScaffoldClient(SampleLossClient):
    """K steps whose gradients are corrected by c - c_i; the client keeps c_i, zeros at first.

    The new c_i, c_i - c + (w_0 - w_K) / (sum of the step sizes), is computed as what that equals: the mean of the
    uncorrected gradients, weighted by their step sizes. A difference of two close points has few digits left.
    """

    down = ControlVariate
    up = ControlChange
    memory = ControlVariate

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Scalar]
    ) -> tuple[list[FloatArray], int, dict[str, Scalar]]:
        server_round = self.begin(parameters, config)
        point = self.model.parameters
        own, correction = recall_control(self, None if self.inbox is None else self.inbox.control)
        control, length = torch.zeros_like(point), 0.0
        for step, batch in self.steps(server_round):
            gradient = self.gradient(batch)
            length += step
            control.lerp_(gradient, step / length if length else 1.0)
            # w <- w - eta (g - c_i + c)
            point.add_(gradient.add_(correction), alpha=-step)
        keep_control(self, own, control)
        return self.model.arrays(), len(self.site), {}
