"""A network with the three scalars of the AUC saddle function beside it, so that all of it is one flat vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

SCALARS = 3


class _Scalars(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(()))
        self.b = nn.Parameter(torch.zeros(()))
        self.dual = nn.Parameter(torch.zeros(()))


class SaddleNetwork(nn.Module):
    """A network's scores; ``saddle.a``, ``saddle.b`` and ``saddle.dual`` come last in the flat vector, from zero."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.saddle = _Scalars()

    def forward(self, features: Tensor) -> Tensor:
        scores: Tensor = self.network(features)
        return scores


def network_names(named: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a `SaddleNetwork`'s state under the network's own names; the scalars keep ``saddle.``."""
    return {name.removeprefix("network."): value for name, value in named.items()}
