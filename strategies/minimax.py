"""The server halves of the minimax methods, each of which is a module of `methods`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from methods.coda import CODA, ClassScores, CodaSettings
from methods.codasca import CODASCA
from methods.fedsgda import (
    MINIBATCH,
    SPIDER,
    STORM,
    SVRG,
    Estimator,
    EstimatorState,
    FedSGDASettings,
    make_method,
)
from methods.scgdam import LOCAL_SCGDAM, CompositionalState, CompositionalUp, SCGDAMSettings
from methods.sgdam import LOCAL_SGDAM
from payloads.record import FloatArray, Payload, PayloadError
from payloads.settings import Settings, TrainingSettings
from problems.minimax import AUC_MINIMAX, SADDLES
from strategies.method import MethodStrategy, strategy_of
from strategies.rounds.errors import SetupError
from strategies.rounds.handshake import Roster

INNER = "inner"


class MinimaxStrategy(MethodStrategy):
    """Base of the minimax strategies: the model that travels is the flat point z = (x, y).

    The mean of the points is plain, since each f_i already carries its site's weight by samples. If only some sites
    take part, the mean of their f_i is an unbiased estimate of f.
    """

    weighted_gradients = True
    unread: ClassVar[tuple[str, ...]] = ("server_learning_rate",)
    default_step = 0.1  # larger ones let the saddle point of a linear model with many features swing
    default_loss = AUC_MINIMAX

    def meet(self, roster: Roster) -> None:
        super().meet(roster)
        if self.loss in SADDLES:
            self.check_classes(roster, "AUC")


class StagewiseStrategy(MinimaxStrategy):
    """Base of CoDA and CODASCA: the exchange from which a new stage's lambda is computed."""

    sums_instead = "set coda.stage-rounds to 0, or coda.restart-dual to false"

    @classmethod
    def phases_of(cls, settings: Settings) -> dict[str, type[Payload]]:
        assert isinstance(settings, CodaSettings)
        return cls.phases if settings.stage_rounds and settings.restart_dual else {}

    def check_payload(self, payload: Any) -> None:
        if isinstance(payload, ClassScores) and (payload.counts < 0).any():
            raise PayloadError(f"ClassScores.counts: got {payload.counts.tolist()}, expected numbers >= 0")


class Coda(StagewiseStrategy):
    """CoDA: asks all clients and takes the plain mean of their points, without those of clients that fail."""

    method = CODA
    needs_all_clients = "averages all clients in every round; the fedsgda strategies are made for a few clients a round"


# CoDA with SCAFFOLD's control variates; a round may ask a fraction of the clients
Codasca = strategy_of(CODASCA, "Codasca", StagewiseStrategy, joint_states=True, unread=())


class FedSGDA(MinimaxStrategy):
    """Framework 1 with any estimator; the subclasses name theirs."""

    estimator: ClassVar[Estimator]
    state: EstimatorState | None
    settings: FedSGDASettings
    own_steps = ("fedsgda.primal-step", "fedsgda.dual-step")
    unread = ("learning_rate", "lr_decay", "lr_decay_every", "lr_decay_at", "server_learning_rate")

    def meet(self, roster: Roster) -> None:
        super().meet(roster)
        large = self.settings.large_batch
        if self.estimator.periodic and isinstance(large, int) and large > len(roster):
            allowed = f"at most as many as clients, {len(roster)}"
            raise SetupError("fedsgda.large-batch", got=large, allowed=allowed, hint="lower it, or take more clients")


FedSGDAMB = strategy_of(make_method(MINIBATCH), "FedSGDAMB", FedSGDA, estimator=MINIBATCH)
FedSGDASTORM = strategy_of(make_method(STORM), "FedSGDASTORM", FedSGDA, estimator=STORM)
FedSGDASPIDER = strategy_of(make_method(SPIDER), "FedSGDASPIDER", FedSGDA, estimator=SPIDER)
FedSGDASVRG = strategy_of(make_method(SVRG), "FedSGDASVRG", FedSGDA, estimator=SVRG)


class LocalSGDAM(MinimaxStrategy):
    """Averages the points and (u, v) of the round's clients."""

    method = LOCAL_SGDAM
    own_steps = ("sgdam.eta",)
    unread = ("learning_rate", "server_learning_rate")


class LocalSCGDAM(MinimaxStrategy):
    """Averages x, y, h, u and v of the round's clients; the network at h is evaluated beside that at w."""

    method = LOCAL_SCGDAM
    own_steps = ("scgdam.eta",)
    unread = ("learning_rate", "server_learning_rate")
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
                raise PayloadError(
                    f"CompositionalUp.{name}: got {got}, expected {'none' if length is None else length}"
                )

    def views(self) -> dict[str, list[FloatArray]]:
        if self.state is None:
            return {}
        buffers = self.state.inner_buffers
        return {INNER: [self.state.inner] if buffers is None else [self.state.inner, buffers]}
