"""What the client halves of the minimax methods share: an oracle as their model."""

from __future__ import annotations

from typing import Any

from flwr.common import Scalar

from clients.base import MethodClient
from payloads.record import FloatArray
from problems.minimax import Oracle


class MinimaxClient(MethodClient[Oracle]):
    """Base of the minimax clients: ``model`` is the oracle of the site's f_i, whose point is z = (x, y)."""

    def received(self, config: dict[str, Scalar]) -> Any:
        """What came down beside the model; an empty record stands for nothing."""
        assert self.down is not None
        return self.inbox or self.down()

    def evaluate(self, parameters: list[FloatArray], config: dict[str, Scalar]) -> tuple[float, int, dict[str, Scalar]]:
        """f_i at a point, over all of the site's samples, with the site's own prior and unweighted."""
        self.model.load(parameters)
        return self.model.weigh(self.site.class_counts[1] / len(self.site)).value(), len(self.site), {}
