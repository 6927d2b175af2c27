"""An exchange between the server and some clients: it sends, retries, replaces clients, validates and counts bytes.

The replies to a round's main exchange carry models. The replies to other exchanges carry only a payload.
"""

import math
import reprlib
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log

from payloads.flower_internals import readdress, values_of
from payloads.held_out import EVALUATIONS, ScoreCounts, held_counts
from payloads.record import FloatArray, Payload, PayloadError
from payloads.wire import (
    ARRAYS,
    METRICS,
    NUM_EXAMPLES,
    PAYLOAD,
    ROUND,
    STATE_ROUND,
    check_model,
    count_bytes,
    find,
    model_arrays,
    need,
)
from problems.randomness import Purpose, stream
from strategies.rounds.errors import NO_ANSWER, StrategyError, reason_of, shorten, way_out
from strategies.rounds.family import Family
from strategies.rounds.replies import Reply


@dataclass(eq=False)
class Exchange:
    """An open exchange: the messages sent and the replies received. Clients are indexed by their place in the roster.

    Attributes:
        phase: The name of the exchange. "": the round's main exchange, whose replies carry a model.
        up: The type of the replies' payload. None: replies carry no payload.
        content: The records of every message.
        wanted: The number of good replies to aim for.
        sent: The message to each client, by place.
        found: The good replies, by place.
        reasons: The reasons of the missing good replies, by place.
        grid: The grid for retries. None: no client can be asked again.
        model: The model that was sent. A reply's model has its shapes and number types.
        report: The report of the round in which the exchange was opened.
    """

    # whether clients without a good reply may be asked again or replaced
    replaces: ClassVar[bool] = True
    # whether replies are terms of a sum
    summed: ClassVar[bool] = False

    family: Family
    server_round: int
    phase: str
    up: type[Payload] | None
    content: RecordDict
    wanted: int
    sent: dict[int, Message] = field(default_factory=dict)
    found: dict[int, Reply] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        family = self.family
        self.roster, self.grid, self.model, self.report = family.roster, family.grid, family.model, family.report

    # Out.

    @property
    def kind(self) -> str:
        """Flower's message type."""
        return MessageType.EVALUATE if self.phase in EVALUATIONS else MessageType.TRAIN

    def write(self, places: Sequence[int]) -> list[Message]:
        """Return messages to further clients, and record them."""
        ids = self.roster.node_ids
        first = Message(self.content, dst_node_id=ids[places[0]], message_type=self.kind)
        written = {place: readdress(first, ids[place]) for place in places}
        self.sent |= written
        if not self.phase:
            self.report.asked = list(dict.fromkeys([*self.report.asked, *self.sent]))
        self.report.bytes_down += len(written) * count_bytes(self.content)
        return list(written.values())

    def send(self, messages: list[Message]) -> list[Message]:
        """Send messages and return the replies. The time counts in ``exchange_seconds``."""
        assert self.grid is not None
        begun = time.perf_counter()
        replies = self.family.deliver(self.grid, messages)
        self.report.exchange_seconds += time.perf_counter() - begun
        return replies

    def wait(self) -> None:
        """Wait ``retry-wait`` seconds, since a site may need time to come back."""
        seconds = self.family.training.retry_wait
        time.sleep(seconds)
        self.report.exchange_seconds += seconds

    # Back.

    def receive(self, replies: Iterable[Message]) -> list[Reply]:
        """Return the valid replies, in order of partition id.

        With ``replace-dropped``, other clients replace the clients without a valid reply, as long as there are any. A
        strategy that ``retries_failed`` asks the same clients again.

        Raises:
            StrategyError: Fewer than ``min-train-nodes`` replies are valid, or a client still fails after
                ``max-retries`` retries.
        """
        self.found, self.reasons = {}, {}
        self.sort(replies)
        asked_again = 0
        while self.grid is not None and len(self.found) < self.wanted:
            places = self.choose_next(asked_again)
            if not places:
                break
            self.sort(self.send(self.write(places)))
            asked_again += 1
        return self.close()

    def sort(self, replies: Iterable[Message]) -> None:
        """Put each good reply into ``found``, and the reason of each missing reply into ``reasons``."""
        places = {message.metadata.message_id: place for place, message in self.sent.items()}
        for message in replies:
            place = places.get(message.metadata.reply_to_message_id)
            if place is None or place in self.found:
                what = "a reply to no message of this round" if place is None else "a second reply to one message"
                log(WARNING, "round %d: %s was ignored", self.server_round, what)
                continue
            if message.has_content():
                self.report.bytes_up += count_bytes(message.content)
            try:
                self.found[place] = self.read(place, message)
                self.reasons.pop(place, None)
            except PayloadError as error:
                self.reasons[place] = shorten(str(error))
        for place in self.sent:
            if place not in self.found:
                self.reasons.setdefault(place, NO_ANSWER)

    def read(self, place: int, message: Message) -> Reply:
        """Decode and validate the reply of the client at a place in the roster.

        Raises:
            PayloadError: The message is an error, or does not answer the question.
        """
        if message.has_error():
            raise PayloadError(reason_of(message.error))
        records, server_round = message.content, self.server_round
        record = find(records, METRICS, MetricRecord)
        metrics = {} if record is None else values_of(record)
        if NUM_EXAMPLES not in metrics or ROUND not in metrics:
            raise PayloadError(f"reply without the metrics {NUM_EXAMPLES!r} and {ROUND!r}")
        if metrics[ROUND] != server_round:
            raise PayloadError(f"reply of round {reprlib.repr(metrics[ROUND])}, expected {server_round}")
        allowed = {METRICS, *self.expected}
        if not allowed.issuperset(values_of(records)):
            unknown = min(records.keys() - allowed)
            raise PayloadError(f"unknown record {unknown!r}, allowed: {', '.join(sorted(allowed))}")
        model, payload = self.read_values(place, records)
        examples = metrics[NUM_EXAMPLES]
        if isinstance(examples, list) or not math.isfinite(examples) or examples < 0:
            raise PayloadError(f"{NUM_EXAMPLES!r} is {reprlib.repr(examples)}, expected a number >= 0")
        made = metrics.get(STATE_ROUND)
        if made is not None and not (isinstance(made, int) and 0 <= made <= server_round):
            got = reprlib.repr(made)
            raise PayloadError(f"{STATE_ROUND!r} is {got}, expected a round from 0 to {server_round}")
        return Reply(place, model, payload, int(examples), made)

    @property
    def expected(self) -> set[str]:
        """The names of a reply's records, except its metrics."""
        return {*([] if self.phase else [ARRAYS]), *([PAYLOAD] if self.up else [])}

    def read_values(self, place: int, records: RecordDict) -> tuple[list[FloatArray], Any]:
        """Decode and validate the model and the payload of a reply.

        Raises:
            PayloadError: Model or payload is missing or malformed.
        """
        model: list[FloatArray] = []
        if not self.phase:
            model = model_arrays(need(records, ARRAYS, ArrayRecord))
            check_model(model, self.model)
        payload = None
        if self.up is not None:
            sizes = {"d": len(self.model[0])} if self.model else {}
            payload = self.up.from_record(need(records, PAYLOAD, ConfigRecord), sizes, self.limits(place))
            self.check_payload(place, payload)
        return model, payload

    def limits(self, place: int) -> Mapping[str, int]:
        """Bound a client's payload; see `Family.limits`."""
        return self.family.limits(place)

    def check_payload(self, place: int, payload: Any) -> None:
        """Check the values of a well-formed payload.

        Raises:
            PayloadError: The values are impossible.
        """
        if isinstance(payload, ScoreCounts):
            payload.check_rows(held_counts(self.roster.reports[place], self.phase))
        else:
            self.family.check_payload(payload)

    def choose_next(self, asked_again: int) -> list[int]:
        """Return the clients to ask next: the clients without a good reply, their replacements, or none.

        Args:
            asked_again: The number of retries so far.
        """
        training, server_round = self.family.training, self.server_round
        if not self.replaces:
            return []
        if self.family.traits.retries_failed:
            if asked_again == training.max_retries:
                return []
            named = "; ".join(f"{self.roster.label(place)}: {reason}" for place, reason in self.reasons.items())
            log(WARNING, "round %d: retry %d of %d: %s", server_round, asked_again + 1, training.max_retries, named)
            missing = sorted(self.reasons)
            self.reasons.clear()
            self.wait()
            return missing
        others = [place for place in range(len(self.roster)) if place not in self.sent]
        if not others or not training.replace_dropped:
            return []
        keys = (server_round, len(self.sent), zlib.crc32(self.phase.encode()))
        count = min(self.wanted - len(self.found), len(others))
        chosen = stream(training.seed, Purpose.REPLACEMENTS, *keys).choice(others, count, replace=False)
        return sorted(chosen.tolist())

    # The end.

    def close(self) -> list[Reply]:
        """Report the answers and the dropped clients, and return the good replies in order of partition id.

        Raises:
            StrategyError: Too few replies are good.
        """
        phase, server_round, report = self.phase, self.server_round, self.report
        where = f"{phase} phase: " if phase else ""
        dropped = {place: where + self.reasons[place] for place in sorted(self.reasons)}
        for place, reason in dropped.items():
            log(WARNING, "round %d: dropped the reply of %s: %s", server_round, self.roster.label(place), reason)
            report.dropped[place] = f"{report.dropped[place]}; {reason}" if place in report.dropped else reason
        if not phase:
            report.answered = sorted(self.found)
        self.check_enough(dropped)
        if not phase:
            owner = type(self.family).__name__ if self.family.traits.joint_states else None
            self.family.states, report.state_lost = self.family.states.update(
                server_round, self.found, owner, self.roster.label
            )
        return [self.found[place] for place in sorted(self.found)]

    def check_enough(self, dropped: Mapping[int, str]) -> None:
        """Check that enough replies are good.

        Args:
            dropped: The reason why each client was dropped, by place.

        Raises:
            StrategyError: Fewer than ``min-train-nodes`` replies are good, or every client must answer and one did not.
        """
        family, training, round_ = self.family, self.family.training, f"round {self.server_round}"
        diverged = next((reason for reason in dropped.values() if "not finite" in reason), None)
        advice = f"; {way_out(diverged, family.steps())}" if diverged else ""
        place, reason = next(iter(dropped.items()), (None, "no client was asked"))
        label = "no site" if place is None else self.roster.label(place)
        if family.traits.retries_failed and dropped:
            raise StrategyError(
                f"{round_}: {label} gave no good reply, max-retries is {training.max_retries}: {reason}; "
                f"{type(family).__name__} {family.traits.needs_all_clients}{advice}"
            )
        fewest, given = training.fewest_replies(self.wanted), training.min_train_nodes
        if len(self.found) < fewest:
            limit = f"{given}{'' if fewest == given else f', here {fewest}'}"
            raise StrategyError(
                f"{round_}: {len(self.found)} good replies of {len(self.sent)}, min-train-nodes is {limit}; "
                f"{label}: {reason}{advice}"
            )
