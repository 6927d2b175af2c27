"""A party's state during a segment, and the base class of the segment's phases, which all use the state.

The phases are the updates, the full passes, the evaluation and the scoring of rows.
"""

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
        applied: The number of applied updates.
        delays, max_delay: The sum and the maximum of the delay of an update: the number of updates of the same
            dominator that were applied between the update's partial and its theta.
        staleness, max_staleness: The sum and the maximum of the staleness: the same number for updates of all
            dominators.
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
class SegmentContext:
    """A party's state during a segment.

    Attributes:
        me: The party's index.
        plan: The segment's plan.
        agenda: The segment's sums, in order.
        holding: The party's data.
        objective: The objective without correction for flipped labels, for the evaluation.
        block: The party's block: its columns, weights and partials.
        sums: The masked sums of all parties' partials.
        dominator: The object with which the party leads updates. None at a passive party.
        head: The last layer, which turns sums into predictions, at the active party. None: the sums are the
            predictions.
        later: A function that schedules a call in the next iteration of the event loop.
        done: A function that a phase calls when it has ended at this party.
        log: The party's steps. None: not requested.
        active_index: The party's index in `plan.active`; -1 at a passive party.
        learns: Whether the party's block is updated.
        scores: The (n,) scores of all rows, (n, k) for softmax, at an active party in a segment that scores rows.
        constant: The party's (k,) partial, equal for all rows, if the segment starts with partials that do not vary at
            any party and the parties check flags (`vertical.segment.varying`). Each dominator's first sum then consists
            of such partials, and later sums wait until all blocks have been updated. Otherwise None.
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
        """Return the predictions of n rows, from the sums of all parties' outputs.

        Args:
            sums: The (n * k,) sums, k for each row, row after row. With a head, k is its number of inputs; with softmax
                the number of classes; otherwise 1.

        Returns:
            The (n,) predictions; with softmax (n, k), a prediction for each class.
        """
        rows = sums.reshape(-1, self.plan.width) if self.plan.width > 1 else sums
        return rows if self.head is None else self.head.predict(rows)

    def note(self, kind: str, index: int, number: int) -> None:
        """Log a step of an update, if a log is requested.

        Args:
            kind: The kind of the step, see `Event`.
            index: The index of the update's dominator in `plan.active`.
            number: The number of the update.
        """
        if self.log is not None:
            self.log.append(Event(kind, self.plan.active[index], number))

    def share(self, kind: int, vectors: Mapping[int, Array]) -> Array | None:
        """Contribute vectors to the active parties' sums.

        Args:
            kind: The kind of the sums, a number of `Kind`.
            vectors: The vector for each active party that takes a sum of this kind now, by its index in `plan.active`.

        Returns:
            The vector for this party's own sum, which is not sent. None: this party takes no sum now.
        """
        sent = {index: vector for index, vector in vectors.items() if index != self.active_index}
        if sent:
            lengths = [(index, len(vector)) for index, vector in sent.items()]
            self.sums.contribute(kind, np.concatenate(list(sent.values())), lengths)
        return vectors.get(self.active_index)

    def total(self, kind: int, own: Array | None) -> Array | None:
        """Return this party's next sum over all parties; None while the sum is incomplete.

        Args:
            kind: The kind of the sum, a number of `Kind`.
            own: This party's own vector, from `share`. None: this party takes no such sum, and the result is None.
        """
        total = None if own is None else self.sums.take(kind)
        return None if own is None or total is None else total + own


class SegmentPhase(ABC):
    """A part of a segment, which all parties begin at the same point of the segment.

    A phase ends when this party has finished its part. It then calls `SegmentContext.done` once. Before a party has
    begun a phase, it can receive only partials for its own sums. These wait in `Sums`.
    """

    theta_kind: ClassVar[int] = -1
    """The kind of the frames in which dominators send theta. -1: no such frames in this phase."""

    @abstractmethod
    def begin(self) -> None:
        """Start the phase, which may end at once."""

    @abstractmethod
    def process_sums(self) -> None:
        """Process this party's own sums that are complete."""

    def take_theta(self, index: int, number: int, body: bytes | memoryview) -> None:
        """Process the theta that a dominator sends to all parties.

        Args:
            index: The index of the dominator in `plan.active`.
            number: The number of the update or full pass.
            body: The theta.

        Raises:
            PartyError: The theta is malformed, or is not expected now.
        """
        raise RuntimeError("dominators send no theta in this phase")
