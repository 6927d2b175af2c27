"""Server halves of the methods for f + g in `methods.composite`, `methods.fedda` and `methods.fast_fedda`."""

from logging import WARNING
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord
from flwr.common import log
from flwr.serverapp import Grid

from methods.composite import COMPOSITE
from methods.fast_fedda import FAST_FEDDA
from methods.fedda import FEDDA, FEDMID
from methods.penalised import SMOOTHNESS, CompositeSettings, between
from payloads.record import FloatArray
from payloads.wire import model_arrays
from problems.models.vectors import exact_mean
from strategies.method import MethodStrategy
from strategies.rounds.errors import SetupError
from strategies.rounds.replies import Reply


class ProximalStrategy(MethodStrategy):
    """Base of the strategies for f + g: clients send points before their prox, and the server averages them."""

    # whether to warn of steps that may be too long for f
    warns = True
    unread: ClassVar[tuple[str, ...]] = ("score",)
    settings: CompositeSettings

    def prologue(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Ask every site for the smoothness of its f_i, and warn if the steps are too long for the mean of these.

        Raises:
            StrategyError: too few sites answer.
        """
        if not self.warns:
            return
        replies = self.ask(0, range(len(self.roster)), arrays, None, SMOOTHNESS)
        known = [reply for reply in replies if reply.payload.estimate is not None]
        if not known:
            return
        estimates = [reply.payload.estimate for reply in known]
        smoothness, step = float(exact_mean(estimates, self.weights(known))[0]), between(self.training, 1)
        if step * smoothness > 2:
            told = (
                "learning-rate * server-learning-rate * local-steps = %g is above 2 / L = %.4g, with the Lipschitz "
                "estimate L = %.4g, the mean of the sites': the run may diverge"
            )
            log(WARNING, told, step, 2 / smoothness, smoothness)


class Composite(ProximalStrategy):
    """Algorithm 1. Every round needs all clients: one that fails is asked again, ``max-retries`` times.

    The corrections c_i sum to zero. If one were lost, the method would minimise ``f + <mean c_i, x> + g``; so all
    clients then start again from corrections of zero.
    """

    method = COMPOSITE
    needs_all_clients = "keeps corrections that add up to zero over all clients only"
    retries_failed = True
    joint_states = True
    # the model of the last round; None if this process has made none
    made: FloatArray | None = None

    def inquire(self, server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        """Refuse a model that was changed after the last round: clients compute their corrections from it.

        Raises:
            SetupError: the model is not the one that `combine` returned.
        """
        if self.made is not None and not np.array_equal(self.made, model_arrays(arrays)[0], equal_nan=True):
            raise SetupError(
                f"round {server_round}: the model",
                got="another one than the last round made, as if a wrapper had noised it",
                allowed=(
                    "the same, since composite's clients work out their corrections from it, and would take the noise "
                    "for a gradient in every later round"
                ),
                hint="take fedmid, fedda or fast-fedda, which have no corrections",
            )
        return arrays

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        arrays, metrics = super().combine(server_round, replies)
        self.made = arrays[0]
        return arrays, metrics


class FedMid(ProximalStrategy):
    """FedMid: the mean of the clients' points, and a prox."""

    method = FEDMID


class FedDA(ProximalStrategy):
    """FedDA: the mean of the clients' dual points."""

    method = FEDDA


class FastFedDA(ProximalStrategy):
    """Fast-FedDA: the mean of the clients' v; ``server-learning-rate`` has no effect."""

    method = FAST_FEDDA
    warns = False
    unread = ("server_learning_rate", "score")
