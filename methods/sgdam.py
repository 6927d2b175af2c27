"""LocalSGDAM (Sharma, Panda, Joshi, Varshney, "Federated Minimax Optimization: Improved Convergence Analyses and
Algorithms", ICML 2022), in the form of LocalSCGDAM (Zhang, Zhang, Yang, Souvenir, Gao, "Federated Compositional Deep
AUC Maximization", NeurIPS 2023, Algorithm 1) without its inner function.

Descent in x and ascent in y, both along momenta, for the minimax problem of `methods.minimax`.

| paper | here |
|---|---|
| (x, y), one flat point z | the message's model |
| (u, v), the momenta of x and y, one vector | ``momentum`` |
| eta, gamma_x, gamma_y | the same names: a step is gamma_x eta in x, gamma_y eta in y |
| beta_x, beta_y | the same names: a new gradient has the weight beta_x eta in u, beta_y eta in v |
| p (communication period) | ``local-steps`` |

Only the learning rate's drops have an effect: a step's size is gamma * eta * learning_rate_at(t) / learning_rate.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from jaxtyping import Float
from pydantic import AfterValidator, Field, ValidationInfo
from torch import Tensor

from methods.method import Checks, ClientHalf, Records, SampleGradients, Task, as_array, as_tensor
from methods.minimax import MinimaxDown, check_saddle, count_population, fill_blocks, make_method, take_oracle, weigh
from methods.samples import make_sampler
from methods.server import Plan, ServerHalf, average_records
from payloads.record import FloatArray, Payload, array
from payloads.settings import Settings, setting
from problems.minimax import Oracle
from problems.sampling import Indices


def _fits_eta(factor: float, info: ValidationInfo) -> float:
    if "eta" in info.data and not 0 < factor * info.data["eta"] <= 1:
        raise ValueError("its product with eta lies outside (0, 1]")
    return factor


# factor * eta, the weight of a new value in a moving average, lies in (0, 1]
WeightFactor = Annotated[float, Field(gt=0, validate_default=True), AfterValidator(_fits_eta)]


class SGDAMSettings(Settings):
    """Hyper-parameters of LocalSGDAM (table ``sgdam``)."""

    eta: float = setting("The scale of the steps and of the weights of new values.", 0.3, gt=0)
    gamma_x: float = setting("The step in x, in units of eta.", 0.33, gt=0)
    gamma_y: float = setting("The step in y, in units of eta.", 0.33, gt=0)
    beta_x: WeightFactor = setting(
        "The weight of a new gradient in x's momentum, in units of eta.", 3.3, "a number > 0 with eta * beta-x <= 1"
    )
    beta_y: WeightFactor = setting(
        "The weight of a new gradient in y's momentum, in units of eta.", 3.3, "a number > 0 with eta * beta-y <= 1"
    )


SGDAMTask = Task[SGDAMSettings, Oracle]


@dataclass(frozen=True, eq=False)
class SGDAMDown(MinimaxDown):
    """The record sent to the clients. The momentum is absent in round 1."""

    momentum: FloatArray | None = array("d", optional=True)


@dataclass(frozen=True, eq=False)
class SaddleMomentum(Payload):
    """A client's reply, and the server's state: (u, v) as one vector."""

    momentum: FloatArray = array("d", combined="mean")


@dataclass(frozen=True)
class Carry:
    """A client's state between two steps: z = (x, y), (u, v), the signed steps gamma eta, the weights beta eta, f_i."""

    x: Float[Tensor, "*stack d"]
    momentum: Float[Tensor, "*stack d"]
    steps: Float[Tensor, "*stack d"]
    weights: Float[Tensor, "*stack d"]
    f: Oracle


def draw_next(task: SGDAMTask, down: object) -> Iterator[tuple[float, Indices]]:
    """Draw a round's mini-batches; a `ClientHalf.batches`.

    Args:
        down: The record sent with the model; without effect.

    Returns:
        For each iteration t the learning rate relative to its initial value, and the rows of batch t + 1. Batch 0 makes
        the first momentum.
    """
    sampler = make_sampler(task)
    for t in task.iterations:
        yield task.eta(t) / task.training.learning_rate, sampler.batch(t + 1)


def start(x: Float[Tensor, "*stack d"], down: SGDAMDown, memory: None, task: SGDAMTask) -> Carry:
    """Receive the momentum. In round 1 the momentum is the gradient on the first batch."""
    f, own = weigh(task, down), task.settings
    if down.momentum is None:
        momentum = f.gradient(x, make_sampler(task).batch(task.iterations[0])).clone()
    else:
        momentum = as_tensor(down.momentum, x).expand_as(x).contiguous()
    steps = fill_blocks(f, -own.gamma_x * own.eta, own.gamma_y * own.eta)
    weights = fill_blocks(f, own.beta_x * own.eta, own.beta_y * own.eta)
    return Carry(x, momentum, steps.expand_as(x), weights.expand_as(x), f)


def step(carry: Carry, rows: Indices, drop: float, task: SGDAMTask) -> Carry:
    """Lines 2 and 4 of Algorithm 1: one step of x and y, then of their momenta."""
    # x <- x - gamma_x eta u, y <- y + gamma_y eta v
    carry.x.addcmul_(carry.steps, carry.momentum, value=drop)
    # u <- (1 - beta_x eta) u + beta_x eta g_x, v <- (1 - beta_y eta) v + beta_y eta g_y
    carry.momentum.lerp_(carry.f.gradient(carry.x, rows), carry.weights)
    return carry


def finish(carry: Carry, task: SGDAMTask) -> tuple[Float[Tensor, "*stack d"], SaddleMomentum, None]:
    return carry.x, SaddleMomentum(momentum=as_array(carry.momentum)), None


def tell(x: Float[np.ndarray, "d"], state: SaddleMomentum | None, plan: Plan[SGDAMSettings]) -> SGDAMDown:
    return SGDAMDown(population=count_population(plan), momentum=None if state is None else state.momentum)


LOCAL_SGDAM = make_method(
    ClientHalf(take_oracle, draw_next, start, step, finish),
    ServerHalf(tell=tell, update=average_records),
    Records(down=SGDAMDown, up=SaddleMomentum, state=SaddleMomentum),
    SGDAMSettings,
    taken=SampleGradients(first=1),
    checks=Checks(sites=check_saddle),
    findings=True,
    table="sgdam",
    sends="momentum",
    own_steps=("sgdam.eta",),
    unread=("learning_rate", "server_learning_rate"),
)
