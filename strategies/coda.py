"""The server halves of CoDA (Guo et al., ICML 2020) and CODASCA (Yuan et al., ICML 2021); `payloads.coda` has the full
titles and the symbols.

Both minimise stage by stage. A stage pulls x towards a reference, the mean of the stage before, while training goes on
from the last point; it divides the learning rate, and starts from the lambda that is best for the scores of its first
point: E[s|-] - E[s|+] (for `AUC_MINIMAX`; other problems keep their dual block).
"""

from __future__ import annotations

from dataclasses import replace
from logging import WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord
from flwr.common import log
from flwr.serverapp import Grid

from payloads.coda import CLASS_SCORES, ClassScores, CodaDown, CodascaDown, CodaSettings, StageState, stage_of
from payloads.record import FloatArray, Payload, PayloadError
from payloads.settings import Settings, TrainingSettings
from payloads.wire import model_arrays, model_record
from problems.minimax import AUC_MINIMAX
from problems.randomness import Purpose, stream
from strategies.minimax import MinimaxStrategy
from strategies.replies import Reply, mean_model
from strategies.scaffold import ControlledStrategy


class StagewiseStrategy(MinimaxStrategy):
    """What both share: the stages' references and the restart of lambda."""

    state_type = StageState
    state: StageState
    settings_type = CodaSettings
    settings: CodaSettings
    phases: ClassVar[dict[str, type[Payload]]] = {CLASS_SCORES: ClassScores}

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        self.state = StageState()

    def prologue(self, arrays: ArrayRecord, grid: Grid) -> None:
        """The first stage's reference: the initial model, or noise."""
        spread, start = self.settings.reference_noise, model_arrays(arrays)[0].astype(np.float64)
        if self.settings.proximal:
            noise = stream(self.training.seed, Purpose.REFERENCE_NOISE)
            self.state = StageState(reference=noise.normal(0, spread, len(start)) if spread else start)

    def inquire(self, server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        """Restart lambda in the first round of every stage but the first."""
        stage = stage_of(server_round, self.settings)
        starts = stage.index > 0 and server_round == stage.first
        if not (starts and self.settings.restart_dual and self.loss == AUC_MINIMAX):
            return arrays
        dual = self.best_dual(server_round, arrays)
        if dual is None:
            return arrays
        point, *buffers = model_arrays(arrays)
        return model_record([np.append(point[:-1], point.dtype.type(dual)), *buffers])

    def best_dual(self, server_round: int, arrays: ArrayRecord) -> float | None:
        """E[s|-] - E[s|+] over the round's clients, which count as in f; None where they lack a class."""
        assert self.roster is not None
        training = self.training
        places = self.roster.sample(training.fraction_train, training.fewest_asked, training.seed, server_round)
        replies = self.ask(server_round, places, arrays, None, CLASS_SCORES)
        # samples count alike or, where the sites do, the less the more their site has
        sizes = self.roster.sample_weights[[reply.place for reply in replies]]
        weights = np.ones(len(replies)) if self.by_examples else 1 / sizes
        pairs = list(zip(weights, (reply.payload for reply in replies), strict=True))
        sums = np.sum([weight * payload.sums.astype(np.float64) for weight, payload in pairs], axis=0)
        counts = np.sum([weight * payload.counts for weight, payload in pairs], axis=0)
        if not counts.all():
            log(WARNING, "round %d: lambda is not restarted: only one class among who answered", server_round)
            return None
        negative, positive = sums / counts
        return float(negative - positive)

    def check_payload(self, payload: Any) -> None:
        if isinstance(payload, ClassScores) and (payload.counts < 0).any():
            raise PayloadError(f"ClassScores.counts: got {payload.counts.tolist()}, expected numbers >= 0")

    def told_reference(self) -> FloatArray | None:
        """(d,) the reference as the clients need it, or None where the model they get is the same."""
        if self.state.reference is None:
            return None
        reference = self.state.reference.astype(np.dtype(self.training.dtype))
        # nothing pulls at y; that lambda is y and comes last is what is known of it here
        pulled = slice(-1) if self.loss == AUC_MINIMAX else slice(None)
        return None if np.array_equal(reference[pulled], self._model[0][pulled]) else reference

    def follow(self, server_round: int, point: FloatArray) -> None:
        """Add a round's point (d,) to the stage's sum; at the stage's end their mean is the next reference."""
        if not (self.settings.proximal and self.settings.stage_rounds):
            return
        before = self.state.total
        total = point.astype(np.float64) if before is None else before + point
        stage = stage_of(server_round, self.settings)
        if stage_of(server_round + 1, self.settings) == stage:
            self.state = replace(self.state, total=total)
        else:
            self.state = replace(self.state, reference=total / (server_round + 1 - stage.first), total=None)


class Coda(StagewiseStrategy):
    """CoDA: the plain mean of the points of all clients. One that fails is not averaged."""

    needs_all_clients = "averages all clients in every round; the fedsgda strategies are made for a few clients a round"
    down_type = CodaDown

    def down(self, server_round: int) -> CodaDown:
        return CodaDown(population=self.population, reference=self.told_reference())

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        arrays = mean_model(replies)
        self.follow(server_round, arrays[0])
        return arrays, {}


class Codasca(ControlledStrategy, StagewiseStrategy):
    """CODASCA: CoDA with SCAFFOLD's control variates; a fraction of the clients may do."""

    unread: ClassVar[tuple[str, ...]] = ()
    down_type = CodascaDown

    def down(self, server_round: int) -> CodascaDown:
        reference, control = self.told_reference(), self.told(self.state.control)
        return CodascaDown(population=self.population, reference=reference, control=control)

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        arrays, control = self.averaged(replies, self.state.control)
        self.state = replace(self.state, control=control)
        self.follow(server_round, arrays[0])
        return arrays, {}
