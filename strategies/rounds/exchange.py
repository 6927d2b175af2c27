"""An exchange: the server sends one message to each of some clients, and validates and collects their replies.

An exchange also retries failed clients or replaces them with other clients, and counts bytes. The replies to a round's
main exchange carry models. The replies to other exchanges carry only a payload, a typed record.
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

from payloads.broadcast import BlockReplies, Broadcast
from payloads.flower_internals import values_of
from payloads.held_out import BINS, EVALUATIONS, HELD_OUT_RECORDS, OF_GROUPS, SetCounts, held_counts
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
from strategies.rounds.errors import NO_ANSWER, StrategyError, advise, reason_of, shorten
from strategies.rounds.family import Family
from strategies.rounds.replies import Reply


@dataclass(eq=False)
class Exchange:
    """An open exchange: the messages sent and the replies received. A client is identified by its partition id.

    Attributes:
        family: The strategy.
        phase: The name of the exchange. "": the round's main exchange, whose replies carry a model.
        up: The type of the replies' payload. None: replies carry no payload.
        content: The records of every message.
        wanted: The number of good replies to aim for.
        sent: The messages, each sequence of them with the partition ids of its receivers.
        good_replies: The good replies, by partition id.
        reasons: For each client without a good reply, the reason, by partition id.
        grid: The grid for retries. None: no client can be asked again.
        model: The model that was sent. A reply's model must have the same shapes and number types.
        report: The report of the round in which the exchange was opened.
    """

    # whether clients without a good reply may be asked again or replaced
    replaces: ClassVar[bool] = True
    # whether the replies are masked terms of a secure sum, which have no meaning one by one
    summed: ClassVar[bool] = False
    # whether `read` checks no more than a reply's own values, so replies can be checked together
    reads_blocks: ClassVar[bool] = True

    family: Family
    server_round: int
    phase: str
    up: type[Payload] | None
    content: RecordDict
    wanted: int
    sent: list[tuple[Sequence[int], Sequence[Message]]] = field(default_factory=list)
    good_replies: dict[int, Reply] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        family = self.family
        self.roster, self.grid, self.model, self.report = family.roster, family.grid, family.model, family.report

    # Messages.

    @property
    def kind(self) -> str:
        """Flower's message type."""
        return MessageType.EVALUATE if self.phase in EVALUATIONS else MessageType.TRAIN

    @property
    def asked(self) -> dict[int, None]:
        """The partition ids of the clients that were asked, each once, in the order of the first messages."""
        return dict.fromkeys(client for clients, _ in self.sent for client in clients)

    @property
    def receivers(self) -> dict[str, int]:
        """The partition id of each message's receiver, by the message's id."""
        return {
            message.metadata.message_id: client
            for clients, messages in self.sent
            for client, message in zip(clients, messages, strict=True)
        }

    def write(self, clients: Sequence[int]) -> Sequence[Message]:
        """Return messages to further clients, and record them."""
        ids = self.roster.node_ids
        cohort = Broadcast(self.content, [ids[client] for client in clients], self.kind)
        self.sent.append((clients, cohort))
        if not self.phase:
            self.report.asked = list(dict.fromkeys([*self.report.asked, *clients]))
        self.report.bytes_down += len(cohort) * count_bytes(self.content)
        return cohort

    def send(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Send messages and return the replies. The time counts in ``exchange_seconds``."""
        assert self.grid is not None
        begun = time.perf_counter()
        replies = self.family.deliver(self.grid, messages)
        self.report.exchange_seconds += time.perf_counter() - begun
        return replies

    def wait(self) -> None:
        """Wait ``retry-wait`` seconds, since a failed site may need time to restart."""
        seconds = self.family.training.retry_wait
        time.sleep(seconds)
        self.report.exchange_seconds += seconds

    # Replies.

    def receive(self, replies: Iterable[Message]) -> list[Reply]:
        """Validate the replies, and retry or replace failed clients. Return the good replies by partition id.

        With ``replace-dropped``, clients that were not asked yet replace the clients without a valid reply. A strategy
        with ``retries_failed`` asks the same clients again.

        Raises:
            StrategyError: Fewer than ``min-train-nodes`` replies are valid, or a client still fails after
                ``max-retries`` retries.
        """
        self.good_replies, self.reasons = {}, {}
        self.sort(replies)
        asked_again = 0
        while self.grid is not None and len(self.good_replies) < self.wanted:
            clients = self.choose_next(asked_again)
            if not clients:
                break
            self.sort(self.send(self.write(clients)))
            asked_again += 1
        return self.close()

    def sort(self, replies: Iterable[Message]) -> None:
        """Add each good reply to ``good_replies``, and the reason for each missing or bad reply to ``reasons``."""
        if self.reads_blocks and isinstance(replies, BlockReplies):
            replies = self.sort_block(replies)
        replies = list(replies)
        receivers = self.receivers if replies else {}
        for message in replies:
            client = receivers.get(message.metadata.reply_to_message_id)
            if client is None or client in self.good_replies:
                what = "a reply to no message of this round" if client is None else "a second reply to one message"
                log(WARNING, "round %d: %s was ignored", self.server_round, what)
                continue
            if message.has_content():
                self.report.bytes_up += count_bytes(message.content)
            try:
                self.good_replies[client] = self.read(client, message)
                self.reasons.pop(client, None)
            except PayloadError as error:
                self.reasons[client] = shorten(str(error))
        if len(self.good_replies) < len(asked := self.asked):
            for client in asked:
                if client not in self.good_replies:
                    self.reasons.setdefault(client, NO_ANSWER)

    def sort_block(self, replies: BlockReplies) -> list[Message]:
        """Add the sound replies in blocks to ``good_replies``, and return all other replies."""
        clients, cohort = self.sent[-1]
        if cohort is not replies.cohort or self.phase:
            return list(replies)
        others, good = list(replies.apart), self.good_replies
        checks = self.up is not None and self.family.checks_payloads
        for block, places in replies.blocks:
            sound, before = block.find_sound(self.server_round, self.model, self.up), len(good)
            lengths = block.lengths
            rounds = None if block.state_rounds is None else block.state_rounds.tolist()
            for row, (place, point, right) in enumerate(zip(places, block.points, sound.tolist(), strict=True)):
                client, payload = clients[place], None if block.up is None else block.payload(row)
                right = right and (not lengths or self.is_within_limits(client, lengths))
                if not right or client in good or (checks and not self.is_right(client, payload)):
                    others.append(place)
                    continue
                state_round = None if rounds is None else rounds[row]
                good[client] = Reply(client, [point], payload, block.examples[row], state_round)
                self.reasons.pop(client, None)
            self.report.bytes_up += block.nbytes // len(places) * (len(good) - before)
        return [replies[place] for place in sorted(others)]

    def is_within_limits(self, client: int, lengths: Mapping[str, int]) -> bool:
        """Return whether a client may send arrays of these lengths."""
        limits = self.limits(client)
        return all(length <= limits.get(letter, -1) for letter, length in lengths.items())

    def is_right(self, client: int, payload: Any) -> bool:
        """Return whether the values of a well-formed payload are possible; see `check_payload`."""
        try:
            self.check_payload(client, payload)
        except PayloadError:
            return False
        return True

    def read(self, client: int, message: Message) -> Reply:
        """Decode and validate a client's reply.

        Raises:
            PayloadError: The message is an error, or is not a valid reply to this exchange.
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
        model, payload = self.read_values(client, records)
        examples = metrics[NUM_EXAMPLES]
        if isinstance(examples, list) or not math.isfinite(examples) or examples < 0:
            raise PayloadError(f"{NUM_EXAMPLES!r} is {reprlib.repr(examples)}, expected a number >= 0")
        state_round = metrics.get(STATE_ROUND)
        if state_round is not None and not (isinstance(state_round, int) and 0 <= state_round <= server_round):
            got = reprlib.repr(state_round)
            raise PayloadError(f"{STATE_ROUND!r} is {got}, expected a round from 0 to {server_round}")
        return Reply(client, model, payload, int(examples), state_round)

    @property
    def expected(self) -> set[str]:
        """The names of a reply's records, except its metrics."""
        return {*([] if self.phase else [ARRAYS]), *([PAYLOAD] if self.up else [])}

    def read_values(self, client: int, records: RecordDict) -> tuple[list[FloatArray], Any]:
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
            payload = self.up.from_record(need(records, PAYLOAD, ConfigRecord), sizes, self.limits(client))
            self.check_payload(client, payload)
        return model, payload

    def limits(self, client: int) -> Mapping[str, int]:
        """Bound the size of a client's payload; see `Family.limits`."""
        sets = self.family.sets
        return {**self.family.limits(client), "s": sets * BINS, "w": sets} if sets else self.family.limits(client)

    def check_payload(self, client: int, payload: Any) -> None:
        """Check the values of a well-formed payload.

        Raises:
            PayloadError: The values are impossible.
        """
        if isinstance(payload, HELD_OUT_RECORDS):
            payload.check_rows(held_counts(self.roster.reports[client], self.phase))
        elif isinstance(payload, SetCounts):
            held_out = held_counts(self.roster.reports[client], self.phase)
            payload.check_rows(held_out, self.family.sets, disjoint=self.phase in OF_GROUPS)
        else:
            self.family.check_payload(payload)

    def choose_next(self, asked_again: int) -> list[int]:
        """Return the clients to ask next: the failed clients again, or clients to replace them. May be empty.

        Args:
            asked_again: The number of retries so far.
        """
        training, server_round = self.family.training, self.server_round
        if not self.replaces:
            return []
        if self.family.traits.retries_failed:
            if asked_again == training.max_retries:
                return []
            why = "; ".join(f"{self.roster.label(client)}: {reason}" for client, reason in self.reasons.items())
            log(WARNING, "round %d: retry %d of %d: %s", server_round, asked_again + 1, training.max_retries, why)
            missing = sorted(self.reasons)
            self.reasons.clear()
            self.wait()
            return missing
        asked = self.asked
        unasked = [client for client in range(len(self.roster)) if client not in asked]
        if not unasked or not training.replace_dropped:
            return []
        keys = (server_round, len(asked), zlib.crc32(self.phase.encode()))
        count = min(self.wanted - len(self.good_replies), len(unasked))
        chosen = stream(training.seed, Purpose.REPLACEMENTS, *keys).choice(unasked, count, replace=False)
        return sorted(chosen.tolist())

    # The end.

    def close(self) -> list[Reply]:
        """End the exchange: report who answered and who was dropped, and return the good replies by partition id.

        Raises:
            StrategyError: Too few replies are good.
        """
        phase, server_round, report = self.phase, self.server_round, self.report
        where = f"{phase} phase: " if phase else ""
        dropped = {client: where + self.reasons[client] for client in sorted(self.reasons)}
        for client, reason in dropped.items():
            log(WARNING, "round %d: dropped the reply of %s: %s", server_round, self.roster.label(client), reason)
            report.dropped[client] = f"{report.dropped[client]}; {reason}" if client in report.dropped else reason
        if not phase:
            report.answered = sorted(self.good_replies)
        self.check_enough(dropped)
        if not phase:
            owner = type(self.family).__name__ if self.family.traits.joint_states else None
            self.family.states, report.state_lost = self.family.states.update(
                server_round, self.good_replies, owner, self.roster.label
            )
        return [self.good_replies[client] for client in sorted(self.good_replies)]

    def check_enough(self, dropped: Mapping[int, str]) -> None:
        """Check that enough replies are good.

        Args:
            dropped: For each dropped client, the reason, by partition id.

        Raises:
            StrategyError: Fewer than ``min-train-nodes`` replies are good, or the strategy needs all clients and a
                client did not answer.
        """
        family, training, round_ = self.family, self.family.training, f"round {self.server_round}"
        diverged = next((reason for reason in dropped.values() if "not finite" in reason), None)
        advice = f"; {advise(diverged, family.steps())}" if diverged else ""
        client, reason = next(iter(dropped.items()), (None, "no client was asked"))
        label = "no site" if client is None else self.roster.label(client)
        if family.traits.retries_failed and dropped:
            raise StrategyError(
                f"{round_}: {label} sent no valid reply (max-retries={training.max_retries}): {reason}; "
                f"{type(family).__name__} {family.traits.needs_all_clients}{advice}"
            )
        needed, setting = training.fewest_replies(self.wanted), training.min_train_nodes
        if len(self.good_replies) < needed:
            raise StrategyError(
                f"{round_}: {len(self.good_replies)} of {len(self.asked)} clients sent a valid reply, but "
                f"min-train-nodes={setting} requires {needed}; {label}: {reason}{advice}"
            )
