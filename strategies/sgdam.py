"""LocalSGDAM's server half (Sharma, Panda, Joshi, Varshney, "Federated Minimax Optimization: Improved Convergence
Analyses and Algorithms", ICML 2022): the plain means of the points and of the momenta."""

from __future__ import annotations

from typing import ClassVar

from payloads.record import FloatArray, Payload
from payloads.settings import Settings, TrainingSettings
from payloads.sgdam import SaddleMomentum, SGDAMDown, SGDAMSettings
from strategies.minimax import MinimaxStrategy
from strategies.replies import Reply, mean, mean_model


class LocalSGDAM(MinimaxStrategy):
    """Averages the points and (u, v) of the round's clients."""

    own_steps: ClassVar[tuple[str, ...]] = ("sgdam.eta",)
    unread: ClassVar[tuple[str, ...]] = ("learning_rate", "server_learning_rate")
    down_type = SGDAMDown
    up_type = SaddleMomentum
    state_type = SaddleMomentum

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings or SGDAMSettings())
        # (d,) the participants' mean (u, v), from round 1 on
        self.momentum: FloatArray | None = None

    def down(self, server_round: int) -> SGDAMDown:
        return SGDAMDown(population=self.population, momentum=self.momentum)

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        self.momentum = mean([reply.payload.momentum for reply in replies])
        return mean_model(replies), {}

    def snapshot(self) -> SaddleMomentum | None:
        return None if self.momentum is None else SaddleMomentum(momentum=self.momentum)

    def restore(self, state: Payload) -> None:
        assert isinstance(state, SaddleMomentum)
        self.momentum = state.momentum
