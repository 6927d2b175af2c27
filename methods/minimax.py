"""Shared by the minimax methods.

They solve min over x, max over y of the plain mean of the sites' f_i(x, y). A point z = (x, y) is one flat vector, x
first. Where sites are weighted by their samples, the weight is part of f_i. So f_i may need the population
(p, n / N): the share of positives of all sites together, and the sites' mean number of samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from methods.checks import check_batches, check_classes
from methods.method import Method, Task
from methods.samples import make_sampler
from methods.server import Plan
from payloads.record import FloatArray, Payload, array
from problems.minimax import AUC_MINIMAX, SADDLES, Oracle
from problems.sampling import Indices

F = TypeVar("F", bound=Oracle)


@dataclass(frozen=True, eq=False)
class MinimaxDown(Payload):
    """Down, in every exchange: the population, where f_i needs it."""

    population: FloatArray | None = array(2, optional=True)


def take_oracle(model: F, *others: object) -> F:
    """Take the client's oracle for f_i as long as nothing of the other sites is known; a `ClientHalf.objective`.

    Args:
        model: the oracle, which has the site's data and the loss.
        others: the other arguments of an objective, without effect.
    """
    return model


def weigh(task: Task[Any, F], down: MinimaxDown) -> F:
    """Complete f_i with what it needs of the other sites.

    Args:
        task: has the client's f_i, its n_i samples, and whether sites count by their samples.
        down: the message, with the population or without.

    Returns:
        f_i with the p of all sites and, where sites count by their samples, with the weight omega_i = n_i / (n / N).
        Without a population, the task's f_i as it is.
    """
    if down.population is None:
        return task.f
    prior, mean_size = down.population.tolist()
    return task.f.weigh(prior, len(task.site) / mean_size if task.training.by_examples else 1.0)


def draw_batches(task: Task[Any, Any], down: object) -> Iterator[tuple[float, Indices]]:
    """Draw a round's mini-batches as rows, which an oracle takes; a `ClientHalf.batches`.

    Args:
        down: what came beside the model, which has no effect.

    Returns:
        The learning rate and the b rows of a mini-batch, for each iteration.
    """
    sampler = make_sampler(task)
    for iteration in task.iterations:
        yield task.eta(iteration), sampler.batch(iteration)


def fill_blocks(f: Oracle, of_x: float, of_y: float) -> Float[Tensor, "d"]:
    """Make a vector for products with points: a factor for x and one for y, such as the signs of descent and ascent.

    Args:
        f: says how long x and y are, and has the number type and the device of the result.
        of_x: all entries of the primal block x.
        of_y: all entries of the dual block y.
    """
    blocks = torch.empty_like(f.parameters)
    blocks[: f.primal_dim] = of_x
    blocks[f.primal_dim :] = of_y
    return blocks


def check_saddle(plan: Plan[Any]) -> None:
    """Check that the sites can fill batches and, for AUC, have both classes; a `Checks.sites`."""
    check_batches(plan)
    if plan.loss in SADDLES:
        check_classes(plan, "AUC")


# Each f_i has its site's weight by samples. If only some sites take part, the mean of their f_i estimates f without
# bias. Longer steps let the saddle point of a linear model with many features swing.
make_method = partial(
    Method,
    losses=(AUC_MINIMAX,),
    loss=AUC_MINIMAX,
    weighted_gradients=True,
    unread=("server_learning_rate",),
    default_step=0.1,
)


def count_population(plan: Plan[Any]) -> Float64[np.ndarray, "2"] | None:
    """Count what `weigh` needs at the clients.

    p is the share of positives among all samples. Where all sites count the same it is the mean of the sites' shares,
    as in a population to which each site contributes equally.

    Args:
        plan: has the class counts of all sites, the loss, and whether sites count by their samples.

    Returns:
        p and n / N; None where no f_i needs them.
    """
    sizes, positives = plan.class_counts.sum(axis=1), plan.class_counts[:, 1]
    if plan.loss not in SADDLES and not (plan.training.by_examples and np.ptp(sizes)):
        return None
    prior = positives.sum() / sizes.sum() if plan.training.by_examples else (positives / sizes).mean()
    return np.array([prior, sizes.sum() / len(sizes)])
