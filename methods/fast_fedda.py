"""Fast-FedDA (Bao, Crawshaw, Luo, Liu, "Fast Composite Optimization and Statistical Recovery in Federated Learning",
ICML 2022) with equal weights: dual averaging for a strongly convex f, over all points and gradients.

With b_t = gamma + mu t / 2 after t local steps of the run, the strong convexity mu of f (``strong-convexity``), the
first step size 1 / gamma (``anchor-weight``), and the prox P of the penalty g (see `methods.penalised`),

    w_t = P_{t/b_t g}(v_t),   v_{t+1} = v_t + (mu/2 (w_t - v_t) - grad f_i(w_t)) / b_{t+1},   v_0 = w_0.

The paper's clients send the sums of their gradients and of their points. The method needs only v, which combines both.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from torch import Tensor

from methods.penalised import PenalisedPlan, PenalisedTask, make_client, make_method, prox_at
from methods.samples import Batch
from methods.server import ServerHalf


@dataclass(frozen=True)
class Carry:
    """A client's state between two steps: v, w, and t."""

    v: Float[Tensor, "*stack d"]
    w: Float[Tensor, "*stack d"]
    t: int


def mu(task: PenalisedTask | PenalisedPlan) -> float:
    """Return f's strong convexity: the setting ``strong-convexity`` or, if it is "auto", ``ridge``."""
    convexity = task.settings.strong_convexity
    return task.settings.ridge if isinstance(convexity, str) else convexity


def weight(task: PenalisedTask | PenalisedPlan, t: int) -> float:
    """Return b_t = gamma + mu t / 2, the inverse of the step size.

    Args:
        task: A client's task or the server's plan; both provide the same gamma and mu.
        t: The number of the run's local steps so far.
    """
    gamma = task.settings.anchor_weight
    return (1 / task.training.learning_rate if isinstance(gamma, str) else gamma) + mu(task) * t / 2


def start(x: Float[Tensor, "*stack d"], down: None, memory: None, task: PenalisedTask) -> Carry:
    return Carry(x.clone(), x, task.iterations[0])


def step(carry: Carry, batch: Batch, eta: float, task: PenalisedTask) -> Carry:
    """w = P_{t/b_t g}(v), v <- v + (mu/2 (w - v) - grad f_i(w)) / b_{t+1}."""
    t, v, half = carry.t, carry.v, mu(task) / 2
    w = task.f.penalty.prox(v, t / weight(task, t), out=carry.w)
    change = task.f.gradient(w, batch).neg_().add_(w, alpha=half).sub_(v, alpha=half)
    v.add_(change, alpha=1 / weight(task, t + 1))
    return replace(carry, t=t + 1)


def finish(carry: Carry, task: PenalisedTask) -> tuple[Float[Tensor, "*stack d"], None, None]:
    return carry.v, None, None


def output(x: Float[np.ndarray, "d"], plan: PenalisedPlan) -> Float[np.ndarray, "d"]:
    """Return a round's model: the prox of v."""
    t = plan.server_round * plan.training.local_steps
    return prox_at(x, t / weight(plan, t), plan)


FAST_FEDDA = make_method(
    make_client(start, step, finish),
    ServerHalf(output=output),
    phases={},
    unread=("server_learning_rate", "score"),
    sends="the dual point instead of the model",
)
