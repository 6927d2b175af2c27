"""The server's side of secure sums (`privacy.secure_sum`): four stages around one exchange, and the unmasked means.

A strategy still gets one reply for each client. But every reply contains the mean over the clients instead of the
client's own model and payload, so any mean over the replies equals this mean. Totals, such as counts, are in the first
reply; in all other replies they are zero.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from flwr.common import log

from payloads.held_out import BINS, HELD_OUT_RECORDS, OF_GROUPS, GroupCounts, ScoreCounts, SetCounts, held_counts
from payloads.record import IntArray, Payload, PayloadError, specs_of
from payloads.secure_sum import (
    BOXES,
    KEYS,
    SHARES,
    VIEWS,
    Boxes,
    Evidence,
    Members,
    Present,
    PublicKeys,
    Shares,
    Survivors,
    Views,
    by_client,
    make_ring,
    purpose_of,
    rows_of,
)
from payloads.summed_values import unpack
from payloads.wire import CONFIG, LARGEST_SITE, PHASE, PRESENT, ROUND, STAGE, SUM_NUMBER, content, digest, need
from privacy.ring import Ring
from privacy.secure_sum import CODE_BYTES, FEWEST_MEMBERS, SEALED_BYTES, Group, SecureSumError, unmask
from strategies.rounds.errors import StrategyError
from strategies.rounds.exchange import Exchange
from strategies.rounds.family import Family
from strategies.rounds.guards import ExchangeGuard, Proceed, Steps
from strategies.rounds.replies import Reply
from strategies.rounds.sum_exchanges import MaskedExchange, StageExchange
from strategies.rounds.sum_precision import log_precision

# the payload of the replies in each stage except the masked values
UP: dict[str, type[Payload]] = {KEYS: PublicKeys, BOXES: Boxes, VIEWS: Views, SHARES: Shares}


class SecureSums(ExchangeGuard):
    """The guard that turns each exchange of a run with secure sums into one secure sum.

    Attributes:
        sums: The number of secure sums so far.
    """

    def __init__(self) -> None:
        self.sums = 0

    def check(self, family: Family, clients: int) -> None:
        """Check and log the range and the precision of the run's sums, if the run has secure sums."""
        if family.privacy.secure_sum:
            log_precision(family, clients)

    def at_server(self, exchange: Exchange, clients: Sequence[int], proceed: Proceed) -> Steps:
        family, phase, records = exchange.family, exchange.phase, exchange.content
        if not family.privacy.secure_sum:
            return (yield from proceed(exchange, clients))
        self.sums += 1
        up = ScoreCounts if exchange.up is GroupCounts else exchange.up  # sites expand groups of scores themselves
        secure = SecureSum(family, self.sums, exchange.server_round, phase, up, 0 if phase else len(family.model))
        if not phase:
            exchange.report.asked = list(clients)
        clients = secure.gather(clients)
        records[CONFIG] = ConfigRecord({**need(records, CONFIG, ConfigRecord), **secure.config})
        records[PRESENT] = secure.record
        common = family, exchange.server_round, phase, up, records, secure.wanted
        masked = MaskedExchange(*common, max_elements=secure.max_elements, bits=secure.ring.bits)
        return secure.open((yield from proceed(masked, clients)), digest(records, masked.kind))


class SecureSum:
    """One secure sum.

    Args:
        family: The strategy.
        number: The number of the sum, counted over the run.
        server_round: The round.
        phase: The name of the exchange. "": the round's main exchange.
        up: The type of the summed payload. None: clients send no payload.
        parts: The number of a model's arrays that a client sends.

    Attributes:
        group: The clients that have sent their keys. None before the stage `KEYS`.
        wanted: The number of clients that were asked to take part.
        boxes: The encrypted shares, by sender and by receiver.
        present: The participants: the clients whose boxes have arrived.
        survivors: The participants whose masked values have arrived.
    """

    def __init__(
        self, family: Family, number: int, server_round: int, phase: str, up: type[Payload] | None, parts: int
    ) -> None:
        self.number = number
        self.family, self.server_round, self.phase, self.up, self.parts = family, server_round, phase, up, parts
        # each field is at most as long as the model or the counts of scores
        fields = 2 if up is None else 2 + len(specs_of(up))
        self.max_elements = fields * (
            1 + sum(part.size for part in family.model) + BINS * (1 + family.sets) + sum(family.limits(0).values())
        )
        self.group: Group | None = None
        self.wanted = 0
        self.boxes: dict[int, dict[int, bytes]] = {}
        self.present: list[int] = []
        self.survivors: list[int] = []

    @property
    def record(self) -> ConfigRecord:
        """The list of participants that the server sends to all clients."""
        return Present(clients=np.array(self.present)).to_record()

    @property
    def config(self) -> dict[str, int]:
        """The config entries from which clients compute their weights."""
        largest = self._largest()
        return {SUM_NUMBER: self.number} | ({} if largest is None else {LARGEST_SITE: largest})

    @cached_property
    def ring(self) -> Ring:
        """The ring in which the values are summed. Needs the participants."""
        return make_ring(self.family.training.dtype, self.family.privacy.secure_range, len(self.present))

    def gather(self, clients: Sequence[int]) -> list[int]:
        """Run the stages `KEYS` and `BOXES`, and return the participants.

        Raises:
            StrategyError: Too few clients have answered both stages.
        """
        privacy, self.wanted = self.family.privacy, len(clients)
        replies, settings = self._keep_same_settings(self._ask(KEYS, dict.fromkeys(clients)))
        members = {reply.client: reply.payload.member() for reply in replies}
        purpose = purpose_of(self.server_round, self.phase, self.number, settings)
        try:
            self.group = Group(members, privacy.secure_threshold, purpose)
        except SecureSumError as error:
            raise self._explain(error) from None
        for reply in self._ask(BOXES, dict.fromkeys(members, Members.of(members))):
            self.boxes[reply.client] = by_client(reply.payload.holders, reply.payload.boxes)
        present = list(self.boxes)
        while alone := self.group.alone(present):
            present = [client for client in present if client not in alone]
        if len(present) < FEWEST_MEMBERS:
            missing = ", ".join(map(str, sorted(set(clients) - set(self.boxes))))
            raise self._explain(f"only {len(present)} clients can be unmasked; no answer from {missing}")
        self.present = present
        return present

    def open(self, replies: list[Reply], question: bytes) -> list[Reply]:
        """Run the stages `VIEWS` and `SHARES`, and return replies with the means and totals.

        Args:
            replies: The replies with `MaskedValues`.
            question: The hash of the message that the replies answer.

        Raises:
            StrategyError: The sum cannot be unmasked. The text names the missing clients.
        """
        assert self.group is not None
        replies, lengths = self._keep_alike(replies)
        family, arrived = self.family, [reply.client for reply in replies]
        # clients with too few neighbours left would refuse to answer
        self.survivors = arrived
        willing = set(arrived).difference(self.group.alone(arrived))
        if not willing:
            few = f"only {len(arrived)} of {len(self.present)} clients sent values, too few to unmask the sum"
            raise self._explain(few)
        survivors = Survivors(clients=np.array(arrived))
        views = {
            reply.client: by_client(reply.payload.receivers, reply.payload.codes)
            for reply in self._ask(VIEWS, dict.fromkeys(sorted(willing), survivors))
        }
        evidence = {client: self._evidence(client, views) for client in views}
        # clients would refuse if too few of their neighbours have vouched for the same sum
        enough = {client: proof for client, proof in evidence.items() if len(proof.vouchers) >= self.group.threshold}
        if not enough:
            few = f"{len(views)} clients confirmed the members of the sum, too few to unmask it"
            raise self._explain(few)
        revealed = {
            reply.client: by_client(reply.payload.owners, reply.payload.shares) for reply in self._ask(SHARES, enough)
        }
        ring = self.ring
        uploads = {reply.client: reply.payload.elements.view(ring.dtype) for reply in replies}
        try:
            total = unmask(self.group, self.present, uploads, revealed, ring.bits, question)
        except SecureSumError as error:
            raise self._explain(error) from None
        largest = self._largest()
        sizes = family.roster.class_counts.sum(axis=1)[arrived]
        weights = float(len(arrived) if largest is None else (sizes / largest).sum())
        steps, values, altered = unpack(total, lengths, self.parts, self.up, ring, weights)
        if altered:
            self._warn_of_altered(altered, len(arrived))
        model = [(old + step).astype(old.dtype) for old, step in zip(family.model, steps, strict=False)]
        with_totals = without_totals = None
        if self.up is not None:
            with_totals = self._payload(values, arrived)
            zeros = {name: np.zeros_like(value) for name, value in values.items() if value.dtype.kind == "i"}
            without_totals = replace(with_totals, **zeros)
        payloads = [with_totals, *[without_totals] * (len(replies) - 1)]
        return [replace(reply, model=model, payload=payload) for reply, payload in zip(replies, payloads, strict=True)]

    def _warn_of_altered(self, altered: int, clients: int) -> None:
        what, limit = self.phase or "the models", self.family.privacy.secure_range
        text = "round %d, %s: %d of %d clients clipped values to +-%g, or sent zeros for values that are not finite: %s"
        hint = "lower the steps, or raise privacy.secure-range"
        log(WARNING, text, self.server_round, what, altered, clients, limit, hint)

    def _keep_alike(self, replies: list[Reply]) -> tuple[list[Reply], IntArray]:
        """Drop replies whose parts do not have the most common lengths. Return the other replies and these lengths."""
        lengths = {reply.client: tuple(reply.payload.lengths.tolist()) for reply in replies}
        ((common, _),) = Counter(lengths.values()).most_common(1)
        report = self.family.report
        for client, got in lengths.items():
            if got != common:
                report.dropped[client] = f"MaskedValues.lengths: got {list(got)}, most clients sent {list(common)}"
                report.answered = [answered for answered in report.answered if answered != client]
        return [reply for reply in replies if lengths[reply.client] == common], np.array(common, dtype=np.int64)

    def _payload(self, values: Mapping[str, Any], arrived: Sequence[int]) -> Payload:
        assert self.up is not None
        dtype = self.family.training.dtype
        try:
            payload = self.up(**{k: v.astype(dtype) if v.dtype.kind == "f" else v for k, v in values.items()}).check()
            if isinstance(payload, (*HELD_OUT_RECORDS, SetCounts)):
                counts = [held_counts(self.family.roster.reports[client], self.phase) for client in arrived]
                total = np.sum([count for count in counts if count is not None], axis=0)
                if isinstance(payload, SetCounts):
                    payload.check_rows(total, self.family.sets, len(arrived), disjoint=self.phase in OF_GROUPS)
                else:
                    payload.check_rows(total)
        except PayloadError as error:
            raise self._explain(error) from None
        return payload

    def _evidence(self, client: int, views: Mapping[int, Mapping[int, bytes]]) -> Evidence:
        """Return the evidence for a client: the codes and the boxes that its neighbours have made for it."""
        codes = {sender: codes[client] for sender, codes in views.items() if client in codes}
        sealed = {sender: self.boxes[sender][client] for sender in self.present if client in self.boxes[sender]}
        vouchers, rows = rows_of(codes, CODE_BYTES)
        senders, boxes = rows_of(sealed, SEALED_BYTES)
        return Evidence(vouchers=vouchers, codes=rows, senders=senders, boxes=boxes)

    def _keep_same_settings(self, replies: list[Reply]) -> tuple[list[Reply], bytes]:
        """Drop replies with another run config than most clients. Return the other replies and the config's hash."""
        hashes = [reply.payload.settings.tobytes() for reply in replies]
        common = Counter(hashes).most_common(1)[0][0]
        for reply, settings in zip(replies, hashes, strict=True):
            if settings != common:
                self.family.report.dropped[reply.client] = "secure sum: another run config than most clients have"
        return [reply for reply in replies if reply.payload.settings.tobytes() == common], common

    def _ask(self, stage: str, questions: Mapping[int, Payload | None]) -> list[Reply]:
        config = ConfigRecord({ROUND: self.server_round, PHASE: self.phase, STAGE: stage, SUM_NUMBER: self.number})
        # clients with the same question share one message content
        distinct = {id(question): question for question in questions.values()}
        by_id = {
            key: content(config=config, payload=None if question is None else question.to_record())
            for key, question in distinct.items()
        }
        contents = {client: by_id[id(question)] for client, question in questions.items()}
        label = f"{self.phase or 'secure sum'}, {stage}"
        exchange = StageExchange(
            self.family,
            self.server_round,
            label,
            UP[stage],
            RecordDict(),
            self.wanted,
            contents=contents,
            group=self.group,
            survivors=self.survivors,
        )
        return exchange.receive(exchange.send(exchange.write(list(questions))))

    def _largest(self) -> int | None:
        """Return the number of samples of the largest site; None if all clients have equal weights."""
        family = self.family
        if family.traits.weighted_gradients or not family.training.by_examples:
            return None
        return int(family.roster.class_counts.sum(axis=1)[self.present].max())

    def _explain(self, reason: object) -> StrategyError:
        dropped = [f"; {self.family.roster.label(client)}: {why}" for client, why in self.family.report.dropped.items()]
        return StrategyError(f"round {self.server_round}: secure sum: {reason}{''.join(dropped[:1])}")
