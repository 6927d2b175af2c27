"""FedGDA-GT: descent ascent with gradient tracking (Sun, Wei, "A Communication-Efficient Algorithm with Linear
Convergence for Federated Minimax Learning", NeurIPS 2022, Algorithm 2).

| paper | here |
|---|---|
| (x^t, y^t), one flat point z | the message's model |
| the mean of the agents' gradients at z | ``estimate``, from the phase `GRADIENTS` |
| eta, K | ``learning-rate``, ``local-steps`` |

All sites send their gradients at z. The clients of the round take K steps along their own gradient, minus their own
gradient at z, plus the mean gradient. Each correction vanishes at the saddle point of f, so constant steps reach this
point, however unequal the sites are. `methods.fedsgda` has the same steps, with three differences: here every site
answers in the gradient phase, the step in x and in y is the learning rate, and the server keeps no state.

The paper's agents compute gradients over all their samples, as with ``batch-size = 0``, and all take steps. Here both
gradients of a step may use the same mini-batch, and some of the clients may take steps. The saddle point stays fixed in
both cases.
"""

import numpy as np
from jaxtyping import Float
from torch import Tensor

from methods.fedsgda import GRADIENTS, Carry, FedSGDADown, LocalGradient, begin, collect, draw, step
from methods.local_sgd import finish
from methods.method import Checks, ClientHalf, Phase, Records, SampleGradients, Task
from methods.minimax import check_saddle, count_population, fill_blocks, make_method, take_oracle, weigh
from methods.server import Ask, Exchanges, Plan, ServerHalf, Train
from payloads.settings import Settings
from problems.minimax import Oracle
from problems.models.vectors import exact_mean


def start(x: Float[Tensor, "*stack d"], down: FedSGDADown, memory: None, task: Task[Settings, Oracle]) -> Carry:
    """Receive the mean gradient. The step size is the learning rate of the round's first step, in all steps."""
    f, eta = weigh(task, down), task.eta(task.iterations[0])
    return begin(x, down, task, f, fill_blocks(f, -eta, eta))


def run_round(
    x: Float[np.ndarray, "d"], state: None, plan: Plan[Settings]
) -> Exchanges[tuple[Float[np.ndarray, "d"], None]]:
    """Average all sites' gradients at z, then the points of the clients of the round; a `ServerHalf.round`."""
    population = count_population(plan)
    ask = None if population is None else FedSGDADown(population=population)
    answers = yield Ask(GRADIENTS, plan.everyone, ask)
    estimate = exact_mean([answer.gradient for answer in answers.ups])
    replies = yield Train(FedSGDADown(population=population, estimate=estimate.astype(x.dtype)))
    return replies.mean_point(), None


FEDGDA_GT = make_method(
    ClientHalf(take_oracle, draw, start, step, finish),
    ServerHalf(round=run_round),
    Records(down=FedSGDADown),
    phases={GRADIENTS: Phase(LocalGradient, collect)},
    taken=SampleGradients(of_batch=2, whole=1, phases=frozenset({GRADIENTS})),
    checks=Checks(sites=check_saddle),
    findings=True,
    sends="up: a local gradient; down: the global gradient",
)
