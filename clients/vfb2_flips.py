"""Which labels a party flips, under label privacy: the same ones in every run, as far as it can keep them."""

from __future__ import annotations

from logging import WARNING
from typing import Any

from flwr.common import log

from clients.parties import Party, Rows
from clients.vertical.segment.dominator import Flips, draw_flips
from payloads.vfb2 import VFB2State


def own_flips(party: Party, state: VFB2State, epsilon: float, facts: dict[str, Any]) -> Flips | None:
    """(n,) flips of the reporter's labels: those of this run, else those of earlier runs, else new ones; None without
    labels.

    Args:
        state: the party's, of this run.
        facts: gets how many are new and, where they are kept, the epsilon that has been spent on a label.
    """
    labels, marks, spent = party.data.holding(state.aligned).labels, party.data.training_marks(state.aligned), None
    if labels is None:
        return None
    if state.flips is not None and len(state.flips) == len(labels):
        flips, drawn = state.flips, 0
    elif party.flips is not None and marks is not None:
        flips, drawn, spent = party.flips.recall(marks, epsilon)
    else:
        flips, drawn = draw_flips(len(labels), epsilon), len(labels)
        if marks is not None:
            log(
                WARNING,
                "party %d: the flips of its labels are drawn anew, since its node config has no state-dir to keep them "
                "in: each further run with these labels adds its own epsilon to the %g of this one",
                party.partition_id,
                epsilon,
            )
    facts["flips"] = {"drawn": drawn, "reused": len(labels) - drawn}
    if spent is not None:
        facts["flips"]["epsilon-spent"] = spent
    return flips


def remember(party: Party, rows: Rows | None, epsilon: float, flips: Flips | None) -> None:
    """Keep the flips of a run: where this party reports in another run, it flips the same labels."""
    marks = None if flips is None or party.flips is None else party.data.training_marks(rows)
    if flips is not None and party.flips is not None and marks is not None:
        party.flips.keep(marks, epsilon, flips)
