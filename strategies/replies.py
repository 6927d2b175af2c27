"""A round's exchanges and replies, and the means over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from payloads.record import FloatArray, IntArray, Payload, array

# (k,) in float64; ones make the plain mean, to the bit
Weights = NDArray[np.float64]
# why a client that sent nothing gave no good reply
NO_ANSWER = "no answer"
# characters of a reason that are kept: a site may have chosen its words
LONGEST_REASON = 1000


def shortened(reason: str) -> str:
    """A reason on one line and of a length fit for a log."""
    kept = "".join(char if char.isprintable() else " " for char in reason[:LONGEST_REASON])
    return kept if len(reason) <= LONGEST_REASON else f"{kept}... ({len(reason) - LONGEST_REASON} more characters)"


def way_out(reason: str, steps: str) -> str:
    """What to do about a site that is dropped again and again; ``steps``: the keys of step sizes."""
    if "not finite" in reason:
        return f"its steps are too large: lower {steps}"
    if NO_ANSWER in reason:
        return "start it again, or raise round-timeout where it is only slow"
    return "its own log says more"


@dataclass(frozen=True)
class Reply:
    """One valid answer: the client's place in the roster, its model, its payload, its number of examples.

    ``state_round``: the round that made the state the client started from, 0 for none; None where it keeps none.
    """

    place: int
    model: list[FloatArray]
    payload: Any
    num_examples: int
    state_round: int | None = None


@dataclass
class RoundReport:
    """What a round cost and who took part; places are partition ids."""

    asked: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    # whose replies counted although their states were lost
    state_lost: list[int] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0
    # spent in exchanges that the strategy makes itself
    exchange_seconds: float = 0.0
    # what clients measured of their own time, by name
    timings: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SiteStates(Payload):
    """What a server knows of the states that its clients keep; a checkpoint holds it."""

    # of each site, the newest round whose good reply said that it keeps one; 0: none
    kept: IntArray = array("n", kind="int")
    # states made before this round count no more; 0: all do
    since: IntArray = array(1, kind="int")


@dataclass
class Exchange:
    """What one exchange sends to whom, and what it wants back.

    Attributes:
        wanted: how many replies it was opened for.
        content: what its messages carry, one object for all.
        sent: place -> message, of everyone asked so far.
        phase: "" for a round's own exchange, else the name of the one before it.
        up: the type of the replies' payload, or None.
    """

    wanted: int
    content: RecordDict
    sent: dict[int, Message]
    phase: str
    up: type[Payload] | None


def pooled_moments(
    counts: NDArray[np.float64], means: NDArray[np.float64], variances: NDArray[np.float64]
) -> tuple[Any, Any]:
    """Mean and variance of the union of N samples, from each one's number, mean (N, ...) and variance (N, ...).

    m = sum n_i m_i / n and v = sum n_i (v_i + (m_i - m)^2) / n; 0 of both where there is nothing.
    """
    weights = counts.reshape(-1, *[1] * (means.ndim - 1))
    total = max(counts.sum(), 1.0)
    mean = (weights * means).sum(axis=0) / total
    return mean, (weights * (variances + (means - mean) ** 2)).sum(axis=0) / total


def mean_model(replies: Sequence[Reply], weights: Weights | None = None) -> list[FloatArray]:
    """The mean of the replies' models, array by array, in the order of the partition ids."""
    return [mean([reply.model[0] for reply in replies], weights), *mean_buffers(replies, weights)]


def mean_buffers(replies: Sequence[Reply], weights: Weights | None = None) -> list[FloatArray]:
    """The means of what the replies' models hold beside their parameters: batch-norm statistics."""
    return [mean([reply.model[i] for reply in replies], weights) for i in range(1, len(replies[0].model))]


def step_towards(
    replies: Sequence[Reply], start: FloatArray, rate: float, weights: Weights | None = None
) -> FloatArray:
    """(d,) start + rate (mean of the replies' parameters - start), in float64 until rounded."""
    begun = start.astype(np.float64)
    moved = exact_mean([reply.model[0] for reply in replies], weights) - begun
    result: FloatArray = (begun + rate * moved).astype(start.dtype)
    return result


def mean(values: Sequence[FloatArray], weights: Weights | None = None) -> FloatArray:
    """The mean of equal-shaped arrays, accumulated in float64 and rounded once."""
    averaged: FloatArray = exact_mean(values, weights).astype(values[0].dtype)
    return averaged


def exact_mean(values: Sequence[FloatArray], weights: Weights | None = None) -> NDArray[np.float64]:
    """The mean of k equal-shaped arrays in float64, plain or times (k,) weights whose mean is 1."""
    total = np.zeros(values[0].shape, dtype=np.float64)
    for place, value in enumerate(values):
        total += value if weights is None else weights[place] * value.astype(np.float64)
    return total / len(values)
