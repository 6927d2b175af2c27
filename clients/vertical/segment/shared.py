"""What the phases of a segment share at one party."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from clients.vertical.segment.dominator import Dominator
from clients.vertical.segment.masked_sums import Sums
from clients.vertical.segment.plan import Event, Holding, Plan
from clients.vertical.segment.sum_order import Agenda
from problems.vertical.blocks.base import Block
from problems.vertical.objectives import Objective


@dataclass
class Tally:
    """Counts over the updates of a segment, at one party.

    Attributes:
        applied: updates of all dominators.
        delays, most_delay: updates of its own dominator applied between an update's partial and its theta: their
            sum over all updates, and the largest.
        staleness, most_staleness: likewise with the updates of all dominators.
    """

    applied: int = 0
    delays: int = 0
    most_delay: int = 0
    staleness: int = 0
    most_staleness: int = 0


@dataclass
class Station:
    """One party in one segment.

    Attributes:
        place: its place in `plan.active`; -1 of a passive party.
        learns: whether its block is updated.
        objective: with the labels as they are, for the evaluation.
        dominator: of an active party.
        later: has something called in the next turn of the loop.
        log: its steps, where asked for.
    """

    me: int
    plan: Plan
    agenda: Agenda
    holding: Holding
    objective: Objective
    block: Block
    sums: Sums
    dominator: Dominator | None
    later: Callable[[Callable[[], None]], None]
    tally: Tally = field(default_factory=Tally)
    metrics: dict[str, float] = field(default_factory=dict)
    log: list[Event] | None = None

    @property
    def place(self) -> int:
        return self.plan.active.index(self.me) if self.me in self.plan.active else -1

    @property
    def learns(self) -> bool:
        return self.plan.moves(self.me)


Done = Callable[[], None]
