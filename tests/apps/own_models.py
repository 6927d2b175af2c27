"""User-defined models; `failing` and `Replacing` cannot be used."""

import torch
from torch import Tensor, nn


def failing(shape: tuple[int, ...]) -> nn.Module:
    raise KeyError("a factory's own fault")


class Replacing(nn.Module):
    """A module with a buffer that every training step replaces."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], 1)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, features: Tensor) -> Tensor:
        if self.training:
            self.seen = self.seen + 1
        return self.layer(features).squeeze(1)  # type: ignore[no-any-return]


class Normed(nn.Module):
    """A network with buffers, and with a part that has the name of a saddle network's part."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(shape[0], 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, features: Tensor) -> Tensor:
        return self.network(features).squeeze(1)  # type: ignore[no-any-return]
