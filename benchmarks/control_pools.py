"""Controls of FedX1 and FedX2, whose pool has less information about other sites' scores.

The server changes the pool of a round before it sends it:

- `UNIFORM` draws new scores, uniform over the range of the pool's scores. Only this range is kept.
- `PERMUTED` permutes the scores among positives and partners. The distribution of all scores is kept, but a score no
  longer belongs to its class.

`benchmarks/control_pools.toml` compares both with FedX1, with unbounded scores and with sigmoid scores:

    florilegium reproduce benchmarks/control_pools.toml --tune --stack 16 --data-dir DATA --out results/controls
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from apps.registry import adapt
from methods.fedx import FEDX1, FEDX2
from methods.method import Method
from methods.predictions import FedXPool
from methods.server import Exchanges, Plan

Scores = Float[np.ndarray, "n"]
Change = Callable[[Scores, np.random.Generator], Scores]


def draw_uniform(scores: Scores, rng: np.random.Generator) -> Scores:
    """Draw as many scores, uniform over the range of `scores`."""
    return rng.uniform(scores.min(), scores.max(), len(scores))


def permute(scores: Scores, rng: np.random.Generator) -> Scores:
    """Return the scores in a random order."""
    return rng.permutation(scores)


def change_pool(pool: FedXPool, change: Change, rng: np.random.Generator) -> FedXPool:
    """Return the pool with other scores for its p positives and q partners, and without u."""
    p, scores = len(pool.positive_scores), np.concatenate((pool.positive_scores, pool.partner_scores))
    if not len(scores):
        return pool
    scores = change(scores, rng)
    return replace(pool, positive_scores=scores[:p], partner_scores=scores[p:], positive_u=None, positive_tracked=None)


def run_round(x: Scores, state: Any, plan: Plan[Any], method: Method, change: Change) -> Exchanges[Any]:
    """Do a round of a method whose exchange sends a changed pool; a `ServerHalf.round`."""
    assert method.server.round is not None
    exchanges = method.server.round(x, state, plan)
    rng = np.random.default_rng((plan.training.seed, plan.server_round))
    exchange = next(exchanges)
    while True:
        assert isinstance(exchange.down, FedXPool)
        replies = yield replace(exchange, down=change_pool(exchange.down, change, rng))
        try:
            exchange = exchanges.send(replies)
        except StopIteration as end:
            return end.value


def control(method: Method, change: Change) -> Method:
    """Return FedX1 or FedX2 with a changed pool."""
    return replace(method, server=replace(method.server, round=partial(run_round, method=method, change=change)))


_UNIFORM = "uniform random scores in the place of the pool's"
_PERMUTED = "the pool's scores permuted among positives and partners"
UNIFORM = adapt(control(FEDX1, draw_uniform), "UniformPool", f"FedX1, {_UNIFORM}")
PERMUTED = adapt(control(FEDX1, permute), "PermutedPool", f"FedX1, {_PERMUTED}")
UNIFORM_FEDX2 = adapt(control(FEDX2, draw_uniform), "UniformPoolFedX2", f"FedX2, {_UNIFORM}")
PERMUTED_FEDX2 = adapt(control(FEDX2, permute), "PermutedPoolFedX2", f"FedX2, {_PERMUTED}")
