"""What the phases of a segment share at one party."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from vertical.problem.blocks.base import Block
from vertical.problem.head import Head
from vertical.problem.objectives import Array, Objective
from vertical.segment.dominator import Dominator
from vertical.segment.masked_sums import Sums
from vertical.segment.plan import Event, Holding, SegmentPlan
from vertical.segment.sum_order import Agenda


@dataclass
class SegmentTally:
    """Counts over the updates of a segment, at one party.

    Attributes:
        applied: Updates of all dominators.
        delays, most_delay: Sum and maximum, over all updates, of the number of updates of the same dominator applied
            between an update's partial and its theta.
        staleness, most_staleness: The same, counting the updates of all dominators.
    """

    applied: int = 0
    delays: int = 0
    most_delay: int = 0
    staleness: int = 0
    most_staleness: int = 0

    def count(self, delay: int, staleness: int) -> None:
        """Count an update that is applied."""
        self.applied += 1
        self.delays += delay
        self.staleness += staleness
        self.most_delay = max(self.most_delay, delay)
        self.most_staleness = max(self.most_staleness, staleness)


@dataclass
class Station:
    """One party in one segment.

    Attributes:
        objective: Without correction for flipped labels, for the evaluation.
        dominator: None at a passive party.
        head: Makes predictions of the sums, at the active party; None: the sums are predictions.
        later: Has a function called in the next turn of the loop.
        done: To be called when the current phase has ended at this party.
        log: The party's steps, if asked for.
        place: Its place in `plan.active`; -1 at a passive party.
        learns: Whether its block is updated.
        scores: (n,) of all rows, (n, k) of softmax, of an active party in a segment that scores them.
        constant: The party's (k,) partial of every row, if parties that count start with partials that do not vary.
            The sum of a dominator's first update then has only such partials, and later sums wait until all blocks have
            had an update. Otherwise None.
    """

    me: int
    plan: SegmentPlan
    agenda: Agenda
    holding: Holding
    objective: Objective
    block: Block
    sums: Sums
    dominator: Dominator | None
    head: Head | None
    later: Callable[[Callable[[], None]], None]
    done: Callable[[], None]
    log: list[Event] | None = None
    tally: SegmentTally = field(default_factory=SegmentTally)
    metrics: dict[str, float] = field(default_factory=dict)
    scores: Array | None = None
    constant: Array | None = None

    def __post_init__(self) -> None:
        self.place = self.plan.active.index(self.me) if self.me in self.plan.active else -1
        self.learns = self.plan.moves(self.me)

    def predict(self, sums: Array) -> Array:
        """Return z of rows at an active party, given the sums (n * k,) over all parties: (n,), or (n, k) of softmax."""
        rows = sums.reshape(-1, self.plan.width) if self.plan.width > 1 else sums
        return rows if self.head is None else self.head.predict(rows)

    def note(self, kind: str, place: int, number: int) -> None:
        """Log a step on an update, if the steps are logged.

        Args:
            kind: One of those of `Event`.
            place: Of the update's dominator.
        """
        if self.log is not None:
            self.log.append(Event(kind, self.plan.active[place], number))

    def share(self, kind: int, vectors: Mapping[int, Array]) -> Array | None:
        """Give dominators the vectors that they sum.

        Args:
            vectors: One for each dominator that takes a sum of this kind now, by its place.

        Returns:
            The vector of this party's own place, which it does not send; None if there is none.
        """
        given = {place: vector for place, vector in vectors.items() if place != self.place}
        if given:
            lengths = [(place, len(vector)) for place, vector in given.items()]
            self.sums.contribute(kind, np.concatenate(list(given.values())), lengths)
        return vectors.get(self.place)

    def total(self, kind: int, own: Array | None) -> Array | None:
        """Return this dominator's next sum of a kind with its own vector added; None while the sum is incomplete.

        Args:
            own: That vector, from `share`; None, and None is returned: this party takes no such sum.
        """
        others = None if own is None else self.sums.take(kind)
        return None if own is None or others is None else others + own


class SegmentPhase(ABC):
    """A part of a segment that all parties begin at the same point and that ends when this party has done its share.

    It then calls `Station.done`, once. Before this party has begun a phase, no frames of it come but partials for its
    own sums, which wait in `Sums`.
    """

    answer_kind: ClassVar[int] = -1
    """Kind of the frames with which dominators answer; -1: none."""

    @abstractmethod
    def begin(self) -> None:
        """Start the phase; it may end at once."""

    @abstractmethod
    def pull(self) -> None:
        """Use this party's own sums, as far as they are complete."""

    def answer(self, place: int, number: int, body: bytes | memoryview) -> None:
        """Use what the dominator at `place` sends to everyone.

        Raises:
            PartyError: It is not due, or malformed.
        """
        raise RuntimeError("no dominator answers in this phase")
