"""What the server knows of the states that its clients keep from round to round, and how it notices a lost one.

A client's newest state is made in the round of its newest good reply or, where later replies were dropped, after it.
A reply that starts from an older one, or from none, says that what came in between is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING

import numpy as np
from flwr.common import log

from payloads.record import IntArray, Payload, array
from strategies.rounds.handshake import Roster
from strategies.rounds.replies import Reply


@dataclass(frozen=True, eq=False)
class SiteStates(Payload):
    """What a server knows of the states that its clients keep; a checkpoint holds it."""

    # of each site, the newest round whose good reply said that it keeps one; 0: none
    kept: IntArray = array("n", kind="int")
    # states made before this round count no more; 0: all do
    since: IntArray = array(1, kind="int")


class StateLedger:
    """Of every client that keeps a state, when the newest was made that the server knows of.

    Attributes:
        kept: place of a client that keeps a state -> the newest round with a good reply of it.
        since: states made before this round count no more; 0: all do.
    """

    def __init__(self) -> None:
        self.kept: dict[int, int] = {}
        self.since = 0

    def snapshot(self, sites: int) -> SiteStates | None:
        """The ledger as a record, or None before any client keeps a state."""
        if not self.kept and not self.since:
            return None
        kept = [self.kept.get(place, 0) for place in range(sites)]
        return SiteStates(kept=np.array(kept), since=np.array([self.since]))

    def restore(self, states: SiteStates, sites: int) -> None:
        """Continue from a `snapshot`.

        Raises:
            PayloadError: it is that of another number of sites.
        """
        states.check({"n": sites})
        self.kept = {place: made for place, made in enumerate(states.kept.tolist()) if made}
        self.since = int(states.since[0])

    def update(
        self, server_round: int, found: Mapping[int, Reply], roster: Roster, joint_owner: str | None
    ) -> list[int]:
        """Note which good replies come from clients that keep a state.

        Args:
            found: place -> its good reply.
            joint_owner: the name of a strategy whose clients' states add up to something, so that all begin afresh in
                the next round where one is lost; None for another strategy.

        Returns:
            The partition ids of the clients that have lost their states.
        """
        told = {place: found[place].state_round for place in sorted(found)}
        made = {place: number for place, number in told.items() if number is not None}
        lost = [place for place, number in made.items() if number < self.kept.get(place, 0)]
        sites = [roster.reports[place].partition_id for place in lost]
        named = [
            f"partition {site} has {_name_state(made[place])}, kept {_name_state(self.kept[place])}"
            for site, place in zip(sites, lost, strict=True)
        ]
        self.kept |= dict.fromkeys(made, server_round)
        if lost:
            which = "; ".join(named[:8]) + ("; ..." if len(named) > 8 else "")
            log(WARNING, "round %d: client state lost: %s", server_round, which)
            if joint_owner is not None:
                self.kept, self.since = {}, server_round + 1
                told_so = "round %d: %s adds the clients' states up: all begin afresh in round %d"
                log(WARNING, told_so, server_round, joint_owner, self.since)
        return sites


def _name_state(made: int) -> str:
    return f"that of round {made}" if made else "none"
