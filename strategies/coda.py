"""The server halves of CoDA and CODASCA; `methods.coda` and `methods.codasca` are the methods."""

from __future__ import annotations

from logging import WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord
from flwr.common import log

from methods.coda import CLASS_SCORES, CODA, ClassScores, best_dual, restarts_dual
from methods.codasca import CODASCA
from payloads.record import PayloadError
from payloads.wire import model_arrays, model_record
from strategies.minimax import MinimaxStrategy


class StagewiseStrategy(MinimaxStrategy):
    """What both share: the exchange from which a new stage's lambda is computed."""

    def inquire(self, server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        """Restart lambda in the first round of every stage but the first."""
        assert self.roster is not None
        plan, training = self.plan(server_round), self.training
        if not restarts_dual(plan):
            return arrays
        places = self.roster.sample(training.fraction_train, training.fewest_asked, training.seed, server_round)
        replies = self.ask(server_round, places, arrays, None, CLASS_SCORES)
        sizes = self.roster.sample_weights[[reply.place for reply in replies]]
        dual = best_dual([reply.payload for reply in replies], sizes, plan)
        if dual is None:
            log(WARNING, "round %d: lambda is not restarted: only one class among who answered", server_round)
            return arrays
        point, *buffers = model_arrays(arrays)
        return model_record([np.append(point[:-1], point.dtype.type(dual)), *buffers])

    def check_payload(self, payload: Any) -> None:
        if isinstance(payload, ClassScores) and (payload.counts < 0).any():
            raise PayloadError(f"ClassScores.counts: got {payload.counts.tolist()}, expected numbers >= 0")


class Coda(StagewiseStrategy):
    """CoDA: the plain mean of the points of all clients. One that fails is not averaged."""

    method = CODA
    needs_all_clients = "averages all clients in every round; the fedsgda strategies are made for a few clients a round"


class Codasca(StagewiseStrategy):
    """CODASCA: CoDA with SCAFFOLD's control variates; a fraction of the clients may do."""

    method = CODASCA
    joint_states = True
    unread: ClassVar[tuple[str, ...]] = ()
