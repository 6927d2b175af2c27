"""What the replies of a round hold, which of them are good, and the means over the good ones."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from payloads.record import FloatArray, Payload, PayloadError
from payloads.wire import (
    ARRAYS,
    METRICS,
    NUM_EXAMPLES,
    PAYLOAD,
    ROUND,
    STATE_ROUND,
    check_model,
    find,
    model_arrays,
    need,
)
from problems.means import Weights, mean
from strategies.rounds.errors import reason_of


@dataclass(frozen=True)
class Reply:
    """One valid reply: the client's place in the roster, its model, its payload, its number of examples.

    ``state_round``: the round that made the memory the client started from, 0: none yet; None if it keeps none.
    """

    place: int
    model: list[FloatArray]
    payload: Any
    num_examples: int
    state_round: int | None = None


@dataclass
class RoundReport:
    """What a round cost and who took part, by partition id."""

    asked: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    # clients whose replies counted although their memories were lost
    state_lost: list[int] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0
    # spent on messages that the strategy sends itself: in further exchanges, retries and replacements
    exchange_seconds: float = 0.0
    # times that clients measured themselves, by name
    timings: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """What the replies of an exchange must hold.

    Attributes:
        server_round: the round that the replies answer.
        phase: "" for a round's own exchange, whose replies bring a model; else the name of another exchange.
        up: the type of the replies' payload; None if they carry none.
        model: the model that was sent; a reply's model has its shapes and number types.
    """

    server_round: int
    phase: str
    up: type[Payload] | None
    model: list[FloatArray]


def read_reply(
    question: Question,
    place: int,
    message: Message,
    limits: Callable[[int], Mapping[str, int]],
    check_payload: Callable[[int, Any], None],
) -> Reply:
    """Decode and validate the reply of the client at a place in the roster.

    Args:
        limits: place -> greatest length of each dimension of its payload but ``d``, by letter.
        check_payload: (place, payload); raises `PayloadError` for one that is well-formed but impossible.

    Raises:
        PayloadError: the message is an error, or not what was asked for.
    """
    if message.has_error():
        raise PayloadError(reason_of(message.error))
    records, server_round = message.content, question.server_round
    metrics = find(records, METRICS, MetricRecord)
    if metrics is None or NUM_EXAMPLES not in metrics or ROUND not in metrics:
        raise PayloadError(f"reply without the metrics {NUM_EXAMPLES!r} and {ROUND!r}")
    if metrics[ROUND] != server_round:
        raise PayloadError(f"reply of round {reprlib.repr(metrics[ROUND])}, expected {server_round}")
    allowed = {METRICS} | ({ARRAYS} if not question.phase else set()) | ({PAYLOAD} if question.up else set())
    if unknown := records.keys() - allowed:
        raise PayloadError(f"unknown record {min(unknown)!r}, allowed: {', '.join(sorted(allowed))}")
    model: list[FloatArray] = []
    if not question.phase:
        model = model_arrays(need(records, ARRAYS, ArrayRecord))
        check_model(model, question.model)
    payload = None
    if question.up is not None:
        sizes = {"d": len(question.model[0])}
        payload = question.up.from_record(need(records, PAYLOAD, ConfigRecord), sizes, limits(place))
        check_payload(place, payload)
    examples = metrics[NUM_EXAMPLES]
    if isinstance(examples, list) or not math.isfinite(examples) or examples < 0:
        raise PayloadError(f"{NUM_EXAMPLES!r} is {reprlib.repr(examples)}, expected a number >= 0")
    state_round = metrics.get(STATE_ROUND)
    if state_round is not None and not (isinstance(state_round, int) and 0 <= state_round <= server_round):
        got = reprlib.repr(state_round)
        raise PayloadError(f"{STATE_ROUND!r} is {got}, expected a round from 0 to {server_round}")
    return Reply(place, model, payload, int(examples), state_round)


def mean_model(replies: Sequence[Reply], weights: Weights | None = None) -> list[FloatArray]:
    """The mean of the replies' models, array by array, in the order of the partition ids."""
    return [mean([reply.model[0] for reply in replies], weights), *mean_buffers(replies, weights)]


def mean_buffers(replies: Sequence[Reply], weights: Weights | None = None) -> list[FloatArray]:
    """The means of the models' arrays other than the parameters: batch-norm statistics."""
    return [mean([reply.model[i] for reply in replies], weights) for i in range(1, len(replies[0].model))]
