"""A network plus the three scalars of the AUC saddle function, so that one flat vector holds both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

SCALARS = 3


class SaddleNetwork(nn.Module):
    """A network, whose flat vector ends with ``saddle.a``, ``saddle.b`` and ``saddle.dual``, zero at first."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.saddle = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in ("a", "b", "dual")})

    def forward(self, features: Tensor) -> Tensor:
        scores: Tensor = self.network(features)
        return scores


def network_names(named: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a `SaddleNetwork`'s state under the network's own names; the scalars keep ``saddle.``."""
    return {name.removeprefix("network."): value for name, value in named.items()}
