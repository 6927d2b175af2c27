"""What the server halves of the minimax methods share, and those of LocalSGDAM, `methods.sgdam`, and of LocalSCGDAM,
`methods.scgdam`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from methods.scgdam import LOCAL_SCGDAM, CompositionalState, CompositionalUp, SCGDAMSettings
from methods.sgdam import LOCAL_SGDAM
from payloads.record import FloatArray, PayloadError
from payloads.settings import Settings, TrainingSettings
from problems.minimax import AUC_MINIMAX, SADDLES
from strategies.method import MethodStrategy
from strategies.rounds.handshake import Roster

INNER = "inner"


class MinimaxStrategy(MethodStrategy):
    """Base of the minimax strategies: the model that travels is the flat point z = (x, y), averaged plainly: that sites
    count by their samples is in their f_i. Where only some sites take part, their mean is an unbiased estimate of f."""

    weighted_gradients = True
    unread: ClassVar[tuple[str, ...]] = ("server_learning_rate",)

    default_loss = AUC_MINIMAX

    def meet(self, roster: Roster) -> None:
        super().meet(roster)
        if self.loss in SADDLES:
            self.check_classes(roster, "AUC")


class LocalSGDAM(MinimaxStrategy):
    """Averages the points and (u, v) of the round's clients."""

    method = LOCAL_SGDAM
    own_steps: ClassVar[tuple[str, ...]] = ("sgdam.eta",)
    unread: ClassVar[tuple[str, ...]] = ("learning_rate", "server_learning_rate")


class LocalSCGDAM(MinimaxStrategy):
    """Averages x, y, h, u and v of the round's clients; shows the network at h beside that at w."""

    method = LOCAL_SCGDAM
    own_steps: ClassVar[tuple[str, ...]] = ("scgdam.eta",)
    unread: ClassVar[tuple[str, ...]] = ("learning_rate", "server_learning_rate")
    state: CompositionalState | None
    settings: SCGDAMSettings

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        self.headline = INNER if self.settings.headline == INNER else ""

    def limits(self, place: int) -> Mapping[str, int]:
        point, *buffers = self.model
        return {"p": len(point) - 1, "b": len(buffers[0]) if buffers else 0}

    def check_payload(self, payload: Any) -> None:
        assert isinstance(payload, CompositionalUp)
        point, *buffers = self.model
        expected = {"inner": len(point) - 1, "inner_buffers": len(buffers[0]) if buffers else None}
        for name, length in expected.items():
            value: FloatArray | None = getattr(payload, name)
            if (None if value is None else len(value)) != length:
                got = "nothing" if value is None else f"{len(value)} values"
                wanted = "none" if length is None else length
                raise PayloadError(f"CompositionalUp.{name}: got {got}, expected {wanted}")

    def views(self) -> dict[str, list[FloatArray]]:
        if self.state is None:
            return {}
        buffers = self.state.inner_buffers
        return {INNER: [self.state.inner] if buffers is None else [self.state.inner, buffers]}
