"""Robust means over clients, which limit the influence of a few faulty or malicious clients.

The clients' models, and the payload fields that a method averages, are changed before the method reads them. Every
method whose server half is a mean therefore supports robust means.

- ``trimmed-mean`` (D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning", ICML 2018):
  drop the largest and the smallest values of each coordinate.
- ``median``: take the median of each coordinate.
- ``norm-bound`` (Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan, "Can You Really Backdoor Federated Learning?", 2019):
  shorten each client's step to a bound. Defaults to the median length of the round's steps.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from payloads.record import FloatArray, specs_of
from payloads.settings import MEAN, NORM_BOUND, TRIMMED_MEAN, TrainingSettings
from problems.models.vectors import bound_length
from strategies.rounds.errors import SetupError
from strategies.rounds.exchange import Exchange
from strategies.rounds.family import Family
from strategies.rounds.guards import ExchangeGuard, Proceed, Steps
from strategies.rounds.replies import Reply

# the smallest number of clients that can outvote one of them
FEWEST = 3


class RobustMeans(ExchangeGuard):
    """The guard that makes a round's means robust, unless secure sums have averaged the replies already."""

    def check(self, family: Family, clients: int) -> None:
        """Check that a robust mean has enough clients.

        Raises:
            SetupError: A round has fewer than `FEWEST` clients.
        """
        aggregation = family.training.aggregation
        if aggregation != MEAN and clients < FEWEST:
            got, allowed = f"{aggregation!r} over {clients} clients a round", f"{FEWEST} or more clients a round"
            hint = "set aggregation to mean, or raise fraction-train"
            raise SetupError("aggregation", got=got, allowed=allowed, hint=hint)

    def at_server(self, exchange: Exchange, clients: Sequence[int], proceed: Proceed) -> Steps:
        valid, training, report = (yield from proceed(exchange, clients)), exchange.family.training, exchange.report
        if training.aggregation == MEAN or exchange.summed or not valid:
            return valid
        valid, bounded = make_robust(valid, training, exchange.model)
        if training.aggregation == NORM_BOUND:
            report.extras["bounded_clients"] = bounded + report.extras.get("bounded_clients", 0)
        return valid


def make_robust(
    replies: Sequence[Reply], training: TrainingSettings, model: Sequence[FloatArray]
) -> tuple[list[Reply], int]:
    """Change a round's good replies to make their mean robust.

    With a trimmed mean or a median, every reply gets the same robust value, so the clients' weights have no effect.
    With "norm-bound", each reply keeps its own values, shortened to the bound, and clients keep their weights.

    Args:
        replies: The good replies.
        training: The settings, with an ``aggregation`` other than "mean".
        model: The server's model, from which the clients started.

    Returns:
        The replies, and the number of clients with a shortened value; 0 unless ``aggregation`` is "norm-bound".
    """
    parts = len(replies[0].model)  # 0 in an exchange without models
    points = [_combine([reply.model[part] for reply in replies], training, model[part]) for part in range(parts)]
    models = list(zip(*points, strict=True)) if parts else [()] * len(replies)
    payloads = [reply.payload for reply in replies]
    fields = {} if payloads[0] is None else specs_of(type(payloads[0]))
    changed: dict[str, list[Any]] = {}
    for name in (name for name, spec in fields.items() if spec.combined == "mean"):
        present = [index for index, payload in enumerate(payloads) if getattr(payload, name) is not None]
        values = _combine([getattr(payloads[index], name) for index in present], training) if present else []
        changed[name] = [None] * len(replies)
        for index, value in zip(present, values, strict=True):
            changed[name][index] = value
    robust = [
        replace(
            reply,
            model=list(models[index]),
            payload=replace(reply.payload, **{name: values[index] for name, values in changed.items()})
            if changed
            else reply.payload,
        )
        for index, reply in enumerate(replies)
    ]
    if training.aggregation != NORM_BOUND:
        return robust, 0
    return robust, sum(_differs(old, new, changed) for old, new in zip(replies, robust, strict=True))


def _differs(old: Reply, new: Reply, fields: dict[str, Any]) -> bool:
    pairs = [*zip(old.model, new.model, strict=True)]
    pairs += [(getattr(old.payload, name), getattr(new.payload, name)) for name in fields]
    return any(before is not after for before, after in pairs)


def _combine(
    values: Sequence[Float[np.ndarray, "*shape"]], training: TrainingSettings, base: FloatArray | None = None
) -> list[FloatArray]:
    """Return each client's robust values of one array.

    Args:
        values: The array of each client.
        training: The settings.
        base: The server's array, from which a bound is measured. None: the bound is measured from 0.
    """
    if training.aggregation == NORM_BOUND:
        steps = [value if base is None else value - base for value in values]
        bound = training.norm_bound if base is not None else 0.0
        bound = bound or float(np.median([np.linalg.norm(step.astype(np.float64)) for step in steps]))
        shortened = [bound_length(step, bound) for step in steps]
        return [
            value if new is old else (new + (0 if base is None else base)).astype(value.dtype)
            for value, old, new in zip(values, steps, shortened, strict=True)
        ]
    stack = np.stack(values).astype(np.float64)
    if training.aggregation == TRIMMED_MEAN:
        cut = min(math.ceil(round(training.trim_fraction * len(stack), 9)), (len(stack) - 1) // 2)
        stack.sort(axis=0)
        centre = stack[cut : len(stack) - cut].mean(axis=0)
    else:
        centre = np.median(stack, axis=0)
    return [centre.astype(values[0].dtype)] * len(values)
