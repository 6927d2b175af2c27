"""FedMid: proximal SGD at the clients, a mean and a prox at the server (Yuan, Zaheer, Reddi, "Federated Composite
Optimization", ICML 2021)."""

from __future__ import annotations

from methods.local_sgd import Point, finish, start
from methods.method import Plan, Replies, ServerHalf
from methods.penalised import CompositeSettings, PenalisedTask, between, make_method, prox_at
from methods.samples import Batch
from payloads.record import FloatArray, Payload


def step(carry: Point, batch: Batch, eta: float, task: PenalisedTask) -> Point:
    """x <- P_{eta g}(x - eta grad f_i(x))."""
    x = carry.x.sub_(task.f.gradient(carry.x, batch), alpha=eta)
    task.f.penalty.prox(x, eta, out=x)
    return carry


def update(
    x: FloatArray, state: None, replies: Replies[Payload], plan: Plan[CompositeSettings]
) -> tuple[FloatArray, None]:
    """x <- P_{eta_g eta K g}(x + eta_g (mean - x))."""
    moved = replies.moved(x, plan.training.server_learning_rate)
    return prox_at(moved, between(plan.training, plan.server_round), plan), None


FEDMID = make_method(start, step, finish, ServerHalf(update=update))
