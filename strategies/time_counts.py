"""The exchange in which sites count their held-out rows by interval of time, class and score."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from payloads.record import FloatArray
from payloads.wire import model_record
from strategies.method import MethodStrategy
from strategies.rounds.errors import SetupError


def count_times(
    strategy: MethodStrategy, server_round: int, arrays: Sequence[FloatArray], phase: str
) -> Int64[np.ndarray, "intervals 2 bins"]:
    """Ask the sites for counts of their held-out rows under a model, and add them up.

    Args:
        strategy: The run's strategy.
        server_round: The round.
        arrays: The model.
        phase: An exchange of `payloads.held_out.OF_TIMES`.

    Raises:
        StrategyError: Fewer than ``min-train-nodes`` sites answer.
        SetupError: The sites that answer have no event among these rows.
    """
    strategy.sets = strategy.plan(server_round).num_times
    try:
        clients, record = list(range(len(strategy.roster))), model_record(list(arrays))
        replies = strategy.ask(server_round, clients, record, None, phase)
    finally:
        strategy.sets = 0
    cells: np.ndarray = np.stack([reply.payload.cells for reply in replies]).sum(axis=0, dtype=np.int64)
    if not cells[:, 1].any():
        key, hint = (
            f"round {server_round}: the sites' held-out rows",
            "raise test-fraction, or set data-dir to a test file",
        )
        raise SetupError(key, got="no event", allowed="at least one event", hint=hint)
    return cells
