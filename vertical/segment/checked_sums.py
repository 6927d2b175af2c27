"""Masked sums to which a party contributes only after it knows that enough parties hide each other's partials.

Masks hide a party's partials only if the partials of several parties vary over the rows (`vertical.segment.varying`).
With a penalty, a block can become zero in the middle of a segment. Each party therefore sends its flags, which describe
whether its partials vary, to all other parties before it contributes a vector. It contributes the vector after it has
received the flags of all contributing parties.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from vertical.problem.objectives import Array
from vertical.segment.masked_sums import Elements, Share, Sums
from vertical.segment.sum_order import SUMS, Agenda
from vertical.segment.varying import BOTH, Flags, Look, check_collaborators, check_flags
from vertical.transport.frames import Frame, Kind, protocol_error


class CheckedSums(Sums):
    """A wrapper of masked sums, in which each sum waits for the flags of all contributing parties.

    Args:
        me: The party's index.
        agenda: The segment's sums.
        sums: The masked sums.
        look: A function that returns the party's present flags.
        min_parties: The number of parties whose partials must vary.
        broadcast: A function that sends a frame to all other parties.

    Attributes:
        from_zero: Whether `SegmentContext.constant` is set, which is known only after the first frames.
    """

    def __init__(
        self,
        me: int,
        agenda: Agenda,
        sums: Sums,
        look: Look,
        min_parties: int,
        broadcast: Callable[[Frame], None],
    ) -> None:
        plan = agenda.plan
        self._me, self._plan, self._inner, self._look = me, plan, sums, look
        self._min_parties, self._broadcast, self.from_zero = min_parties, broadcast, False
        indices = range(len(plan.active))
        self._own_index = plan.active.index(me) if me in plan.active else -1
        self._totals = [sum(agenda.total(kind, index) for kind in SUMS) for index in indices]
        # for each active party: the numbers of vectors that this party has contributed, and of vectors that it has sent
        # or, for this party's own sums, taken
        self._contributed, self._done = [0] * len(indices), [0] * len(indices)
        self._waiting: list[deque[tuple[int, Array]]] = [deque() for _ in indices]
        self._flags: dict[tuple[int, int], dict[int, Flags]] = defaultdict(dict)

    def contribute(self, kind: int, values: Array, shares: Sequence[Share]) -> None:
        flags, start = self._look(), 0
        for index, length in shares:
            position = self._contributed[index]
            self._contributed[index] += 1
            self._flags[index, position][self._me] = flags
            self._broadcast(Frame(Kind.COUNT, self._plan.active[index], position, bytes([flags])))
            self._waiting[index].append((kind, values[start : start + length].copy()))
            start += length
            self._release(index)

    def receive(self, peer: int, frame: Frame) -> bool:
        if frame.kind != Kind.COUNT:
            return self._inner.receive(peer, frame)
        index = self._plan.active.index(frame.active) if frame.active in self._plan.active else -1
        body, position = bytes(frame.body), frame.update
        due = index >= 0 and peer != frame.active and self._done[index] <= position < self._totals[index]
        if not due or len(body) != 1 or body[0] > BOTH or peer in self._flags.get((index, position), {}):
            raise protocol_error(peer, f"it sent malformed or early flags for sum {position} of party {frame.active}")
        self._flags[index, position][peer] = Flags(body[0])
        if index == self._own_index:
            return True
        self._release(index)
        return False

    def take(self, kind: int) -> Array | None:
        own_index = self._own_index
        flags = self._flags.get((own_index, self._done[own_index]), {})
        if len(flags) < self._plan.parties - 1:
            return None
        total = self._inner.take(kind)
        if total is None:
            return None
        first = self.from_zero and kind == Kind.PARTIAL
        self.from_zero &= not first
        check_flags(self._plan, self._min_parties, {**flags, self._me: Flags.NONE if first else self._look()})
        self._advance(own_index)
        return total

    def _release(self, index: int) -> None:
        """Contribute the vectors for an active party's sums whose flags are complete."""
        waiting = self._waiting[index]
        while waiting and len(flags := self._flags[index, self._done[index]]) == self._plan.parties - 1:
            check_collaborators(self._plan, self._min_parties, flags)
            kind, values = waiting.popleft()
            self._advance(index)
            self._inner.contribute(kind, values, [(index, len(values))])

    def _advance(self, index: int) -> None:
        del self._flags[index, self._done[index]]
        self._done[index] += 1

    def _contribute(self, kind: int, index: int, elements: Elements) -> None:
        raise RuntimeError("CheckedSums contributes only through the sums that it wraps")
