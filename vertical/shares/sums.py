"""The published sums of a segment on shares: every party adds up the frames of all parties."""

from collections.abc import Callable

import numpy as np

from vertical.problem.objectives import LOGISTIC
from vertical.segment.masked_sums import Gathering
from vertical.segment.plan import SegmentPlan
from vertical.shares.checks import count_published
from vertical.shares.numbers import Words
from vertical.shares.order import DealOrder
from vertical.shares.score_sums import FACTORS
from vertical.transport.frames import Frame, Kind, protocol_error

_NAMES: dict[int, str] = {
    Kind.MASKED_WEIGHTS: "masked weights",
    Kind.MASKED_SCORES: "masked scores",
    Kind.MASKED_SLOPES: "masked slopes",
    Kind.MASKED_FACTORS: "masked factors",
    Kind.WAVE_SUMS: "wave sums",
    Kind.BLOCK: "block",
    Kind.SCORES: "share of the scores",
}
# maximum bytes of a frame of masked features
_PIECE = 2**22


class SharedSums:
    """The published sums of a segment: every party adds up the frames of all parties.

    Args:
        me: The party's index.
        plan: The segment's plan.
        broadcast: A function that sends a frame to every other party.
        send: A function that sends a frame to one party.
    """

    def __init__(
        self, me: int, plan: SegmentPlan, broadcast: Callable[[Frame], None], send: Callable[[int, Frame], None]
    ) -> None:
        self._me, self._plan, self._broadcast, self._send = me, plan, broadcast, send
        order = DealOrder.of(plan)
        self.batches = [*order.batches()]
        evaluated = order.evaluated
        self.evaluated = 0 if evaluated is None else evaluated.stop - evaluated.start
        lengths = self._scoring_lengths(order) if plan.score else self._lengths(order)
        peers = set(range(plan.parties)) - {me}
        self._gatherings = {
            kind: Gathering(_NAMES[kind], peers, plan.window + 1, numbers.__getitem__, own=True)
            for kind, numbers in lengths.items()
        }
        count = plan.rows + plan.test_rows
        # the masked features of the other parties, and the bytes that have arrived
        self.features = {peer: np.zeros((count, plan.columns[peer]), np.uint64) for peer in peers}
        self._arrived = dict.fromkeys(peers, 0)
        self.labels: Words | None = None

    def _lengths(self, order: DealOrder) -> dict[int, list[int]]:
        """Return the lengths of the sums of each kind in a segment that trains."""
        plan, weights, rows = self._plan, sum(order.columns), [len(rows) for rows in self.batches]
        evaluation = [self.evaluated] * plan.evaluate
        lengths: dict[int, list[int]] = {
            Kind.MASKED_WEIGHTS: [
                *(weights + count_published(order.plan, count) for count in rows),
                *[weights] * len(evaluation),
            ],
            Kind.MASKED_SCORES: [*(count + 1 for count in rows), *evaluation],
            Kind.MASKED_SLOPES: rows,
        }
        if plan.problem == LOGISTIC:
            lengths[Kind.MASKED_FACTORS] = [2 * FACTORS]
        if self._me == plan.active[0]:
            lengths[Kind.WAVE_SUMS] = [4 if plan.problem == LOGISTIC else 3]
        if plan.last:
            lengths[Kind.BLOCK] = [plan.columns[self._me]]
        return lengths

    def _scoring_lengths(self, order: DealOrder) -> dict[int, list[int]]:
        """Return the lengths of the sums of each kind in a segment that scores rows."""
        weights, rows = sum(order.columns), [len(rows) for rows in self.batches]
        return {
            Kind.MASKED_WEIGHTS: [weights + count_published(order.plan, count) for count in rows],
            Kind.MASKED_SCORES: [1] * len(rows),
            Kind.SCORES: rows if self._me in self._plan.active else [],
        }

    def publish(self, kind: int, position: int, words: Words) -> None:
        """Send this party's share of a sum to all other parties, and add it to the own sum."""
        self._broadcast(Frame(kind, self._me, position, words.tobytes()))
        self._gatherings[kind].add_own(position, words)

    def give(self, kind: int, to: int, words: Words, position: int = 0) -> None:
        """Send this party's share of a sum to one party that receives the sum, which may be this party."""
        if to == self._me:
            self._gatherings[kind].add_own(position, words)
        else:
            self._send(to, Frame(kind, self._me, position, words.tobytes()))

    def publish_features(self, words: Words) -> None:
        """Send this party's masked features to all other parties."""
        body = words.tobytes()
        for number, start in enumerate(range(0, len(body), _PIECE)):
            self._broadcast(Frame(Kind.MASKED_FEATURES, self._me, number, body[start : start + _PIECE]))

    def publish_labels(self, words: Words) -> None:
        """Send this party's masked labels of the evaluated rows to all other parties."""
        self._broadcast(Frame(Kind.MASKED_LABELS, self._me, 0, words.tobytes()))

    def receive(self, peer: int, frame: Frame) -> bool:
        """Add a peer's frame, and return whether it may have completed a sum.

        Raises:
            PartyError: The segment's plan does not contain this frame.
        """
        if frame.active != peer:
            raise protocol_error(peer, f"it sent a frame of party {frame.active}")
        if frame.kind == Kind.MASKED_FEATURES:
            self._store_features(peer, frame)
            return False
        if frame.kind == Kind.MASKED_LABELS:
            if peer != self._plan.active[0] or self.labels is not None or len(frame.body) != 8 * self.evaluated:
                raise protocol_error(peer, "it sent masked labels that the segment does not contain")
            self.labels = np.frombuffer(frame.body, dtype=np.uint64)
            return False
        if (gathering := self._gatherings.get(frame.kind)) is None:
            raise protocol_error(peer, f"it sent a frame of kind {frame.kind}, which this party does not receive")
        return gathering.add(peer, frame.update, frame.body)

    def _store_features(self, peer: int, frame: Frame) -> None:
        whole, start = self.features[peer].ravel().view(np.uint8), self._arrived[peer]
        stop = start + len(frame.body)
        if frame.update * _PIECE != start or stop > len(whole) or (len(frame.body) != _PIECE and stop != len(whole)):
            raise protocol_error(peer, f"its piece {frame.update} of masked features is not the next piece")
        whole[start:stop] = np.frombuffer(frame.body, np.uint8)
        self._arrived[peer] = stop

    def check_features(self) -> None:
        """Raise PartyError if the masked features of a peer are incomplete."""
        for peer, features in self.features.items():
            if self._arrived[peer] != features.nbytes:
                raise protocol_error(peer, "its masked features are incomplete")

    def take(self, kind: int) -> tuple[int, Words] | None:
        """Return the position and the total of the next sum of a kind; None while it is incomplete."""
        gathering = self._gatherings[kind]
        return gathering.take() if gathering.ready else None
