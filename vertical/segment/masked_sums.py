"""Masked sums: each collaborator gives its vector to a dominator, which learns the sum and nothing else.

The dominator's own vector is not in the sum; it adds that itself. Callers see float64 vectors, the wire elements of
Z_2^64. Positions and lengths come from the agenda, so that every frame is checked before it is added.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vertical.masking.pairwise import RING, PairwiseMasks, random_elements
from vertical.masking.trees import make_pair
from vertical.problem.objectives import Array, make_objective
from vertical.segment.plan import Recorder
from vertical.segment.sum_order import SUMS, Agenda
from vertical.transport.frames import Frame, Kind, PartyError

_WAY_OUT = "either the model diverges (lower the step) or the features need scaling"
# of the totals of a regression, in which the labels' squares are
_LABELS = ", or the labels do (divide them, or take one active party)"
_NAMES: dict[int, str] = {
    Kind.PARTIAL: "partial",
    Kind.SNAPSHOT_PARTIAL: "partial of a full pass",
    Kind.EVALUATION: "evaluation",
    Kind.TOTALS: "total of the evaluation",
    Kind.SCORES: "partial of scores",
    Kind.VALUE_TREE: "masked value",
    Kind.MASK_TREE: "mask",
}

Elements = NDArray[np.uint64]
Send = Callable[[int, Frame], None]
Share = tuple[int, int]
"""A place in `plan.active`, and how many elements it gets."""


class Gathering:
    """Adds up the vectors that several parties give, position by position.

    Args:
        name: What a vector is called in errors.
        senders: The parties that give.
        window: Positions that may be open at once.
        length: Elements at a position; raises IndexError if there is no such position.
        own: Whether this party gives too, by `add_own`.
    """

    def __init__(
        self, name: str, senders: Collection[int], window: int, length: Callable[[int], int], *, own: bool = False
    ) -> None:
        self._name, self._senders, self._window, self._length = name, frozenset(senders), window, length
        self._needed = len(self._senders) + own
        self._next = 0
        self._totals: list[Elements | None] = [None] * window
        self._counts = [0] * window

    def add(self, peer: int, position: int, body: bytes | memoryview) -> bool:
        """Add what a peer sent; returns whether its position is now complete.

        Raises:
            PartyError: The peer gives nothing here, is ahead of the window or behind it, or sent another length.
        """
        if not 0 <= position - self._next < self._window or peer not in self._senders:
            raise self._out_of_place(peer, position)
        slot = position % self._window
        total = self._totals[slot]
        try:
            length = self._length(position) if total is None else len(total)
        except IndexError:
            raise self._out_of_place(peer, position) from None
        if len(body) != 8 * length:
            got = f"its {self._name} {position} has {len(body)} bytes"
            raise PartyError(peer, f"{got}, not the {8 * length} of {length} elements")
        given = np.frombuffer(body, dtype=np.uint64)
        self.add_own(position, given.copy() if total is None else given)
        return self._counts[slot] == self._needed

    def add_own(self, position: int, elements: Elements) -> None:
        """Add this party's elements.

        Args:
            position: Inside the window, which is not checked.
            elements: (k,); the caller must not use the array afterwards.
        """
        slot = position % self._window
        total = self._totals[slot]
        if total is None:
            self._totals[slot] = elements
        else:
            np.add(total, elements, total)
        self._counts[slot] += 1

    @property
    def ready(self) -> bool:
        """Whether the next position is complete."""
        return self._counts[self._next % self._window] == self._needed

    def take(self) -> tuple[int, Elements]:
        """Return the next position and its sum, which must be complete; zeros where nobody gives."""
        position = self._next
        slot = position % self._window
        if not self.ready:
            raise RuntimeError(f"{self._name} {position} is not complete")
        total = self._totals[slot]
        if total is None:
            total = np.zeros(self._length(position), dtype=np.uint64)
        self._totals[slot] = None
        self._counts[slot] = 0
        self._next = position + 1
        return position, total

    def _out_of_place(self, peer: int, position: int) -> PartyError:
        if peer not in self._senders:
            return PartyError(peer, f"it sent a {self._name} ({position}) where it has none to give")
        return PartyError(
            peer,
            f"it sent {self._name} {position}, outside the window of {self._window} from {self._next} on "
            "or beyond the segment",
        )


class Sums(ABC):
    """The sums of all dominators as one party sees them."""

    def __init__(self, me: int, agenda: Agenda, send: Send, recorder: Recorder | None) -> None:
        plan = agenda.plan
        self._me, self._send, self._recorder = me, send, recorder
        self._active = plan.active
        self._window = 1 if plan.synchronous else plan.window
        self._limit = RING.limit_for(plan.parties)
        objective = make_objective(plan.problem, plan.weight)
        self._numbers = not (objective.classification or objective.multiclass)

    def contribute(self, kind: int, values: Array, shares: Sequence[Share]) -> None:
        """Cut (k,) values into the shares, and give each to its place's next sum of this kind.

        Raises:
            PartyError: Names this party, whose values do not fit the ring.
        """
        try:
            elements = RING.encode(values, self._limit)
        except ValueError as error:
            # The error itself names a row's place and value, and this one goes to the peers.
            reason = f"a number of it is not within +-{self._limit:g}, which masked sums hold"
            way_out = _WAY_OUT + (_LABELS if kind == Kind.TOTALS and self._numbers else "")
            raise PartyError(self._me, f"its {_NAMES[kind]} cannot be sent: {reason}: {way_out}") from error
        start = 0
        for place, length in shares:
            stop = start + length
            if self._recorder is not None:
                self._recorder.contributed(kind, self._active[place], values[start:stop])
            self._give(kind, place, elements[start:stop])
            start = stop

    @abstractmethod
    def _give(self, kind: int, place: int, elements: Elements) -> None:
        """Give elements, which this may overwrite, to a place's next sum of a kind."""

    @abstractmethod
    def receive(self, peer: int, frame: Frame) -> bool:
        """Add a peer's frame; returns whether it may have completed one of this party's own sums.

        Raises:
            PartyError: The plan has no such frame.
        """

    @abstractmethod
    def take(self, kind: int) -> Array | None:
        """Take this party's next own sum of a kind, without its own values.

        Returns:
            (k,) values; None while the sum is incomplete.
        """


class DirectSums(Sums):
    """Every collaborator sends its vector plus its pairwise mask to the dominator; without `masks` its bare vector."""

    def __init__(
        self, me: int, agenda: Agenda, send: Send, masks: PairwiseMasks | None, recorder: Recorder | None = None
    ) -> None:
        super().__init__(me, agenda, send, recorder)
        plan = agenda.plan
        self._masks = masks
        self._given: dict[int, list[int]] = {kind: [0] * len(plan.active) for kind in SUMS}
        self._own: dict[int, Gathering] = {}
        if me in plan.active:
            place, others = plan.active.index(me), set(range(plan.parties)) - {me}
            for kind in SUMS:
                window = self._window if kind == Kind.PARTIAL else 1
                self._own[kind] = Gathering(_NAMES[kind], others, window, partial(agenda.length, kind, place))

    def _give(self, kind: int, place: int, elements: Elements) -> None:
        given = self._given[kind]
        number = given[place]
        given[place] = number + 1
        active = self._active[place]
        if self._masks is not None:
            elements += self._masks.mask(kind, active, number, len(elements))
        self._send(active, Frame(kind, active, number, elements.tobytes()))

    def receive(self, peer: int, frame: Frame) -> bool:
        gathering = self._own.get(frame.kind)
        if gathering is None or frame.active != self._me:
            raise PartyError(peer, f"it sent party {self._me} what only party {frame.active} may have")
        return gathering.add(peer, frame.update, frame.body)

    def take(self, kind: int) -> Array | None:
        own = self._own[kind]
        return RING.decode(own.take()[1]) if own.ready else None


class _Branch:
    """This party's place in one tree of one dominator: it adds up what its children send and passes the sum on."""

    def __init__(
        self, kind: int, active: int, parent: int, children: Collection[int], gathering: Gathering, send: Send
    ) -> None:
        self._kind, self._active, self._parent, self._children = kind, active, parent, children
        self.gathering, self._send = gathering, send

    def give(self, position: int, elements: Elements) -> None:
        if not self._children:
            self._send(self._parent, Frame(self._kind, self._active, position, elements.tobytes()))
            return
        self.gathering.add_own(position, elements)
        self._pass_on()

    def receive(self, peer: int, position: int, body: bytes | memoryview) -> bool:
        complete = self.gathering.add(peer, position, body)
        if self._parent < 0:
            return complete
        if complete:
            self._pass_on()
        return False

    def _pass_on(self) -> None:
        while self.gathering.ready:
            position, total = self.gathering.take()
            self._send(self._parent, Frame(self._kind, self._active, position, total.tobytes()))


class TreeSums(Sums):
    """Algorithm 1, with a pair of trees for every dominator, the root of both.

    Vectors plus random masks go up one tree, the masks up the other, and the dominator subtracts. All kinds of sums
    share one count of positions.
    """

    def __init__(self, me: int, agenda: Agenda, send: Send, recorder: Recorder | None = None) -> None:
        super().__init__(me, agenda, send, recorder)
        plan = agenda.plan
        self._given = [0] * len(plan.active)
        self._branches: dict[tuple[int, int], _Branch] = {}
        for place, active in enumerate(plan.active):
            for kind, tree in zip((Kind.VALUE_TREE, Kind.MASK_TREE), make_pair(plan.parties, active), strict=True):
                children = tuple(tree.children(me))
                gathering = Gathering(
                    _NAMES[kind],
                    children,
                    # A party that is no dominator gives its totals at once, one position ahead.
                    self._window + 1,
                    partial(agenda.length_at, place),
                    own=active != me,
                )
                self._branches[kind, active] = _Branch(kind, active, tree.parent[me], children, gathering, send)

    def _give(self, kind: int, place: int, elements: Elements) -> None:
        mask = random_elements(len(elements))
        elements += mask
        position = self._given[place]
        self._given[place] = position + 1
        active = self._active[place]
        self._branches[Kind.VALUE_TREE, active].give(position, elements)
        self._branches[Kind.MASK_TREE, active].give(position, mask)

    def receive(self, peer: int, frame: Frame) -> bool:
        branch = self._branches.get((frame.kind, frame.active))
        if branch is None:
            raise PartyError(peer, f"it sent kind {frame.kind} for party {frame.active}, which dominates nothing")
        return branch.receive(peer, frame.update, frame.body)

    def take(self, kind: int) -> Array | None:
        values = self._branches[Kind.VALUE_TREE, self._me].gathering
        masks = self._branches[Kind.MASK_TREE, self._me].gathering
        if not (values.ready and masks.ready):
            return None
        total = values.take()[1]
        total -= masks.take()[1]
        return RING.decode(total)
