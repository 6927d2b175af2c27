"""The server half of vertical learning on secret shares (`vertical.shares`): VFB2's, with the server as the dealer.

The server learns no share of any value: it hands out random numbers, and the parties send their masked numbers to each
other only. The server must therefore not cooperate with a party. If the parties' node configs name a third party as
the dealer, the server hands out nothing.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, Message

from payloads.wire import PAYLOAD
from problems.randomness import stream
from strategies.rounds.errors import SetupError
from strategies.vertical.strategy import PartyExchange
from strategies.vfb2 import VFB2
from vertical.problem.objectives import make_objective
from vertical.records import DataSummary, Segment, text
from vertical.shares.order import DealOrder


class SharesExchange(PartyExchange):
    """An exchange in which each party also gets its own package of random numbers."""

    family: "SharedSGD"

    def write(self, clients: Sequence[int]) -> Sequence[Message]:
        packages, segment = self.family.packages, self.family.dealt
        if not packages or segment is None or self.phase in self.family.introductions:
            return super().write(clients)
        common, written = self.content, list[Message]()
        for client in clients:
            self.content = common.copy()
            self.content[PAYLOAD] = replace(segment, package=text(packages[client])).to_record()
            written += super().write([client])
        self.content = common
        return written


class SharedSGD(VFB2):
    """SGD on secret shares: no party learns another party's labels, features, scores or slopes."""

    exchange_type = SharesExchange
    fewest_clients = 2
    traits = replace(
        VFB2.traits,
        sends="between parties, shares masked by random numbers of the server; to the server, the reporter's metrics",
    )

    # the packages of the newest attempt at a segment, and its message without a package
    packages: Sequence[bytes] = ()
    dealt: Segment | None = None

    def segment(self) -> Segment:
        """Return the message of a new attempt at the present segment, and deal its random numbers."""
        segment = super().segment()
        self.packages, self.dealt = (), None
        if not self.settings.deals or self.rows is None:
            return segment
        columns = tuple(int(summary.columns[0]) for summary in self.summaries)
        segment = self.dealt = replace(segment, columns=np.array(columns))
        if not any(_find_own_dealers(self.summaries)):
            self.packages = self.deal(columns, evaluates=bool(segment.evaluate[0]))
        return segment

    def deal(self, columns: tuple[int, ...], *, evaluates: bool) -> list[bytes]:
        """Return each party's package of random numbers for the present segment.

        Args:
            columns: The number of columns of each party.
            evaluates: Whether the segment measures the metrics.
        """
        assert self.rows is not None
        training, vfb2, (rows, test_rows) = self.training, self.settings, self.rows
        scores = bool(vfb2.score_run)
        rounds = vfb2.keep_shared and not scores and self.under_way == training.num_server_rounds
        order = DealOrder(
            problem=vfb2.problem,
            columns=columns,
            decays=make_objective(vfb2.problem, vfb2.factor).weight > 0,
            rows=rows,
            test_rows=test_rows,
            batch_size=training.batch_size,
            seed=training.seed,
            first_epoch=max(self.under_way - 1, 0) * vfb2.epochs,
            epochs=vfb2.epochs if self.under_way and not scores else 0,
            labelled=self.active[0],
            evaluates=evaluates,
            scores=scores,
            rounds=rounds,
        )
        # a simulation hides nothing, and the same seed then gives the same bits
        simulated = all(summary.simulated is not None and summary.simulated[0] for summary in self.summaries)
        label = "shared scores" if scores else "shares"
        return order.deal(stream(training.seed, label, self.under_way).bytes if simulated else secrets.token_bytes)

    def introduce(self, server_round: int, arrays: ArrayRecord) -> None:
        """Send the parties each other's credentials. In training, the first party with labels is the active party.

        Raises:
            SetupError: See `VFB2.introduce`. Or only some parties have a dealer that is a third party.
        """
        super().introduce(server_round, arrays)
        own = _find_own_dealers(self.summaries)
        if self.settings.deals and any(own) and not all(own):
            got = f"a dealer at parties {[party for party, other in enumerate(own) if other]} only"
            allowed, hint = "the same dealer at all parties, or at none", "set dealer in each node config, or remove it"
            raise SetupError("dealer", got=got, allowed=allowed, hint=hint)
        if not self.settings.score_run:
            self.active = self.active[:1]

    def warn(self, columns: Sequence[int]) -> None:
        """Give no warning, since updates reveal nothing about columns.

        Args:
            columns: The number of columns of each party.
        """

    @property
    def shares(self) -> bool:
        """Whether the server gets the blocks, which are opened to their owners after the last round."""
        return super().shares and self.under_way == self.training.num_server_rounds


def _find_own_dealers(summaries: Sequence[DataSummary]) -> list[bool]:
    """Return for each party whether it gets its random numbers from a third party."""
    return [summary.own_dealer is not None and bool(summary.own_dealer[0]) for summary in summaries]
