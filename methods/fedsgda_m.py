"""FedSGDA-M (Wu, Sun, Hu, Zhang, Huang, "Solving a Class of Non-Convex Minimax Optimization in Federated Learning",
NeurIPS 2023): `methods.sgdam` with STORM's momentum.

| paper | here |
|---|---|
| (u, v), the estimates of the gradients in x and y | ``momentum`` |
| alpha, beta | beta_x eta, beta_y eta |
| the steps in x and y | gamma_x eta, gamma_y eta |
| Q | ``local-steps`` |

The old momentum is first corrected by the difference of the gradients at the new and at the old point, both on the same
batch. Plain momentum has no correction, so it lags behind the point. The paper decreases steps and weights over time.
Here ``lr-decay`` scales the steps, and the weights are constant.
"""

from dataclasses import replace

from methods.method import ClientHalf, SampleGradients
from methods.minimax import take_oracle
from methods.sgdam import LOCAL_SGDAM, Carry, SGDAMTask, draw_next, finish, start
from problems.minimax.oracle import peek
from problems.sampling import Indices


def step(carry: Carry, rows: Indices, drop: float, task: SGDAMTask) -> Carry:
    """One step of x and y, then of their momenta."""
    old = carry.x.clone()
    # x <- x - gamma_x eta u, y <- y + gamma_y eta v
    carry.x.addcmul_(carry.steps, carry.momentum, value=drop)
    # u <- g_x(new) + (1 - beta_x eta) (u - g_x(old)), v <- g_y(new) + (1 - beta_y eta) (v - g_y(old))
    lag = carry.momentum.sub_(peek(carry.f, old, rows))
    gradient = carry.f.gradient(carry.x, rows)
    lag.addcmul_(lag, carry.weights, value=-1).add_(gradient)
    return carry


FEDSGDA_M = replace(
    LOCAL_SGDAM,
    client=ClientHalf(take_oracle, draw_next, start, step, finish),
    taken=SampleGradients(of_batch=2, first=1),
)
