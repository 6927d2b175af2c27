"""LocalSGDAM's server half (Sharma, Panda, Joshi, Varshney, "Federated Minimax Optimization: Improved Convergence
Analyses and Algorithms", ICML 2022): the plain means of the points and of the momenta."""

from __future__ import annotations

from typing import ClassVar

from payloads.record import FloatArray
from payloads.sgdam import SaddleMomentum, SGDAMDown, SGDAMSettings
from strategies.minimax import MinimaxStrategy
from strategies.replies import Reply, mean, mean_model


class LocalSGDAM(MinimaxStrategy):
    """Averages the points and (u, v) of the round's clients."""

    own_steps: ClassVar[tuple[str, ...]] = ("sgdam.eta",)
    unread: ClassVar[tuple[str, ...]] = ("learning_rate", "server_learning_rate")
    down_type = SGDAMDown
    up_type = SaddleMomentum
    # the participants' mean (u, v)
    state_type = SaddleMomentum
    state: SaddleMomentum | None
    settings_type = SGDAMSettings

    def down(self, server_round: int) -> SGDAMDown:
        return SGDAMDown(population=self.population, momentum=None if self.state is None else self.state.momentum)

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        self.state = SaddleMomentum(momentum=mean([reply.payload.momentum for reply in replies]))
        return mean_model(replies), {}
