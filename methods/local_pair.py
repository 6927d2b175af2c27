"""Local pairs, FedX's baseline (Guo, Jin, Luo, Yang, "FedX: Federated Learning for Compositional Pairwise Risk
Optimization", Section 4): FedX's losses on pairs of two samples of the same site, both scored by the current model.

On the union of all data this is the centralised reference: mini-batch pairwise SGD for linear f; for non-linear f SOX
(Wang, Yang, "Finite-Sum Coupled Compositional Stochastic Optimization", ICML 2022), with u and a momentum.
`methods.pairwise` defines the symbols.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Float64
from torch import Tensor

from methods.fedx_settings import FedXSettings, check_pairs
from methods.method import Checks, ClientHalf, Method, Records
from methods.pair_batches import ActiveBatch
from methods.pair_findings import checks_with_findings, with_findings
from methods.pairwise import (
    Carry,
    InnerEstimates,
    Momentum,
    PairwiseRisk,
    PairwiseTask,
    active_batches,
    average,
    descend,
    differences,
    finish,
    start,
    update_u,
)
from methods.server import Plan, ServerHalf
from problems.objectives.pairwise import ALL_PAIRWISE


def batches(task: PairwiseTask, down: Momentum | None) -> Iterator[tuple[float, ActiveBatch]]:
    """Draw a round's batches; a `ClientHalf.batches`.

    Args:
        down: The record sent with the model; without effect.

    Returns:
        The step size and the batch of each iteration. Empty at a site with a single class, which has no pairs.
    """
    if len(task.f.positives) and len(task.f.partners):
        yield from zip(map(task.eta, task.iterations), active_batches(task, task.f.positives), strict=True)


def step(carry: Carry, batch: ActiveBatch, eta: float, task: PairwiseTask) -> Carry:
    """Take the step w <- w - eta G, with the gradient G over all pairs of the batch; with u and momentum if tracked."""
    a, b, pull = task.f.forward(carry.x, batch)
    return descend(carry, pull, find_slopes(carry, a, b, batch, task), eta, task)


def find_slopes(
    carry: Carry, a: Float64[Tensor, "*stack b"], b: Float64[Tensor, "*stack m"], batch: ActiveBatch, task: PairwiseTask
) -> tuple[Float64[Tensor, "*stack b"], Float64[Tensor, "*stack m"]]:
    """Update u, and return the derivatives of the risk over all pairs of the batch in its scores.

    Args:
        carry: The step's carry; its u is changed.
        a: The positives' scores.
        b: The partners' scores.
        batch: The step's batch.
        task: The client's task.
    """
    f = task.f.objective
    s = differences(a, b, batch.events, batch.spans)  # (b, m)
    u = None if carry.u is None else update_u(carry.u, batch.u_rows, f.observe(s, batch.labels, None), task)
    slope = f.slope(s, batch.labels, u) / (s.shape[-2] * s.shape[-1])
    return -slope.sum(dim=-1), slope.sum(dim=-2)


def tell(x: Float[np.ndarray, "d"], state: Momentum | None, plan: Plan[FedXSettings]) -> Momentum:
    return state or Momentum()


LOCAL_PAIR = Method(
    with_findings(ClientHalf(PairwiseRisk, batches, start, step, finish), find_slopes, lambda batch: batch, local=True),
    ServerHalf(tell=tell, update=average),
    Records(down=Momentum, up=Momentum, memory=InnerEstimates, state=Momentum),
    FedXSettings,
    adjusts=True,
    has_adam=True,
    findings=True,
    averages=True,
    checks=checks_with_findings(Checks(sites=check_pairs)),
    table="fedx",
    losses=ALL_PAIRWISE,
    loss="kl-opauc",
    sends="momentum, if the loss's outer function f is not linear",
    unread=("batch_size", "server_learning_rate"),
    default_step=0.1,  # with larger steps an mlp fits too closely to small sites, of 30 to 200 rows
)
