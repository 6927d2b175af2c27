"""The server half of LocalSGDAM; `methods.sgdam` is the method."""

from __future__ import annotations

from typing import ClassVar

from methods.sgdam import LOCAL_SGDAM
from strategies.minimax import MinimaxStrategy


class LocalSGDAM(MinimaxStrategy):
    """Averages the points and (u, v) of the round's clients."""

    method = LOCAL_SGDAM
    own_steps: ClassVar[tuple[str, ...]] = ("sgdam.eta",)
    unread: ClassVar[tuple[str, ...]] = ("learning_rate", "server_learning_rate")
