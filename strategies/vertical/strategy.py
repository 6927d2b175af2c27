"""Base of the vertical strategies, whose clients have different columns of the same rows and run at the same time.

An exchange in which parties talk to each other succeeds for all parties or for none. If it fails, the server finds the
party that the errors blame, introduces the parties to each other again, and repeats the exchange with all of them.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
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

# seconds to wait for the other parties after a failure; Flower reports a killed client late
PATIENCE = 90.0


class PartyExchange(Exchange):
    """An exchange with all parties. If they talk to each other and a party fails, all parties are asked again."""

    family: VerticalStrategy

    def receive(self, replies: Iterable[Message]) -> list[Reply]:
        """Return the replies of all parties. If they talk to each other and a party fails, ask all parties again.

        Raises:
            StrategyError: A party refuses, or still fails after ``max-retries`` retries.
        """
        if self.phase in self.family.introductions:
            return super().receive(replies)
        training, server_round, attempt = self.family.training, self.server_round, 0
        while True:
            self.found, self.reasons = {}, {}
            self.sort(replies)
            # a silent party may still be working on its message, so it must not get a second message
            hung = NO_ANSWER in self.reasons.values() and set(self.reasons.values()) != {NO_ANSWER}
            self.reasons = find_culprits(self.reasons, len(self.roster))
            if not self.reasons or hung or self.grid is None or attempt == training.max_retries:
                break
            attempt += 1
            named = "; ".join(f"party {place}: {reason}" for place, reason in self.reasons.items())
            log(WARNING, "round %d: retry %d of %d: %s", server_round, attempt, training.max_retries, named)
            self.wait()
            payload = self.family.meet_again(server_round, self.content.array_records[ARRAYS])
            self.content, self.sent = self.content.copy(), {}
            self.content[PAYLOAD] = payload.to_record()
            replies = self.send(self.write(range(len(self.roster))))
        return self.close()

    def sort(self, replies: Iterable[Message]) -> None:
        replies = list(replies)
        check_refusals(self, replies)
        super().sort(replies)

    def check_payload(self, place: int, payload: Any) -> None:
        super().check_payload(place, payload)
        self.family.check_report(place, payload, self.phase)


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
    # the phases in which parties do not talk to each other yet
    introductions: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def meet_again(self, server_round: int, arrays: ArrayRecord) -> Payload:
        """Introduce the parties again after one has failed.

        Returns:
            The payload of the next attempt.
        """

    def check_report(self, place: int, payload: Any, phase: str) -> None:
        """Check a party's report.

        Args:
            phase: The phase. "": the round's main exchange.

        Raises:
            PayloadError: The report is impossible or incomplete.
        """

    def join(self, grid: Grid) -> Roster:
        """Do the handshake.

        Raises:
            StrategyError: The handshake failed, or not all parties can run at once.
        """
        known = bool(self.roster)
        roster = super().join(grid)
        if not known:
            check_capacity(grid, len(roster))
        return roster

    def deliver(self, grid: Grid, messages: list[Message]) -> list[Message]:
        """Wait ``round-timeout`` for the replies. After a failure, wait at most `PATIENCE` for the other parties."""
        return meet_on(grid, messages, self.training.round_timeout, PATIENCE)


def find_culprits(reasons: Mapping[int, str], parties: int) -> dict[int, str]:
    """Return the parties that most errors of a failed segment blame, and the reasons. Ties return several parties.

    Args:
        reasons: The reason of each missing reply, by party. A reason that blames no existing party blames its sender.
        parties: The number of parties.
    """
    named = {place: find_blamed(reason) or (place, reason) for place, reason in reasons.items()}
    named = {place: (who, why) if who < parties else (place, reasons[place]) for place, (who, why) in named.items()}
    own = {place: reason for place, (party, reason) in named.items() if party == place}
    votes = Counter(party for party, _ in named.values())
    most = max(votes.values(), default=0)
    found = {}
    for party in sorted(party for party, count in votes.items() if count == most):
        others = [reason for place, (accused, reason) in named.items() if accused == party != place]
        words = [own[party]] if party in own else []
        words += [
            f"other parties report: {reason}" if words else reason for reason in others[:1] if reason not in words
        ]
        found[party] = "; ".join(words)
    return found


def find_blamed(words: str) -> tuple[int, str] | None:
    """Return the party that an error of a client blames, and the reason; None if the error blames no party."""
    found = re.fullmatch(r"party (\d+): (.*)", words, re.DOTALL)
    return None if found is None else (int(found[1]), found[2])
