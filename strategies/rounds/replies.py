"""What the replies of a round hold, which of them are good, and what they tell of the clients' memories.

A client's newest memory, called a state here, was made in the round of its newest good reply or, if later replies were
dropped, after it. A reply that started from an older memory, or from none, shows that the newer one is lost.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log

from payloads.record import FloatArray, IntArray, Payload, PayloadError, array
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
from strategies.rounds.errors import reason_of


@dataclass(frozen=True)
class Reply:
    """One valid reply of the client at a place in the roster."""

    place: int
    model: list[FloatArray]
    payload: Any
    num_examples: int
    # the round that made the memory the client started from, 0: none yet; None if it keeps none
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


def read_reply(question: Question, place: int, message: Message, limits: Mapping[str, int]) -> Reply:
    """Decode and validate the reply of the client at a place in the roster.

    Args:
        limits: greatest length of each dimension of its payload but ``d``, by letter.

    Raises:
        PayloadError: the message is an error, or not what was asked for.
    """
    if message.has_error():
        raise PayloadError(reason_of(message.error))
    records, server_round, phase, up = message.content, question.server_round, question.phase, question.up
    metrics = find(records, METRICS, MetricRecord)
    if metrics is None or NUM_EXAMPLES not in metrics or ROUND not in metrics:
        raise PayloadError(f"reply without the metrics {NUM_EXAMPLES!r} and {ROUND!r}")
    if metrics[ROUND] != server_round:
        raise PayloadError(f"reply of round {reprlib.repr(metrics[ROUND])}, expected {server_round}")
    allowed = {METRICS, *([] if phase else [ARRAYS]), *([PAYLOAD] if up else [])}
    if unknown := records.keys() - allowed:
        raise PayloadError(f"unknown record {min(unknown)!r}, allowed: {', '.join(sorted(allowed))}")
    model: list[FloatArray] = []
    if not phase:
        model = model_arrays(need(records, ARRAYS, ArrayRecord))
        check_model(model, question.model)
    sizes = {"d": len(question.model[0])}
    payload = up.from_record(need(records, PAYLOAD, ConfigRecord), sizes, limits) if up else None
    examples = metrics[NUM_EXAMPLES]
    if isinstance(examples, list) or not math.isfinite(examples) or examples < 0:
        raise PayloadError(f"{NUM_EXAMPLES!r} is {reprlib.repr(examples)}, expected a number >= 0")
    state_round = metrics.get(STATE_ROUND)
    if state_round is not None and not (isinstance(state_round, int) and 0 <= state_round <= server_round):
        got = reprlib.repr(state_round)
        raise PayloadError(f"{STATE_ROUND!r} is {got}, expected a round from 0 to {server_round}")
    return Reply(place, model, payload, int(examples), state_round)


@dataclass(frozen=True, eq=False)
class SiteStates(Payload):
    """A `StateLedger` as a record, for checkpoints."""

    kept: IntArray = array("n", kind="int")
    since: IntArray = array(1, kind="int")


class StateLedger:
    """When each client's memory was made, as far as the server knows.

    Attributes:
        kept: (n,) for each client that keeps a memory the newest round with a good reply from it; 0 for the others.
        since: memories made before this round no longer count; 0: all count.
    """

    def __init__(self, sites: int) -> None:
        self.kept = np.zeros(sites, dtype=np.int64)
        self.since = 0

    def snapshot(self) -> SiteStates | None:
        """The ledger as a record, or None before any client keeps a memory."""
        known = self.since or self.kept.any()
        return SiteStates(kept=self.kept.copy(), since=np.array([self.since])) if known else None

    def restore(self, states: SiteStates) -> None:
        """Continue from a `snapshot`.

        Raises:
            PayloadError: it is for another number of sites.
        """
        states.check({"n": len(self.kept)})
        self.kept, self.since = states.kept.astype(np.int64), int(states.since[0])

    def update(self, server_round: int, found: Mapping[int, Reply], joint_owner: str | None) -> list[int]:
        """Note which good replies come from clients that keep a memory.

        Args:
            found: place -> its good reply.
            joint_owner: name of the strategy if it has ``joint_states``, else None. With it, if a memory is lost, all
                clients start the next round without one.

        Returns:
            The places of the clients that have lost their memories.
        """
        made = {place: number for place in sorted(found) if (number := found[place].state_round) is not None}
        lost = [place for place, number in made.items() if number < self.kept[place]]
        named = [
            f"partition {place} has {_name_state(made[place])}, kept {_name_state(self.kept[place])}" for place in lost
        ]
        self.kept[list(made)] = server_round
        if lost:
            which = "; ".join(named[:8]) + ("; ..." if len(named) > 8 else "")
            log(WARNING, "round %d: client state lost: %s", server_round, which)
            if joint_owner is not None:
                self.kept[:], self.since = 0, server_round + 1
                told = "round %d: %s adds the clients' states up: all begin afresh in round %d"
                log(WARNING, told, server_round, joint_owner, self.since)
        return lost


def _name_state(made: int | np.int64) -> str:
    return f"that of round {made}" if made else "none"
