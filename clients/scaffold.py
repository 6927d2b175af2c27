"""SCAFFOLD's client half (Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning", ICML 2020, Option II), and the handling of control variates that CODASCA's client has too."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from flwr.common import Scalar
from torch import Tensor

from clients.base import PayloadClient
from clients.local_sgd import SampleLossClient
from payloads.record import FloatArray
from payloads.scaffold import ControlChange, ControlVariate
from problems.models import NUMPY_DTYPES


def recall_control(client: PayloadClient[Any], received: FloatArray | None) -> tuple[FloatArray, Tensor]:
    """(d,) c_i, zeros before the client's first round, and the correction c - c_i."""
    point = client.model.parameters
    own: FloatArray
    if client.state is None:
        own = np.zeros(len(point), NUMPY_DTYPES[point.dtype])
    else:
        own = client.state.check({"d": len(point)}, finite=False).control
    correction = np.negative(own) if received is None else np.subtract(received, own)
    return own, torch.from_numpy(correction).to(point)


def keep_control(client: PayloadClient[Any], own: FloatArray, control: Tensor) -> None:
    """Keep the new c_i as the client's state and send what it is more than the old one."""
    kept = control.cpu().numpy()
    client.outbox = ControlChange(change=kept - own)
    client.state = ControlVariate(control=kept)


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
        return self.fitted()
