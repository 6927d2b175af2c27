"""Validated replies of a round, the round's costs, and the detection of lost client memories.

A client may keep a memory between rounds, called its state. It is at least as new as the client's newest good reply. A
reply that started from an older memory, or without a memory, therefore shows that the newer memory is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any, Self

import numpy as np
from flwr.common import log

from payloads.held_out import ScoreCounts
from payloads.record import FloatArray, IntArray, Payload, array
from payloads.site_names import label_site
from problems.binned_scores import centres, codes, find_bins
from problems.least_cell import Groups


@dataclass(frozen=True)
class Reply:
    """A valid reply.

    Attributes:
        client: The client's partition id.
        model: The client's model. Empty in an exchange without models.
        payload: The payload, or None.
        num_examples: The client's number of samples.
        state_round: The round that made the memory from which the client started. 0: the client had no memory yet.
            None: the client keeps no memory.
    """

    client: int
    model: list[FloatArray]
    payload: Any
    num_examples: int
    state_round: int | None = None


@dataclass
class RoundReport:
    """A round's costs and its participants, by partition id."""

    asked: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    # clients whose replies counted although their memories were lost
    state_lost: list[int] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0
    # seconds for the messages that the strategy sends itself: additional exchanges, retries and replacements
    exchange_seconds: float = 0.0
    # further entries of the round's line, by name
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SiteStates(Payload):
    """The round of each client's memory, as far as the server knows. Checkpoints contain it."""

    # the newest round with a good reply from each client that keeps a memory; 0 for all other clients
    kept: IntArray = array("n", kind="int")
    # memories made before this round no longer count; 0: all memories count
    since: IntArray = array(1, kind="int")

    @classmethod
    def unknown(cls, sites: int) -> Self:
        """Return the states before any reply."""
        return cls(kept=np.zeros(sites, dtype=np.int64), since=np.zeros(1, dtype=np.int64))

    def update(
        self,
        server_round: int,
        replies: Mapping[int, Reply],
        joint_owner: str | None,
        label: Callable[[int], str] = label_site,
    ) -> tuple[SiteStates, list[int]]:
        """Return the states after a round, and the partition ids of the clients that lost their memories.

        Args:
            server_round: The round.
            replies: The good replies, by partition id.
            joint_owner: The name of the strategy if it has ``joint_states``, else None. If set and a memory is lost,
                all clients start the next round without a memory.
            label: The function that returns a client's label in the log from its partition id.
        """
        started = {client: number for client in sorted(replies) if (number := replies[client].state_round) is not None}
        lost = [client for client, number in started.items() if number < self.kept[client]]
        newest, since = self.kept.copy(), self.since
        newest[list(started)] = server_round
        if lost:
            losses = [
                f"{label(client)} has {_name_state(started[client])}, kept {_name_state(self.kept[client])}"
                for client in lost
            ]
            listed = "; ".join(losses[:8]) + ("; ..." if len(losses) > 8 else "")
            log(WARNING, "round %d: client state lost: %s", server_round, listed)
            if joint_owner is not None:
                newest, since = np.zeros_like(newest), np.array([server_round + 1])
                text = "round %d: %s sums the clients' states: all clients restart without a state in round %d"
                log(WARNING, text, server_round, joint_owner, server_round + 1)
        return SiteStates(kept=newest, since=since), lost


def _name_state(server_round: int | np.signedinteger[Any]) -> str:
    return f"the state of round {server_round}" if server_round else "none"


def count_rows(edges: IntArray, counts: ScoreCounts) -> tuple[IntArray, IntArray]:
    """Return a site's numbers of negatives and of positives in each bin.

    Args:
        edges: The edges of the bins.
        counts: The site's counts. If they count groups of rows, the scores of each group are spread evenly.
    """
    by_class = []
    for name in ("negative", "positive"):
        rows, spreads = getattr(counts, f"{name}s"), getattr(counts, f"{name}_spreads", None)
        if spreads is not None:
            filled = np.flatnonzero(rows)
            groups = Groups(rows[filled].astype(np.int64), centres(edges)[filled], spreads[filled].astype(np.float64))
            rows = np.bincount(find_bins(codes(groups.spread()), edges), minlength=len(rows))
        by_class.append(rows)
    return by_class[0], by_class[1]
