"""What the server knows of its clients' memories, called states here, and how it notices that one is lost.

A client's newest memory was made in the round of its newest good reply or, if later replies were dropped, after it.
A reply that started from an older memory, or from none, shows that the newer one is lost.
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
    """A `StateLedger` as a record, for checkpoints."""

    # per client, the newest round in which a good reply reported a memory; 0: none
    kept: IntArray = array("n", kind="int")
    # memories made before this round no longer count; 0: all count
    since: IntArray = array(1, kind="int")


class StateLedger:
    """When each client's memory was made, as far as the server knows.

    Attributes:
        kept: place of a client that keeps a memory -> the newest round with a good reply from it.
        since: memories made before this round no longer count; 0: all count.
    """

    def __init__(self) -> None:
        self.kept: dict[int, int] = {}
        self.since = 0

    def snapshot(self, sites: int) -> SiteStates | None:
        """The ledger as a record, or None before any client keeps a memory."""
        if not self.kept and not self.since:
            return None
        kept = [self.kept.get(place, 0) for place in range(sites)]
        return SiteStates(kept=np.array(kept), since=np.array([self.since]))

    def restore(self, states: SiteStates, sites: int) -> None:
        """Continue from a `snapshot`.

        Raises:
            PayloadError: it is for another number of sites.
        """
        states.check({"n": sites})
        self.kept = {place: made for place, made in enumerate(states.kept.tolist()) if made}
        self.since = int(states.since[0])

    def update(
        self, server_round: int, found: Mapping[int, Reply], roster: Roster, joint_owner: str | None
    ) -> list[int]:
        """Note which good replies come from clients that keep a memory.

        Args:
            found: place -> its good reply.
            joint_owner: name of the strategy if it has ``joint_states``, else None. With it, if a memory is lost, all
                clients start the next round without one.

        Returns:
            The partition ids of the clients that have lost their memories.
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
