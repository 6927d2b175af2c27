"""Functions that all minimax methods share.

The methods solve min over x, max over y of the plain mean of the sites' f_i(x, y). A point z = (x, y) is one flat
vector, x first. If sites are weighted by their samples, the weight is part of f_i. f_i may therefore need the
population (p, n / N): the share of positives over all sites, and the sites' mean number of samples.
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
    """The record sent to the clients in every exchange: the population (p, n / N), if f_i needs it."""

    population: FloatArray | None = array(2, optional=True)


def take_oracle(model: F, *unused: object) -> F:
    """Return the client's oracle as f_i, not yet weighted by `weigh`; a `ClientHalf.objective`.

    Args:
        model: The oracle, an object that computes the gradients of f_i from the site's data.
        unused: The further arguments of a `ClientHalf.objective`.
    """
    return model


def weigh(task: Task[Any, F], down: MinimaxDown) -> F:
    """Return f_i with the weight and the share of positives that follow from the population.

    Args:
        task: The client's task; provides f_i, n_i, and whether sites count by their samples.
        down: The message, with or without the population.

    Returns:
        f_i with the p of all sites and, if sites count by their samples, with the weight omega_i = n_i / (n / N).
        Without a population, the task's f_i unchanged.
    """
    if down.population is None:
        return task.f
    prior, mean_size = down.population.tolist()
    return task.f.weigh(prior, task.f.num_samples / mean_size if task.training.by_examples else 1.0)


def draw_batches(task: Task[Any, Any], down: object) -> Iterator[tuple[float, Indices]]:
    """Draw a round's mini-batches as the row numbers that an oracle expects; a `ClientHalf.batches`.

    Args:
        down: The record sent with the model; without effect.

    Returns:
        The learning rate and the b rows of a mini-batch, for each iteration.
    """
    sampler = make_sampler(task)
    for iteration in task.iterations:
        yield task.eta(iteration), sampler.batch(iteration)


def fill_blocks(f: Oracle, of_x: float, of_y: float) -> Float[Tensor, "d"]:
    """Return a vector with one value for x and one for y, such as the signs of descent and ascent.

    Args:
        f: The oracle; determines the lengths of x and y, and the number type and the device of the result.
        of_x: The value of all entries of the primal block x.
        of_y: The value of all entries of the dual block y.
    """
    blocks = torch.empty_like(f.parameters)
    blocks[: f.primal_dim] = of_x
    blocks[f.primal_dim :] = of_y
    return blocks


def check_saddle(plan: Plan[Any]) -> None:
    """Check that the sites can fill batches and, for AUC, have both classes; a `Checks.sites`.

    With several findings, the data set's reader has checked that both values of each occur.
    """
    check_batches(plan)
    if plan.loss in SADDLES and plan.finding_counts is None:
        check_classes(plan, "AUC")


# Each f_i includes its site's weight by samples. If only some sites take part, the mean of their f_i is an unbiased
# estimate of f. Longer steps make a linear model with many features oscillate around the saddle point.
make_method = partial(
    Method,
    losses=(AUC_MINIMAX,),
    loss=AUC_MINIMAX,
    weighted_gradients=True,
    unread=("server_learning_rate",),
    default_step=0.1,
    stacked=True,
)


def count_population(plan: Plan[Any]) -> Float64[np.ndarray, "2"] | None:
    """Return the population (p, n / N), which `weigh` needs at the clients.

    p is the share of positives among all samples. If all sites count the same, p is the mean of the sites' shares, as
    in a population to which each site contributes equally.

    Args:
        plan: The round's plan; provides the class counts of all sites, the loss, and whether sites count by their
            samples.

    Returns:
        p and n / N; None if no f_i needs them.
    """
    sizes, positives = plan.class_counts.sum(axis=1), plan.class_counts[:, 1]
    if plan.loss not in SADDLES and not (plan.training.by_examples and np.ptp(sizes)):
        return None
    prior = positives.sum() / sizes.sum() if plan.training.by_examples else (positives / sizes).mean()
    return np.array([prior, sizes.sum() / len(sizes)])
