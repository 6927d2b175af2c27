"""Validated replies of a round, the round's costs, and bookkeeping of the clients' memories.

A client's newest memory, called its state, was made in the round of its newest good reply or, if later replies were
dropped, after it. A reply that started from an older memory, or from none, shows that the newer memory is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any, Self

import numpy as np
from flwr.common import log

from payloads.record import FloatArray, IntArray, Payload, array
from payloads.site_names import label_site


@dataclass(frozen=True)
class Reply:
    """A valid reply of the client at a place in the roster."""

    place: int
    model: list[FloatArray]
    payload: Any
    num_examples: int
    # the round that made the client's initial memory; 0: it had no memory yet; None: the client keeps no memory
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
        """Return the states of n clients before any reply."""
        return cls(kept=np.zeros(sites, dtype=np.int64), since=np.zeros(1, dtype=np.int64))

    def update(
        self,
        server_round: int,
        found: Mapping[int, Reply],
        joint_owner: str | None,
        label: Callable[[int], str] = label_site,
    ) -> tuple[SiteStates, list[int]]:
        """Return the states after a round, and the places of the clients that lost their memories.

        Args:
            found: The good replies, by place.
            joint_owner: The name of the strategy if it has ``joint_states``, else None. If set and a memory is lost,
                all clients start the next round without a memory.
            label: The text that stands for a client in the log, by place.
        """
        made = {place: number for place in sorted(found) if (number := found[place].state_round) is not None}
        lost = [place for place, number in made.items() if number < self.kept[place]]
        named = [
            f"{label(place)} has {_name_state(made[place])}, kept {_name_state(self.kept[place])}" for place in lost
        ]
        kept, since = self.kept.copy(), self.since
        kept[list(made)] = server_round
        if lost:
            which = "; ".join(named[:8]) + ("; ..." if len(named) > 8 else "")
            log(WARNING, "round %d: client state lost: %s", server_round, which)
            if joint_owner is not None:
                kept, since = np.zeros_like(kept), np.array([server_round + 1])
                text = "round %d: %s sums the clients' states: all clients restart without a state in round %d"
                log(WARNING, text, server_round, joint_owner, server_round + 1)
        return SiteStates(kept=kept, since=since), lost


def _name_state(made: int | np.signedinteger[Any]) -> str:
    return f"the state of round {made}" if made else "none"
