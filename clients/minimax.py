"""What the client halves of the minimax methods share: an oracle as their model."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from flwr.common import Scalar

from clients.base import PayloadClient
from payloads.record import FloatArray, IntArray
from problems.minimax import AUC_MINIMAX, Oracle


class MinimaxClient(PayloadClient[Oracle]):
    """Base of the minimax clients: ``model`` is the oracle of the site's f_i, whose point is z = (x, y)."""

    default_loss: ClassVar[str] = AUC_MINIMAX

    def inform(self, class_counts: IntArray | None) -> None:
        """Hand on what the server said about all sites' classes."""
        if class_counts is not None:
            self.model.inform(class_counts)

    def evaluate(self, parameters: list[FloatArray], config: dict[str, Scalar]) -> tuple[float, int, dict[str, Scalar]]:
        """f_i at a point, over all of the site's samples, with the site's own prior."""
        self.model.load(parameters)
        self.model.inform(np.array(self.site.class_counts))
        return self.model.value(), len(self.site), {}
