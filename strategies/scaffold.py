"""SCAFFOLD's server half (Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning", ICML 2020, Option II), and its control update, which CODASCA has too."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from payloads.coda import ControlChange, ControlVariate
from payloads.record import FloatArray, Payload
from payloads.settings import Settings, TrainingSettings
from strategies.base import PayloadStrategy
from strategies.local_sgd import LocalSGD
from strategies.replies import Reply, exact_mean, mean_buffers, step_towards

Vector = NDArray[np.float64]


def exact(value: FloatArray | None) -> Vector | None:
    """A kept array in float64."""
    return None if value is None else value.astype(np.float64)


class ControlledStrategy(PayloadStrategy):
    """Averaging with control variates.

    w <- w + server-learning-rate * (mean w_i - w) and c <- c + answered / N * mean (new c_i - c_i), so that c is the
    mean of all N clients' c_i, weighted as the clients are. A client whose reply was lost has moved its c_i, which c
    never learns: from then on c is off that mean by its share of the lost changes, and the corrections c - c_i of all
    clients no longer sum to zero.

    So it would be, too, after a client has lost its c_i: the change it sends is from 0. No later round mends that. Once
    the server notices, c and all c_i are 0 again from the next round on, which is where any run of SCAFFOLD may start.
    """

    up_type = ControlChange
    joint_states = True

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        # (d,) c, from round 1 on
        self.control: Vector | None = None

    def told_control(self) -> FloatArray | None:
        """(d,) c as the clients get it, or None while it is zero."""
        return None if self.control is None else self.control.astype(np.dtype(self.training.dtype))

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        assert self.roster is not None
        weights = self.weights(replies)
        point = step_towards(replies, self._model[0], self.training.server_learning_rate, weights)
        arrays = [point, *mean_buffers(replies, weights)]
        if self.report.state_lost:
            self.control = None
            return arrays, {}
        # a client's c_i counts in c as in the mean over all sites, whoever answered
        shares = None if weights is None else self.roster.sample_weights[[reply.place for reply in replies]]
        change = len(replies) / len(self.roster) * exact_mean([reply.payload.change for reply in replies], shares)
        self.control = change if self.control is None else self.control + change
        return arrays, {}


class Scaffold(ControlledStrategy, LocalSGD):
    """SCAFFOLD: any clients. What the server keeps is c, in float64."""

    unread: ClassVar[tuple[str, ...]] = ("score",)
    down_type = ControlVariate
    state_type = ControlVariate

    def down(self, server_round: int) -> ControlVariate | None:
        control = self.told_control()
        return None if control is None else ControlVariate(control=control)

    def snapshot(self) -> ControlVariate | None:
        return None if self.control is None else ControlVariate(control=self.control)

    def restore(self, state: Payload) -> None:
        assert isinstance(state, ControlVariate)
        self.control = exact(state.control)
