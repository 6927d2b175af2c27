"""What every strategy of ours is: a drop-in ``flwr.serverapp.strategy.Strategy`` whose messages carry a payload.

The base class does what does not depend on the algorithm: the handshake, seeded sampling by partition id, messages,
validation of every reply, byte counts, and the plain mean of the models. A family overrides four small methods:
`prologue` (an exchange before round 1), `down` (what goes out), `combine` (what the replies become) and the pair
`snapshot` / `restore` (its state as one record). It runs in our round loop and in Flower's own ``Strategy.start``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from payloads.record import FloatArray, Payload, PayloadError
from payloads.settings import Settings, TrainingSettings
from payloads.wire import (
    ARRAYS,
    METRICS,
    NUM_EXAMPLES,
    PAYLOAD,
    ROUND,
    check_model,
    content,
    count_bytes,
    find,
    model_arrays,
    model_record,
    need,
    payload_record,
)
from strategies.roster import Roster, StrategyError, call_the_roll, reason_of


@dataclass(frozen=True)
class Reply:
    """One valid answer: the client's place in the roster, its model, its payload, its number of examples."""

    place: int
    model: list[FloatArray]
    payload: Any
    num_examples: int


@dataclass
class RoundReport:
    """What a round cost and who took part; places are partition ids."""

    asked: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0


def mean_model(replies: Sequence[Reply]) -> list[FloatArray]:
    """The plain mean of the replies' models, array by array, in the order of the partition ids."""
    return [mean([reply.model[i] for reply in replies]) for i in range(len(replies[0].model))]


def mean(values: Sequence[FloatArray]) -> FloatArray:
    """The plain mean of equal-shaped arrays, accumulated in float64 and rounded once."""
    total = np.zeros(values[0].shape, dtype=np.float64)
    for value in values:
        total += value
    averaged: FloatArray = (total / len(values)).astype(values[0].dtype)
    return averaged


class PayloadStrategy(Strategy):
    """Base of all strategies.

    Args:
        training: the common settings (fractions, seed, timeouts, local steps).
        settings: the family's own settings.
    """

    down_type: ClassVar[type[Payload] | None] = None
    up_type: ClassVar[type[Payload] | None] = None
    state_type: ClassVar[type[Payload] | None] = None

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        self.training = training or TrainingSettings()
        self.settings = settings
        # fixed by the handshake
        self.roster: Roster | None = None
        # of the round under way
        self.report = RoundReport()
        self._model: list[FloatArray] = []
        self._pending: list[tuple[int, Message]] = []
        self._prepared = False
        # set by whoever runs the rounds: scalars for every message's config, paths on a shared disk
        self.extra_config: dict[str, int | str] = {}
        self.local: dict[str, str] = {}

    # What a family overrides.

    def prologue(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Exchange whatever the algorithm needs before its first round."""

    def down(self, server_round: int) -> Payload | None:
        """The payload for the round's clients, the same for all."""
        return None

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        """The new model and the metrics of the round, from the valid replies in order of partition id."""
        return mean_model(replies), {}

    def check_payload(self, payload: Any) -> None:
        """Raise `PayloadError` for a payload that is well-formed but impossible."""

    def snapshot(self) -> Payload | None:
        """The strategy's state as one record, or None before there is any."""
        return None

    def restore(self, state: Payload) -> None:
        """Continue from a `snapshot`."""

    # Flower's interface.

    def join(self, grid: Grid) -> Roster:
        """The handshake, once."""
        if self.roster is None:
            roster = call_the_roll(grid, self.training.handshake_timeout)
            self.roster = roster
            self.meet(roster)
        return self.roster

    def prepare(self, arrays: ArrayRecord, grid: Grid) -> Roster:
        """Handshake and prologue, once; `configure_train` does it where nobody has."""
        roster = self.join(grid)
        if not self._prepared:
            self.report = RoundReport(bytes_up=roster.bytes_up, bytes_down=roster.bytes_down)
            self._model = model_arrays(arrays)
            if self.snapshot() is None:
                self.prologue(arrays, grid)
            self._prepared = True
        return roster

    def meet(self, roster: Roster) -> None:
        """Look at the sites before anything is sent; raise `StrategyError` where they do not fit."""

    def check_batch(self, roster: Roster, key: str, batch_size: int, kind: str, held: Sequence[int]) -> None:
        """Name the sites that cannot fill a batch: theirs is all they have. Refuse a batch larger than all sites.

        Args:
            key: the run-config key of the batch size.
            kind: what a batch is made of, e.g. "positives".
            held: how many of them each site holds, in the roster's order.
        """
        if batch_size > sum(held):
            raise StrategyError(f"{key}: got {batch_size}, but all {len(held)} sites together hold {sum(held)} {kind}")
        small = [(report.partition_id, count) for report, count in zip(roster.reports, held, strict=True)]
        named = [f"{partition} ({count})" for partition, count in small if count < batch_size]
        if named:
            log(
                WARNING,
                "%s = %d: %d of %d sites hold fewer %s and take all they have: partition %s",
                key,
                batch_size,
                len(named),
                len(held),
                kind,
                ", ".join(named[:8]) + (", ..." if len(named) > 8 else ""),
            )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample the round's clients and make their messages."""
        roster = self.prepare(arrays, grid)
        self.report = RoundReport()
        self._model = model_arrays(arrays)
        training = self.training
        places = roster.sample(training.fraction_train, training.min_train_nodes, training.seed, server_round)
        return self.messages(server_round, places, arrays, self.down(server_round), config)

    def messages(
        self,
        server_round: int,
        places: Sequence[int],
        arrays: ArrayRecord,
        payload: Payload | None,
        config: ConfigRecord | None = None,
    ) -> list[Message]:
        """One train message a client; the records are made once and shared."""
        assert self.roster is not None
        scalars = ConfigRecord({**(config or {}), **self.extra_config, ROUND: server_round})
        extras = payload_record(payload)
        local = ConfigRecord(dict(self.local)) if self.local else None
        messages = [
            Message(
                content(arrays=arrays, config=scalars, payload=extras, local=local),
                dst_node_id=self.roster.node_ids[place],
                message_type=MessageType.TRAIN,
            )
            for place in places
        ]
        self._pending = list(zip(places, messages, strict=True))
        self.report.asked = [self.roster.reports[place].partition_id for place in places]
        self.report.bytes_down += sum(count_bytes(message.content) for message in messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Validate the replies, drop and name the bad ones, and combine the rest."""
        valid = self.receive(server_round, replies)
        arrays, metrics = self.combine(server_round, valid)
        return model_record(arrays), MetricRecord({NUM_EXAMPLES: sum(r.num_examples for r in valid), **metrics})

    def receive(self, server_round: int, replies: Iterable[Message], *, with_model: bool = True) -> list[Reply]:
        """The valid replies in order of partition id.

        Raises:
            StrategyError: fewer than ``min-train-nodes`` are left.
        """
        assert self.roster is not None
        places = {message.metadata.message_id: place for place, message in self._pending}
        found: dict[int, Reply] = {}
        reasons: dict[int, str] = {}
        for message in replies:
            place = places.get(message.metadata.reply_to_message_id)
            if place is None:
                log(WARNING, "round %d: a reply to no message of this round was ignored", server_round)
                continue
            if place in found:
                log(WARNING, "round %d: a second reply to one message was ignored", server_round)
                continue
            if message.has_content():
                self.report.bytes_up += count_bytes(message.content)
            try:
                found[place] = self._read(server_round, place, message, with_model)
            except PayloadError as error:
                reasons[place] = str(error)
        for place, _ in self._pending:
            if place not in found:
                reasons.setdefault(place, "no answer")
        partition = {place: self.roster.reports[place].partition_id for place in (*found, *reasons)}
        self.report.answered = sorted(partition[place] for place in found)
        self.report.dropped = {partition[place]: reasons[place] for place in sorted(reasons)}
        for site, reason in self.report.dropped.items():
            log(WARNING, "round %d: dropped the reply of partition %d: %s", server_round, site, reason)
        if len(found) < self.training.min_train_nodes:
            first = next(iter(self.report.dropped.items()), (None, "nobody was asked"))
            raise StrategyError(
                f"round {server_round}: {len(found)} good replies of {len(self._pending)}, min-train-nodes is "
                f"{self.training.min_train_nodes}; partition {first[0]}: {first[1]}"
            )
        return [found[place] for place in sorted(found)]

    def _read(self, server_round: int, place: int, message: Message, with_model: bool) -> Reply:
        if message.has_error():
            raise PayloadError(reason_of(message.error))
        records = message.content
        metrics = find(records, METRICS, MetricRecord)
        if metrics is None or NUM_EXAMPLES not in metrics or ROUND not in metrics:
            raise PayloadError(f"reply without the metrics {NUM_EXAMPLES!r} and {ROUND!r}")
        if metrics[ROUND] != server_round:
            raise PayloadError(f"reply of round {metrics[ROUND]}, expected {server_round}")
        model: list[FloatArray] = []
        if with_model:
            model = model_arrays(need(records, ARRAYS, ArrayRecord))
            check_model(model, self._model)
        payload = None
        if self.up_type is not None:
            payload = self.up_type.from_record(need(records, PAYLOAD, ConfigRecord), {"d": len(self._model[0])})
            self.check_payload(payload)
        examples = metrics[NUM_EXAMPLES]
        if isinstance(examples, list) or not math.isfinite(examples) or examples < 0:
            raise PayloadError(f"{NUM_EXAMPLES!r} is {examples}, expected a number >= 0")
        return Reply(place, model, payload, int(examples))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Evaluation is the server's, on its test set: no site is asked."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing was asked, so there is nothing to aggregate."""
        return None

    def summary(self) -> None:
        """Log the settings."""
        log(INFO, "\t%s: %s %s", type(self).__name__, self.training, self.settings or "")
