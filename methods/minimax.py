"""Shared by the minimax methods.

They solve min over x, max over y of the plain mean of the sites' f_i(x, y). A point z = (x, y) is one flat vector (d,),
x first. Where sites are weighted by their samples, the weight is part of f_i. So f_i may need the population
(p, n / N): the share of positives of all sites together, and the sites' mean number of samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from methods.method import Plan, Task
from methods.samples import make_sampler
from payloads.record import FloatArray, Payload, array
from problems.minimax import SADDLES, Oracle
from problems.sampling import Indices

F = TypeVar("F", bound=Oracle)


@dataclass(frozen=True, eq=False)
class MinimaxDown(Payload):
    """Down, in every exchange: the population, where f_i needs it."""

    population: FloatArray | None = array(2, optional=True)


def take_oracle(model: F, *others: object) -> F:
    """f_i before anything of the other sites is known: the client's oracle, with the site's data and loss."""
    return model


def weigh(task: Task[Any, F], down: MinimaxDown) -> F:
    """f_i with the p of all sites and, where sites count by their samples, omega_i = n_i / (n / N)."""
    if down.population is None:
        return task.f
    prior, mean_size = down.population.tolist()
    return task.f.weigh(prior, len(task.site) / mean_size if task.training.by_examples else 1.0)


def draw_batches(task: Task[Any, Any], down: object) -> Iterator[tuple[float, Indices]]:
    """The learning rate and the rows (b,) of a mini-batch, for each of the round's iterations."""
    sampler = make_sampler(task)
    for iteration in task.iterations:
        yield task.eta(iteration), sampler.batch(iteration)


def fill_blocks(f: Oracle, of_x: float, of_y: float) -> Tensor:
    """(d,) ``of_x`` in all entries of x, ``of_y`` in all entries of y."""
    blocks = torch.empty_like(f.parameters)
    blocks[: f.primal_dim] = of_x
    blocks[f.primal_dim :] = of_y
    return blocks


def count_population(plan: Plan[Any]) -> FloatArray | None:
    """(2,) p and n / N, in float64; None where no f_i needs them.

    p is the share of positives among all samples. Where all sites count the same it is the mean of the sites' shares,
    as in a population to which each site contributes equally.
    """
    sizes, positives = plan.class_counts.sum(axis=1), plan.class_counts[:, 1]
    if plan.loss not in SADDLES and not (plan.training.by_examples and np.ptp(sizes)):
        return None
    prior = positives.sum() / sizes.sum() if plan.training.by_examples else (positives / sizes).mean()
    return np.array([prior, sizes.sum() / len(sizes)])
