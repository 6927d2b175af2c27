"""Masked sums whose parties first exchange flags (whether their partials vary), in segments in which flags may change.

A penalty can make a block zero in the middle of a segment. Each party therefore sends its flags to all other parties
before it contributes a vector. It contributes only after it has the flags of all contributing parties, and only if
enough partials vary.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from vertical.problem.objectives import Array
from vertical.segment.masked_sums import Elements, Share, Sums
from vertical.segment.sum_order import SUMS, Agenda
from vertical.segment.varying import BOTH, Flags, Look, check_collaborators, check_flags
from vertical.transport.frames import Frame, Kind, PartyError


class CountedSums(Sums):
    """A wrapper of masked sums, in which each sum waits for its flags.

    Args:
        me: The party's index.
        agenda: The segment's sums.
        sums: The masked sums.
        look: A function that returns the party's present flags.
        fewest: The number of parties whose partials must vary.
        broadcast: A function that sends a frame to all other parties.

    Attributes:
        from_zero: Whether `Station.constant` is set. Known only after the first frames.
    """

    def __init__(
        self,
        me: int,
        agenda: Agenda,
        sums: Sums,
        look: Look,
        fewest: int,
        broadcast: Callable[[Frame], None],
    ) -> None:
        plan = agenda.plan
        self._me, self._plan, self._inner, self._look = me, plan, sums, look
        self._fewest, self._broadcast, self.from_zero = fewest, broadcast, False
        places = range(len(plan.active))
        self._mine = plan.active.index(me) if me in plan.active else -1
        self._totals = [sum(agenda.total(kind, place) for kind in SUMS) for place in places]
        # by place: positions contributed, and positions done (sent or, at this party's place, taken)
        self._given, self._done = [0] * len(places), [0] * len(places)
        self._waiting: list[deque[tuple[int, Array]]] = [deque() for _ in places]
        self._flags: dict[tuple[int, int], dict[int, Flags]] = defaultdict(dict)

    def contribute(self, kind: int, values: Array, shares: Sequence[Share]) -> None:
        flags, start = self._look(), 0
        for place, length in shares:
            position = self._given[place]
            self._given[place] += 1
            self._flags[place, position][self._me] = flags
            self._broadcast(Frame(Kind.COUNT, self._plan.active[place], position, bytes([flags])))
            self._waiting[place].append((kind, values[start : start + length].copy()))
            start += length
            self._release(place)

    def receive(self, peer: int, frame: Frame) -> bool:
        if frame.kind != Kind.COUNT:
            return self._inner.receive(peer, frame)
        place = self._plan.active.index(frame.active) if frame.active in self._plan.active else -1
        body, position = bytes(frame.body), frame.update
        due = place >= 0 and peer != frame.active and self._done[place] <= position < self._totals[place]
        if not due or len(body) != 1 or body[0] > BOTH or peer in self._flags.get((place, position), {}):
            raise PartyError(peer, f"it sent flags of sum {position} of party {frame.active} that are not due")
        self._flags[place, position][peer] = Flags(body[0])
        if place == self._mine:
            return True
        self._release(place)
        return False

    def take(self, kind: int) -> Array | None:
        mine = self._mine
        flags = self._flags.get((mine, self._done[mine]), {})
        if len(flags) < self._plan.parties - 1:
            return None
        total = self._inner.take(kind)
        if total is None:
            return None
        first = self.from_zero and kind == Kind.PARTIAL
        self.from_zero &= not first
        check_flags(self._plan, self._fewest, {**flags, self._me: Flags.NONE if first else self._look()})
        self._forget(mine)
        return total

    def _release(self, place: int) -> None:
        """Contribute the vectors for a place whose flags are complete."""
        waiting = self._waiting[place]
        while waiting and len(flags := self._flags[place, self._done[place]]) == self._plan.parties - 1:
            check_collaborators(self._plan, self._fewest, flags)
            kind, values = waiting.popleft()
            self._forget(place)
            self._inner.contribute(kind, values, [(place, len(values))])

    def _forget(self, place: int) -> None:
        del self._flags[place, self._done[place]]
        self._done[place] += 1

    def _give(self, kind: int, place: int, elements: Elements) -> None:
        raise RuntimeError("the masked sums give")
