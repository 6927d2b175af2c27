"""Masked sums: the party that leads an update learns only the sum of the vectors that the other parties contribute.

The leader is called the *dominator*, the other parties its *collaborators*. The sum does not contain the dominator's
own vector, which the dominator adds itself. Callers use float64 vectors; parties exchange integers modulo 2^64. The
position and the length of every frame are checked against the agenda, the list of the segment's sums.
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
from vertical.transport.frames import Frame, Kind, PartyError, protocol_error

_RANGE_HINT = "lower learning-rate if the model diverges, otherwise scale the features"
# addition for the totals of a regression, which contain squares of labels
_LABELS_HINT = ", or divide the labels, or set vfb2.active-parties=1"
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
"""An index into `plan.active`, and the number of elements of that party's vector."""


class Gathering:
    """Consecutive sums of several parties' vectors. A sum's number is its position.

    Args:
        name: The name of a vector in errors.
        senders: The contributing parties.
        window: The number of sums that may be incomplete at once.
        length: A function that returns the number of elements of the sum at a position. It raises IndexError for
            positions that do not exist.
        own: Whether this party also contributes, with `add_own`.
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
        """Add a peer's vector to the sum at a position, and return whether the sum is now complete.

        Raises:
            PartyError: The peer does not contribute, the position is outside the window, or the length is wrong.
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
            raise protocol_error(peer, f"{got}, not the {8 * length} of {length} elements")
        vector = np.frombuffer(body, dtype=np.uint64)
        self.add_own(position, vector.copy() if total is None else vector)
        return self._counts[slot] == self._needed

    def add_own(self, position: int, elements: Elements) -> None:
        """Add this party's elements to the sum at a position.

        Args:
            position: The position. The caller must ensure that it is inside the window.
            elements: The (k,) elements. The caller must not use the array afterwards.
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
        """Whether the next sum is complete."""
        return self._counts[self._next % self._window] == self._needed

    def take(self) -> tuple[int, Elements]:
        """Return the position and the elements of the next sum, which must be complete. Without senders it is zero."""
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
            return protocol_error(peer, f"it sent a {self._name} ({position}), to which it must not contribute")
        window = f"the window of {self._window} from {self._next} on"
        return protocol_error(peer, f"it sent {self._name} {position}, which is outside {window} or beyond the segment")


class Sums(ABC):
    """A party's work for the masked sums of a segment. Base class of the ways of masking.

    The party contributes to the sum of each dominator (an active party) and, as a dominator, collects its own sum.
    """

    def __init__(self, me: int, agenda: Agenda, send: Send, recorder: Recorder | None) -> None:
        plan = agenda.plan
        self._me, self._send, self._recorder = me, send, recorder
        self._active = plan.active
        self._window = 1 if plan.synchronous else plan.window
        self._limit = RING.limit_for(plan.parties)
        objective = make_objective(plan.problem, plan.weight)
        self._numbers = not (objective.classification or objective.multiclass)

    def contribute(self, kind: int, values: Array, shares: Sequence[Share]) -> None:
        """Cut (k,) values into shares, and contribute each share to an active party's next sum of this kind.

        Args:
            kind: The kind of the sums, a number of `Kind`.
            values: The vectors for several active parties, one after another.
            shares: The index into `plan.active` and the length of each vector.

        Raises:
            PartyError: A value is too large for masked sums.
        """
        try:
            elements = RING.encode(values, self._limit)
        except ValueError as error:
            # the original error names a row and its value, and must not be sent to the other parties
            reason = f"a number is outside +-{self._limit:g}, the range of masked sums"
            hint = _RANGE_HINT + (_LABELS_HINT if kind == Kind.TOTALS and self._numbers else "")
            raise PartyError(self._me, f"its {_NAMES[kind]} cannot be sent: {reason}: {hint}") from error
        start = 0
        for index, length in shares:
            stop = start + length
            if self._recorder is not None:
                self._recorder.contributed(kind, self._active[index], values[start:stop])
            self._contribute(kind, index, elements[start:stop])
            start = stop

    @abstractmethod
    def _contribute(self, kind: int, index: int, elements: Elements) -> None:
        """Contribute elements to the next sum of the active party at an index. This may overwrite the elements."""

    @abstractmethod
    def receive(self, peer: int, frame: Frame) -> bool:
        """Add a peer's frame, and return whether it may have completed one of this party's own sums.

        Raises:
            PartyError: The segment's plan does not contain this frame.
        """

    @abstractmethod
    def take(self, kind: int) -> Array | None:
        """Return this party's next own sum of a kind, without its own values.

        Returns:
            The (k,) values; None while the sum is incomplete.
        """


class DirectSums(Sums):
    """Sums in which each collaborator sends its vector plus a pairwise mask to the dominator.

    Without `masks` it sends the vector itself.
    """

    def __init__(
        self, me: int, agenda: Agenda, send: Send, masks: PairwiseMasks | None, recorder: Recorder | None = None
    ) -> None:
        super().__init__(me, agenda, send, recorder)
        plan = agenda.plan
        self._masks = masks
        self._positions: dict[int, list[int]] = {kind: [0] * len(plan.active) for kind in SUMS}
        self._own: dict[int, Gathering] = {}
        if me in plan.active:
            index, peers = plan.active.index(me), set(range(plan.parties)) - {me}
            for kind in SUMS:
                window = self._window if kind == Kind.PARTIAL else 1
                self._own[kind] = Gathering(_NAMES[kind], peers, window, partial(agenda.length, kind, index))

    def _contribute(self, kind: int, index: int, elements: Elements) -> None:
        number = self._positions[kind][index]
        self._positions[kind][index] = number + 1
        active = self._active[index]
        if self._masks is not None:
            elements += self._masks.mask(kind, active, number, len(elements))
        self._send(active, Frame(kind, active, number, elements.tobytes()))

    def receive(self, peer: int, frame: Frame) -> bool:
        gathering = self._own.get(frame.kind)
        if gathering is None or frame.active != self._me:
            raise protocol_error(peer, f"it sent party {self._me} a frame that only party {frame.active} may get")
        return gathering.add(peer, frame.update, frame.body)

    def take(self, kind: int) -> Array | None:
        own = self._own[kind]
        return RING.decode(own.take()[1]) if own.ready else None


class _Branch:
    """This party's node in a dominator's tree: it adds its children's vectors and sends the sum to its parent."""

    def __init__(
        self, kind: int, active: int, parent: int, children: Collection[int], gathering: Gathering, send: Send
    ) -> None:
        self._kind, self._active, self._parent, self._children = kind, active, parent, children
        self.gathering, self._send = gathering, send

    def contribute(self, position: int, elements: Elements) -> None:
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
    """Sums by the paper's Algorithm 1. Each dominator is the root of two trees of parties (`vertical.masking.trees`).

    The first tree sums the vectors plus random masks, the second tree sums the masks, and the dominator subtracts the
    second sum from the first. All kinds of sums share one count of positions.
    """

    def __init__(self, me: int, agenda: Agenda, send: Send, recorder: Recorder | None = None) -> None:
        super().__init__(me, agenda, send, recorder)
        plan = agenda.plan
        self._positions = [0] * len(plan.active)
        self._branches: dict[tuple[int, int], _Branch] = {}
        for index, active in enumerate(plan.active):
            for kind, tree in zip((Kind.VALUE_TREE, Kind.MASK_TREE), make_pair(plan.parties, active), strict=True):
                children = tuple(tree.children(me))
                gathering = Gathering(
                    _NAMES[kind],
                    children,
                    # a passive party contributes to the evaluation and to its totals at once: one position more
                    self._window + 1,
                    partial(agenda.length_at, index),
                    own=active != me,
                )
                self._branches[kind, active] = _Branch(kind, active, tree.parent[me], children, gathering, send)

    def _contribute(self, kind: int, index: int, elements: Elements) -> None:
        mask = random_elements(len(elements))
        elements += mask
        position = self._positions[index]
        self._positions[index] = position + 1
        active = self._active[index]
        self._branches[Kind.VALUE_TREE, active].contribute(position, elements)
        self._branches[Kind.MASK_TREE, active].contribute(position, mask)

    def receive(self, peer: int, frame: Frame) -> bool:
        branch = self._branches.get((frame.kind, frame.active))
        if branch is None:
            fault = f"it sent a frame of kind {frame.kind} for party {frame.active}"
            raise protocol_error(peer, f"{fault}, which has no tree for this kind")
        return branch.receive(peer, frame.update, frame.body)

    def take(self, kind: int) -> Array | None:
        values = self._branches[Kind.VALUE_TREE, self._me].gathering
        masks = self._branches[Kind.MASK_TREE, self._me].gathering
        if not (values.ready and masks.ready):
            return None
        total = values.take()[1]
        total -= masks.take()[1]
        return RING.decode(total)
