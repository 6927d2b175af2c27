"""Means over clients that a few bad clients cannot ruin.

The clients' points, and the fields of their payloads of which a method needs the mean, are changed before the method
reads them, so every method whose server half is a mean has these means, too.

- ``trimmed-mean`` (D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning", ICML 2018):
  in each coordinate the largest and the smallest values are left out.
- ``median``: the median of each coordinate.
- ``norm-bound`` (Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan, "Can You Really Backdoor Federated Learning?", 2019):
  a client's step is shortened to a bound; without a number, to the median length of the round's steps.
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

# the fewest clients of which one can be outvoted
FEWEST = 3


class RobustMeans(ExchangeGuard):
    """Makes the means of a round robust, unless they are means already when they arrive."""

    def check(self, family: Family, clients: int) -> None:
        """Refuse a robust mean over too few clients."""
        aggregation = family.training.aggregation
        if aggregation != MEAN and clients < FEWEST:
            got, hint = (
                f"{aggregation!r} over {clients} clients a round",
                "set aggregation to mean, or raise fraction-train",
            )
            raise SetupError("aggregation", got=got, allowed=f"{FEWEST} clients or more", hint=hint)

    def at_server(self, exchange: Exchange, places: Sequence[int], proceed: Proceed) -> Steps:
        valid, training, report = (yield from proceed(exchange, places)), exchange.family.training, exchange.report
        if training.aggregation == MEAN or exchange.summed or not valid:
            return valid
        valid, bounded = make_robust(valid, training, exchange.model)
        if training.aggregation == NORM_BOUND:
            report.extras["bounded_clients"] = bounded + report.extras.get("bounded_clients", 0)
        return valid


def make_robust(
    replies: Sequence[Reply], training: TrainingSettings, model: Sequence[FloatArray]
) -> tuple[list[Reply], int]:
    """Change a round's good replies so that a mean over them is a robust one.

    With a trimmed mean or a median each reply gets that value, and clients count the same. With a bound each reply
    keeps its own values, and clients keep their weights.

    Args:
        replies: The good replies.
        training: The settings; `TrainingSettings.aggregation` is not "mean".
        model: The server's model, from which the clients started.

    Returns:
        The replies, and the number of clients of which something was shortened; 0 without a bound.
    """
    sent = len(replies[0].model)  # none in an exchange without models
    points = [_combine([reply.model[part] for reply in replies], training, model[part]) for part in range(sent)]
    models = list(zip(*points, strict=True)) if sent else [()] * len(replies)
    payloads = [reply.payload for reply in replies]
    fields = {} if payloads[0] is None else specs_of(type(payloads[0]))
    changed: dict[str, list[Any]] = {}
    for name in (name for name, spec in fields.items() if spec.combined == "mean"):
        places = [place for place, payload in enumerate(payloads) if getattr(payload, name) is not None]
        values = _combine([getattr(payloads[place], name) for place in places], training) if places else []
        changed[name] = [None] * len(replies)
        for place, value in zip(places, values, strict=True):
            changed[name][place] = value
    robust = [
        replace(
            reply,
            model=list(models[place]),
            payload=replace(reply.payload, **{name: values[place] for name, values in changed.items()})
            if changed
            else reply.payload,
        )
        for place, reply in enumerate(replies)
    ]
    if training.aggregation != NORM_BOUND:
        return robust, 0
    return robust, sum(_differs(old, new, changed) for old, new in zip(replies, robust, strict=True))


def _differs(old: Reply, new: Reply, fields: dict[str, Any]) -> bool:
    pairs = [*zip(old.model, new.model, strict=True)]
    pairs += [(getattr(old.payload, name), getattr(new.payload, name)) for name in fields]
    return any(one is not other for one, other in pairs)


def _combine(
    values: Sequence[Float[np.ndarray, "*shape"]], training: TrainingSettings, base: FloatArray | None = None
) -> list[FloatArray]:
    """The clients' values of one array, changed.

    Args:
        values: The array of each client.
        training: The settings.
        base: The server's array, from which a bound counts; None: it counts from 0.
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
