"""LocalSCGDAM's server half (Zhang, Zhang, Yang, Souvenir, Gao, "Federated Compositional Deep AUC Maximization",
NeurIPS 2023, Algorithm 1, line 6): the plain means of x, y, h, u and v, and of both networks' statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from payloads.record import FloatArray, PayloadError
from payloads.scgdam import CompositionalState, CompositionalUp, SCGDAMDown, SCGDAMSettings
from payloads.settings import Settings, TrainingSettings
from problems.minimax import AUC_MINIMAX
from strategies.minimax import MinimaxStrategy
from strategies.replies import Reply, mean, mean_model

INNER = "inner"


class LocalSCGDAM(MinimaxStrategy):
    """Averages x, y, h, u and v of the round's clients; shows the network at h beside that at w."""

    own_steps: ClassVar[tuple[str, ...]] = ("scgdam.eta",)
    unread: ClassVar[tuple[str, ...]] = ("learning_rate", "server_learning_rate")
    down_type = SCGDAMDown
    up_type = CompositionalUp
    # the participants' means
    state_type = CompositionalState
    state: CompositionalState | None
    settings_type = SCGDAMSettings
    settings: SCGDAMSettings

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        self.loss = AUC_MINIMAX  # f, whatever its argument: it needs the prior
        self.headline = INNER if self.settings.headline == INNER else ""

    def down(self, server_round: int) -> SCGDAMDown:
        if self.state is None:
            return SCGDAMDown(population=self.population)
        return SCGDAMDown(
            population=self.population,
            inner=self.state.inner[:-1],
            momentum=self.state.momentum,
            inner_buffers=self.state.inner_buffers,
        )

    def limits(self, place: int) -> Mapping[str, int]:
        point, *buffers = self._model
        return {"p": len(point) - 1, "b": len(buffers[0]) if buffers else 0}

    def check_payload(self, payload: Any) -> None:
        assert isinstance(payload, CompositionalUp)
        point, *buffers = self._model
        expected = {"inner": len(point) - 1, "inner_buffers": len(buffers[0]) if buffers else None}
        for name, length in expected.items():
            value: FloatArray | None = getattr(payload, name)
            if (None if value is None else len(value)) != length:
                got = "nothing" if value is None else f"{len(value)} values"
                wanted = "none" if length is None else length
                raise PayloadError(f"CompositionalUp.{name}: got {got}, expected {wanted}")

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        arrays, ups = mean_model(replies), [reply.payload for reply in replies]
        self.state = CompositionalState(
            inner=np.append(mean([up.inner for up in ups]), arrays[0][-1:]),
            momentum=mean([up.momentum for up in ups]),
            inner_buffers=None if ups[0].inner_buffers is None else mean([up.inner_buffers for up in ups]),
        )
        return arrays, {}

    def views(self) -> dict[str, list[FloatArray]]:
        if self.state is None:
            return {}
        buffers = self.state.inner_buffers
        return {INNER: [self.state.inner] if buffers is None else [self.state.inner, buffers]}
