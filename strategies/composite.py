"""The server halves of composite federated learning; `payloads.composite` has titles and symbols."""

from __future__ import annotations

from logging import WARNING
from typing import ClassVar

import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.common import log
from flwr.serverapp import Grid

from payloads.composite import SMOOTHNESS, CompositeSettings, Smoothness, StepSizes
from payloads.record import FloatArray, Payload
from payloads.settings import Settings, TrainingSettings
from payloads.wire import model_arrays
from problems.penalties import Penalty, make_penalty
from strategies.local_sgd import LocalSGD
from strategies.replies import Reply, exact_mean, mean_buffers, step_towards
from strategies.roster import SetupError


class ProximalStrategy(LocalSGD):
    """Base of the composite strategies: what travels is a point before its prox, averaged."""

    phases: ClassVar[dict[str, type[Payload]]] = {SMOOTHNESS: Smoothness}
    # steps that may be too long for f are worth a warning
    warns: ClassVar[bool] = True
    unread: ClassVar[tuple[str, ...]] = ("score",)
    settings_type = CompositeSettings
    settings: CompositeSettings

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        self.sizes = StepSizes(self.training, self.settings)
        self._penalty: Penalty | None = None

    def prologue(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Ask every site how smooth its f_i is, and warn of steps too long for the mean of them."""
        if not self.warns:
            return
        assert self.roster is not None
        replies = self.ask(0, range(len(self.roster)), arrays, None, SMOOTHNESS)
        known = [reply for reply in replies if reply.payload.estimate is not None]
        if not known:
            return
        estimates = [reply.payload.estimate for reply in known]
        smoothness, step = float(exact_mean(estimates, self.weights(known))[0]), self.sizes.between(1)
        if step * smoothness > 2:
            log(
                WARNING,
                "learning-rate * server-learning-rate * local-steps = %g is above 2 / L = %.4g, with the Lipschitz "
                "estimate L = %.4g, the mean of the sites': the run may diverge",
                step,
                2 / smoothness,
                smoothness,
            )

    def prox(self, point: FloatArray, step: float) -> FloatArray:
        """P_{step g} of (d,), in the point's number type."""
        if self._penalty is None:
            layout = self.layout or [("parameters", (len(point), 1))]
            self._penalty = make_penalty(self.settings.penalty, layout, **self.settings.penalty_options)
        result: FloatArray = self._penalty.prox(torch.from_numpy(np.array(point)), step).numpy()
        return result

    def buffers(self, replies: list[Reply]) -> list[FloatArray]:
        """What the replies hold beside their points."""
        return mean_buffers(replies, self.weights(replies))

    def move(self, replies: list[Reply], start: FloatArray) -> FloatArray:
        """(d,) start + eta_g (mean of the replies - start)."""
        return step_towards(replies, start, self.training.server_learning_rate, self.weights(replies))


class Composite(ProximalStrategy):
    """Algorithm 1. All clients, every round: one that fails is asked again, ``max-retries`` times.

    The corrections c_i sum to zero. One that is lost and 0 again leaves a mean that no later round changes, and the
    method would minimise ``f + <mean, x> + g``. Once the server notices, all c_i are 0 again from the next round on: a
    run of Algorithm 1 from the point that has been reached.
    """

    needs_all_clients = "keeps corrections that add up to zero over all clients only"
    retries_failed = True
    joint_states = True
    # what the last round made, in this process
    made: FloatArray | None = None

    def inquire(self, server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        """Refuse a model that somebody has changed since: the clients' corrections follow from it."""
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
        """Line 15: x-bar <- P(x-bar) + eta_g (mean of z-hat - P(x-bar))."""
        start = self.prox(self._model[0], self.sizes.between(server_round - 1))
        self.made = self.move(replies, start)
        return [self.made, *self.buffers(replies)], {}

    def output(self, server_round: int, arrays: list[FloatArray]) -> list[FloatArray]:
        return [self.prox(arrays[0], self.sizes.between(server_round)), *arrays[1:]]


class FedMid(ProximalStrategy):
    """FedMid: the mean of the clients' points, and a prox."""

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        """x <- P_{eta_g eta K g}(x + eta_g (mean - x))."""
        moved = self.move(replies, self._model[0])
        return [self.prox(moved, self.sizes.between(server_round)), *self.buffers(replies)], {}


class FedDA(ProximalStrategy):
    """FedDA: the mean of the clients' dual points."""

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        """z <- z + eta_g (mean - z)."""
        return [self.move(replies, self._model[0]), *self.buffers(replies)], {}

    def output(self, server_round: int, arrays: list[FloatArray]) -> list[FloatArray]:
        return [self.prox(arrays[0], self.sizes.until(server_round)), *arrays[1:]]


class FastFedDA(ProximalStrategy):
    """Fast-FedDA: the mean of the clients' v; ``server-learning-rate`` has no effect."""

    warns = False
    unread: ClassVar[tuple[str, ...]] = ("server_learning_rate", "score")

    def output(self, server_round: int, arrays: list[FloatArray]) -> list[FloatArray]:
        iterations = server_round * self.training.local_steps
        return [self.prox(arrays[0], self.sizes.averaged(iterations)), *arrays[1:]]
