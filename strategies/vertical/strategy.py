"""Base of the vertical strategies. Their clients, the parties, have different columns of the same rows.

In most exchanges the parties run at the same time and talk to each other, so the exchange succeeds for all parties or
for none. If it fails, the server finds the party that the errors blame, sends all parties each other's addresses again,
and repeats the exchange.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from logging import WARNING
from typing import Any, ClassVar

from flwr.app import ArrayRecord, Message
from flwr.common import log
from flwr.serverapp import Grid

from methods.method import Traits
from payloads.record import Payload
from payloads.wire import ARRAYS, PAYLOAD
from strategies.base import PayloadStrategy
from strategies.rounds.errors import NO_ANSWER
from strategies.rounds.exchange import Exchange
from strategies.rounds.handshake import Roster
from strategies.rounds.replies import Reply
from strategies.vertical.together import check_capacity, check_refusals, meet_on
from vertical.records import VERTICAL

# seconds to wait for the other parties' replies after a party has failed; Flower reports a killed client late
PATIENCE = 90.0


class PartyExchange(Exchange):
    """An exchange with all parties. If a party fails while the parties talk to each other, all parties are retried."""

    family: VerticalStrategy

    def receive(self, replies: Iterable[Message]) -> list[Reply]:
        """Return the replies of all parties. If a party fails, retry the exchange with all parties.

        Raises:
            StrategyError: A party refuses, or still fails after ``max-retries`` retries.
        """
        if self.phase in self.family.introductions:
            return super().receive(replies)
        training, server_round, attempt = self.family.training, self.server_round, 0
        while True:
            self.good_replies, self.reasons = {}, {}
            self.sort(replies)
            # a silent party may still be working on its message, so it must not get a second message
            hung = NO_ANSWER in self.reasons.values() and set(self.reasons.values()) != {NO_ANSWER}
            self.reasons = find_culprits(self.reasons, len(self.roster))
            if not self.reasons or hung or self.grid is None or attempt == training.max_retries:
                break
            attempt += 1
            why = "; ".join(f"party {party}: {reason}" for party, reason in self.reasons.items())
            log(WARNING, "round %d: retry %d of %d: %s", server_round, attempt, training.max_retries, why)
            self.wait()
            payload = self.family.meet_again(server_round, self.content.array_records[ARRAYS])
            self.content, self.sent = self.content.copy(), []
            self.content[PAYLOAD] = payload.to_record()
            replies = self.send(self.write(range(len(self.roster))))
        return self.close()

    def sort(self, replies: Iterable[Message]) -> None:
        replies = list(replies)
        check_refusals(self, replies)
        super().sort(replies)

    def check_payload(self, client: int, payload: Any) -> None:
        super().check_payload(client, payload)
        self.family.check_report(client, payload, self.phase)


class VerticalStrategy(PayloadStrategy):
    """Base of the vertical strategies: no model is exchanged, and the parties measure the metrics."""

    exchange_type = PartyExchange
    shares_model = False
    clients_meet = True
    counts_samples = False
    fewest_clients = 3
    traits = Traits(
        table="vfb2",
        losses=(VERTICAL,),
        loss=VERTICAL,
        needs_examples="has clients with columns of the same rows",
        needs_all_clients="trains a block of columns at every client",
        retries_failed=True,
        number_types=("float64",),
        default_step=0.1,  # smaller than elsewhere, since late updates narrow the range of stable steps
        unread=("local_steps", "server_learning_rate", "score", "aggregation", "trim_fraction", "norm_bound"),
        objection="a vertical run sends no model that could be clipped or noised",
    )
    # the phases in which the parties do not talk to each other, since they do not know their addresses yet
    introductions: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def meet_again(self, server_round: int, arrays: ArrayRecord) -> Payload:
        """Send all parties each other's addresses and certificates again, after a party has failed.

        Returns:
            The payload of the next attempt.
        """

    def check_report(self, party: int, payload: Any, phase: str) -> None:
        """Check a party's report.

        Args:
            party: The party's number.
            payload: The report.
            phase: The phase. "": the round's main exchange.

        Raises:
            PayloadError: The report is impossible or incomplete.
        """

    def join(self, grid: Grid) -> Roster:
        """Do the handshake.

        Raises:
            StrategyError: The handshake failed, or the engine cannot run all parties at once.
        """
        known = bool(self.roster)
        roster = super().join(grid)
        if not known:
            check_capacity(grid, len(roster))
        return roster

    def deliver(self, grid: Grid, messages: Sequence[Message]) -> Sequence[Message]:
        """Send messages, and wait ``round-timeout`` for the replies, but only `PATIENCE` after a party has failed."""
        return meet_on(grid, messages, self.training.round_timeout, PATIENCE)


def find_culprits(reasons: Mapping[int, str], parties: int) -> dict[int, str]:
    """Return the parties that most errors of a failed exchange blame, with the reasons. Ties return several parties.

    Args:
        reasons: The error of each party without a good reply, by party. An error that blames no existing party blames
            its sender.
        parties: The number of parties.

    Returns:
        The reason by party: the party's own error, if it blames itself, and the first different error of other parties.
    """
    blamed: dict[int, tuple[int, str]] = {}  # by the party that sent the error
    for sender, error in reasons.items():
        party, reason = find_blamed(error) or (sender, error)
        blamed[sender] = (party, reason) if party < parties else (sender, error)
    votes = Counter(blame[0] for blame in blamed.values())
    max_votes = max(votes.values(), default=0)
    culprits = {}
    for culprit in sorted(party for party, count in votes.items() if count == max_votes):
        texts = [reason for sender, (party, reason) in blamed.items() if sender == party == culprit]  # its own error
        accusations = [reason for sender, (party, reason) in blamed.items() if party == culprit != sender]
        if accusations and accusations[0] not in texts:
            texts.append(f"other parties report: {accusations[0]}" if texts else accusations[0])
        culprits[culprit] = "; ".join(texts)
    return culprits


def find_blamed(error: str) -> tuple[int, str] | None:
    """Return the party that the text of a client's error blames, and the reason. None: the text blames no party."""
    match = re.fullmatch(r"party (\d+): (.*)", error, re.DOTALL)
    return None if match is None else (int(match[1]), match[2])
