"""SCAFFOLD's server half (Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning", ICML 2020, Option II), and its control update, which CODASCA has too."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from payloads.record import FloatArray
from payloads.scaffold import ControlChange, ControlVariate
from strategies.base import PayloadStrategy
from strategies.local_sgd import LocalSGD
from strategies.replies import Reply, exact_mean, mean_buffers, step_towards


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

    def told(self, control: FloatArray | None) -> FloatArray | None:
        """(d,) c as the clients get it, or None while it is zero."""
        return None if control is None else control.astype(np.dtype(self.training.dtype))

    def averaged(self, replies: list[Reply], control: FloatArray | None) -> tuple[list[FloatArray], FloatArray | None]:
        """The new model and the new c (d,), None for zero."""
        assert self.roster is not None
        weights = self.weights(replies)
        point = step_towards(replies, self._model[0], self.training.server_learning_rate, weights)
        arrays = [point, *mean_buffers(replies, weights)]
        if self.report.state_lost:
            return arrays, None
        # a client's c_i counts in c as in the mean over all sites, whoever answered
        shares = None if weights is None else self.roster.sample_weights[[reply.place for reply in replies]]
        change = len(replies) / len(self.roster) * exact_mean([reply.payload.change for reply in replies], shares)
        return arrays, change if control is None else control + change


class Scaffold(ControlledStrategy, LocalSGD):
    """SCAFFOLD: any clients. What the server keeps is c, in float64."""

    unread: ClassVar[tuple[str, ...]] = ("score",)
    down_type = ControlVariate
    state_type = ControlVariate

    state: ControlVariate | None

    def down(self, server_round: int) -> ControlVariate | None:
        control = None if self.state is None else self.told(self.state.control)
        return None if control is None else ControlVariate(control=control)

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        arrays, control = self.averaged(replies, None if self.state is None else self.state.control)
        self.state = None if control is None else ControlVariate(control=control)
        return arrays, {}
