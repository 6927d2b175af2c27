"""Models of a user's own that cannot be used."""

import torch
from torch import Tensor, nn


def failing(shape: tuple[int, ...]) -> nn.Module:
    raise KeyError("a factory's own fault")


class Replacing(nn.Module):
    """A buffer that every training step replaces."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], 1)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, features: Tensor) -> Tensor:
        if self.training:
            self.seen = self.seen + 1
        return self.layer(features).squeeze(1)  # type: ignore[no-any-return]
