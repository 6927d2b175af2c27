"""The objects that a segment's phases share at a party."""

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
    """A party's counts over the updates of a segment.

    Attributes:
        applied: The number of applied updates of all dominators.
        delays, most_delay: Sum and maximum of the delay: the number of the same dominator's updates applied between an
            update's partial and its theta.
        staleness, most_staleness: The same for updates of all dominators.
    """

    applied: int = 0
    delays: int = 0
    max_delay: int = 0
    staleness: int = 0
    max_staleness: int = 0

    def count(self, delay: int, staleness: int) -> None:
        """Count an applied update."""
        self.applied += 1
        self.delays += delay
        self.staleness += staleness
        self.max_delay = max(self.max_delay, delay)
        self.max_staleness = max(self.max_staleness, staleness)


@dataclass
class Station:
    """A party in a segment.

    Attributes:
        objective: The objective without correction for flipped labels, for the evaluation.
        dominator: The party's dominator. None at a passive party.
        head: The head that turns sums into predictions, at the active party. None: the sums are the predictions.
        later: A function that schedules a call in the next turn of the loop.
        done: A function to call when the current phase has ended at this party.
        log: The party's steps, if requested.
        place: The party's place in `plan.active`; -1 at a passive party.
        learns: Whether the party's block is updated.
        scores: The (n,) scores of all rows, (n, k) for softmax, at an active party in a segment that scores rows.
        constant: The party's (k,) partial of every row, if parties that count start with partials that do not vary. The
            sum of a dominator's first update then has only such partials, and later sums wait until all blocks have had
            an update. Otherwise None.
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
        self.active_index = self.plan.active.index(self.me) if self.me in self.plan.active else -1
        self.learns = self.plan.moves(self.me)

    def predict(self, sums: Array) -> Array:
        """Return z of rows, (n,) or (n, k) for softmax, given the sums (n * k,) over all parties."""
        rows = sums.reshape(-1, self.plan.width) if self.plan.width > 1 else sums
        return rows if self.head is None else self.head.predict(rows)

    def note(self, kind: str, index: int, number: int) -> None:
        """Log a step on an update, if the steps are logged.

        Args:
            kind: The kind of the step, see `Event`.
            place: The place of the update's dominator.
        """
        if self.log is not None:
            self.log.append(Event(kind, self.plan.active[index], number))

    def share(self, kind: int, vectors: Mapping[int, Array]) -> Array | None:
        """Contribute vectors to the dominators' sums.

        Args:
            vectors: The vector for each dominator that takes a sum of this kind now, by place.

        Returns:
            The vector for this party's own place, which is not sent; None if there is no such vector.
        """
        sent = {index: vector for index, vector in vectors.items() if index != self.active_index}
        if sent:
            lengths = [(index, len(vector)) for index, vector in sent.items()]
            self.sums.contribute(kind, np.concatenate(list(sent.values())), lengths)
        return vectors.get(self.active_index)

    def total(self, kind: int, own: Array | None) -> Array | None:
        """Return this dominator's next sum of a kind with its own vector added; None while the sum is incomplete.

        Args:
            own: The own vector, from `share`. None: this party takes no such sum, and None is returned.
        """
        total = None if own is None else self.sums.take(kind)
        return None if own is None or total is None else total + own


class SegmentPhase(ABC):
    """A part of a segment that all parties begin at the same point and that ends when this party has done its share.

    It then calls `Station.done`, once. Before this party has begun a phase, the only frames of the phase are partials
    for its own sums, which wait in `Sums`.
    """

    answer_kind: ClassVar[int] = -1
    """The kind of the dominators' answer frames. -1: no answers."""

    @abstractmethod
    def begin(self) -> None:
        """Start the phase, which may end at once."""

    @abstractmethod
    def pull(self) -> None:
        """Use this party's complete own sums."""

    def answer(self, index: int, number: int, body: bytes | memoryview) -> None:
        """Use the answer that the dominator at `place` sends to all parties.

        Raises:
            PartyError: The answer is not due, or malformed.
        """
        raise RuntimeError("no dominator answers in this phase")
