"""Rounds of three algorithms as hand-written JAX: `vmap` over the clients, `scan` over the steps, compiled once.

A round takes the rows of its batches as given, and sends nothing. It is the opponent of `stacked.py`: the time of our
round divided by its time is the cost of messages, records, checks and the drawing of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from apps.config import Scalar, parse_run_config
from payloads.settings import TrainingSettings
from problems.randomness import Purpose
from problems.sampling import EpochSampler

HIDDEN = 64
Array = NDArray[Any]


def score(x: Any, features: Any, model: str) -> Any:
    """Return the scores (b,) of features (b, p) under flat weights, in PyTorch's order."""
    if model == "linear":
        return features @ x[:-1] + x[-1]
    first, p = HIDDEN * features.shape[1], features.shape[1]
    weights, bias, last = x[:first].reshape(HIDDEN, p), x[first : first + HIDDEN], x[first + HIDDEN :]
    return jax.nn.relu(features @ weights.T + bias) @ last[:-1] + last[-1]


def cross_entropy(x: Any, features: Any, labels: Any, model: str) -> Any:
    """Return the mean cross-entropy of a batch."""
    scores = score(x, features, model)
    return jnp.mean(jnp.logaddexp(0.0, scores) - labels * scores)


def shrink(x: Any, step: Any) -> Any:
    """Return the proximal point of step ||w||_1, which leaves out the intercept, the last entry."""
    weights = x[:-1]
    return x.at[:-1].set(jnp.sign(weights) * jnp.maximum(jnp.abs(weights) - step, 0.0))


class JaxRounds:
    """The rounds of a run of local-sgd, scaffold or composite (l1 and a ridge, linear models), in JAX.

    Args:
        flat: The run config.
        sites: The features (n, p) and labels (n,) of each client; all have the same n.
        x: The initial model, flat.

    Attributes:
        x: The model, flat.
        state: The clients' states between rounds.
    """

    def __init__(self, flat: Mapping[str, Scalar], sites: Sequence[tuple[Array, Array]], x: Array) -> None:
        config = parse_run_config(flat)
        self.training, name = config.training, config.run.strategy
        self.features, self.labels = (jnp.asarray(np.stack(part)) for part in zip(*sites, strict=True))
        self.x: Any = jnp.asarray(x)
        self.gradient = jax.grad(partial(cross_entropy, model=config.run.model))
        family: Any = config.family
        self.weight = float(family.weight) if name == "composite" else 0.0
        self.ridge = float(family.ridge) if name == "composite" else 0.0
        zeros = jnp.zeros((len(sites), len(x)), self.x.dtype)
        kinds: dict[str, tuple[Callable[..., Any], Any]] = {
            "local-sgd": (self.average, ()),
            "scaffold": (self.correct, (zeros, zeros[0])),
            "composite": (self.penalise, (zeros, zeros[0], 0.0)),
        }
        step, self.state = kinds[name]
        self.compiled = jax.jit(step)
        self.rows = [self.draw(round_, len(sites[0][1])) for round_ in range(self.training.num_server_rounds)]
        self.number = 0

    def draw(self, number: int, count: int) -> Any:
        """Return the rows (clients, steps, b) of a round's batches, as the run draws them."""
        t: TrainingSettings = self.training
        steps = range(number * t.local_steps, (number + 1) * t.local_steps)
        samplers = [
            EpochSampler(np.arange(count), t.batch_size, t.seed, Purpose.SAMPLES, client)
            for client in range(len(self.features))
        ]
        return jnp.asarray(np.array([[sampler.batch(step) for step in steps] for sampler in samplers]))

    def round(self) -> None:
        """Compute the next round."""
        rows = self.rows[self.number % len(self.rows)]
        self.x, self.state = self.compiled(self.x, self.state, self.features, self.labels, rows)
        jax.block_until_ready(self.x)  # type: ignore[no-untyped-call]
        self.number += 1

    def average(self, x: Any, state: Any, features: Any, labels: Any, rows: Any) -> Any:
        """Return the model after a round of local-sgd."""

        def client(features: Any, labels: Any, rows: Any) -> Any:
            def step(y: Any, batch: Any) -> Any:
                return y - self.training.learning_rate * self.gradient(y, features[batch], labels[batch]), None

            return jax.lax.scan(step, x, rows)[0]

        return jax.vmap(client)(features, labels, rows).mean(0), state

    def correct(self, x: Any, state: Any, features: Any, labels: Any, rows: Any) -> Any:
        """Return the model and the control variates after a round of scaffold."""
        controls, control = state

        def client(own: Any, features: Any, labels: Any, rows: Any) -> Any:
            def step(carry: Any, batch: Any) -> Any:
                y, total = carry
                gradient = self.gradient(y, features[batch], labels[batch])
                return (y - self.training.learning_rate * (gradient - own + control), total + gradient), None

            return jax.lax.scan(step, (x, jnp.zeros_like(x)), rows)[0]

        points, totals = jax.vmap(client)(controls, features, labels, rows)
        new = totals / self.training.local_steps
        return points.mean(0), (new, control + (new - controls).mean(0))

    def penalise(self, x: Any, state: Any, features: Any, labels: Any, rows: Any) -> Any:
        """Return the pre-proximal model and the clients' mean gradients after a round of composite."""
        gradients, before, seen = state
        eta = self.training.learning_rate
        between = eta * self.training.local_steps
        start = shrink(x, between * self.weight)
        corrections = seen * ((before - x) / between - gradients)

        def client(correction: Any, features: Any, labels: Any, rows: Any) -> Any:
            def step(carry: Any, batch: Any) -> Any:
                pre, z, total, t = carry
                gradient = self.gradient(z, features[batch], labels[batch])
                gradient = gradient.at[:-1].add(self.ridge * z[:-1])
                pre = pre - eta * (gradient + correction)
                return (pre, shrink(pre, (t + 1) * eta * self.weight), total + gradient, t + 1), None

            (pre, _, total, _), _ = jax.lax.scan(step, (start, start, jnp.zeros_like(x), 0), rows)
            return pre, total

        points, totals = jax.vmap(client)(corrections, features, labels, rows)
        return points.mean(0), (totals / self.training.local_steps, start, 1.0)

    def model(self) -> Array:
        """Return the model after the newest round; of composite its proximal point."""
        return np.asarray(shrink(self.x, self.training.learning_rate * self.training.local_steps * self.weight))
